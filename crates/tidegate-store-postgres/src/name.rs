//! Names of rows.
//!
//! A row's name is a hash of what identifies it: of one length however long a key is, and without any key in the database. Callers
//! choose keys, so the hash is collision-resistant. Half of SHA-256 is enough: two keys of one name would have to be found among
//! 2^64, and would then share a quota; a key with the name of somebody else's takes 2^128.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use sha2::{Digest, Sha256};
use tidegate_core::append_part;
use tidegate_store::{CellKey, RefundId};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// The name of a row. Names ascend as PostgreSQL orders `uuid`: byte by byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name([u8; 16]);

/// Names rows with a common prefix.
#[derive(Clone, Debug)]
pub(crate) struct Namer {
    prefix: Box<[u8]>,
}

impl Namer {
    pub(crate) fn new(prefix: &str) -> Self {
        Namer { prefix: prefix.as_bytes().into() }
    }

    pub(crate) fn cell(&self, cell: &CellKey<'_>) -> Name {
        self.of(b"cell", &[cell.scope.as_bytes(), cell.key])
    }

    /// The mark that a cell has received a refund.
    pub(crate) fn refund(&self, cell: &CellKey<'_>, id: RefundId) -> Name {
        self.of(b"refund", &[&id.to_bytes(), cell.scope.as_bytes(), cell.key])
    }

    pub(crate) fn record(&self, name: &[u8]) -> Name {
        self.of(b"record", &[name])
    }

    /// A value of the fleet.
    pub(crate) fn value(&self, name: &[u8]) -> Name {
        self.of(b"value", &[name])
    }

    /// The row that only this process writes, to see whether the server decides.
    pub(crate) fn probe(&self, process: [u8; 8]) -> Name {
        self.of(b"probe", &[&process])
    }

    fn of(&self, kind: &[u8], parts: &[&[u8]]) -> Name {
        let mut bytes = Vec::with_capacity(96);
        for part in [&self.prefix, kind].iter().chain(parts) {
            append_part(&mut bytes, part);
        }
        let digest: [u8; 32] = Sha256::digest(&bytes).into();
        Name(*digest.first_chunk().expect("a digest is longer"))
    }
}

impl ToSql for Name {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::UUID
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Name {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Name(raw.try_into()?))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::UUID
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Scope;

    use super::*;

    #[test]
    fn cells_whose_joined_parts_are_equal_have_different_names() {
        let namer = Namer::new("tidegate");
        let name = |scope: &[u8], key: &[u8]| {
            let scope = Scope::from_bytes(scope);
            namer.cell(&CellKey { scope: &scope, key, tag: key })
        };
        assert_ne!(name(b"ab", b"c"), name(b"a", b"bc"));
        assert_eq!(name(b"a", b"b"), name(b"a", b"b"));
    }

    #[test]
    fn fleets_with_different_prefixes_share_no_row() {
        assert_ne!(Namer::new("a").value(b"rules"), Namer::new("b").value(b"rules"));
    }
}
