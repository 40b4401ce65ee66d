//! What the value of an attribute can be.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The value of an attribute: text or bytes, borrowed or owned, a number or an address. Borrowed values are not copied.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = tidegate::in_memory("{ domain: d, rules: [{ name: r, key: [user], limits: [1/minute] }] }")?;
/// assert!(tidegate::Ask::new("d").with("user", 42).check_blocking(&limiter)?.is_allowed());
/// assert!(!tidegate::Ask::new("d").with("user", "42").check_blocking(&limiter)?.is_allowed(), "the same user");
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "memory"))]
/// # fn main() {}
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the value of an attribute",
    label = "neither text, bytes, a number nor an address",
    note = "for a value that displays, write `.with(name, value.to_string())`"
)]
pub trait AttributeValue<'a> {
    /// Its bytes.
    fn into_bytes(self) -> Cow<'a, [u8]>;
}

impl<'a, T: AsRef<[u8]> + ?Sized> AttributeValue<'a> for &'a T {
    fn into_bytes(self) -> Cow<'a, [u8]> {
        Cow::Borrowed(self.as_ref())
    }
}

impl<'a> AttributeValue<'a> for Vec<u8> {
    fn into_bytes(self) -> Cow<'a, [u8]> {
        Cow::Owned(self)
    }
}

impl<'a> AttributeValue<'a> for Cow<'a, str> {
    fn into_bytes(self) -> Cow<'a, [u8]> {
        match self {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        }
    }
}

macro_rules! displayed {
    ($($type:ty),*) => {
        $(impl<'a> AttributeValue<'a> for $type {
            fn into_bytes(self) -> Cow<'a, [u8]> {
                Cow::Owned(self.to_string().into_bytes())
            }
        })*
    };
}

displayed!(String, u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, bool, char);
displayed!(IpAddr, Ipv4Addr, Ipv6Addr);
