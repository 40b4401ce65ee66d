//! Unpredictable numbers: keys of hashes that callers must not foresee, secrets, and names that nobody else has.

/// Random bytes of the system.
///
/// # Panics
/// If the system has none: a secret that others can guess would be worse.
#[must_use]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has random bytes");
    bytes
}

/// The two keys of a keyed hash.
#[must_use]
pub fn random_hash_keys() -> [u64; 2] {
    let bytes: [u8; 16] = random_bytes();
    let (first, second) = bytes.split_at(8);
    [first, second].map(|half| u64::from_le_bytes(half.try_into().expect("half of 16 bytes are 8")))
}
