//! The rules that are published to the fleet, as the store keeps them.

/// The published rules: a large set that seldom changes, and the changes since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// The set.
    pub set: Vec<u8>,
    /// The changes.
    pub changes: Vec<u8>,
    /// The format a node must support to read this; 1 if not stated.
    pub format: u32,
}

/// Which rules are published. A store does not check the signature: it has no secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedRevision {
    /// The source database; empty if nothing is published.
    pub lineage: String,
    /// Grows with every change; 0 if nothing is published.
    pub revision: u64,
    /// Distinguishes revisions with the same number; empty if not stated.
    pub mark: String,
    /// Its place in the order of publications; 0 if the publisher signs nothing.
    pub serial: u64,
    /// The signature of the other fields; empty if the publisher signs nothing.
    pub seal: String,
    /// The fields as the store found them, to replace exactly these; empty if they were not read from the store.
    pub found: Vec<u8>,
}

/// What a publication may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over<'a> {
    /// An older revision of the same database.
    Older,
    /// Any revision of the same database, which was restored from a copy.
    Restored,
    /// What was found to be exactly this. Anything else only if it is an older revision of the same database.
    This(&'a PublishedRevision),
}

/// What became of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publishing {
    /// It is stored, or a newer one of the same database is.
    Stored,
    /// Rules of another database are there.
    OtherDatabase,
    /// A publication with a higher serial is there.
    Behind,
}
