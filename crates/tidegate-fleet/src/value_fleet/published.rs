//! The published rules: a value that says which, and pieces that hold them.
//!
//! Pieces have a new name each time, so nobody reads half of two sets.

use std::hash::{BuildHasher, RandomState};

use tidegate_core::Micros;
use tidegate_store::StoreError;

use super::bytes::{Reader, append, append_number};
use super::{MOST_TRIES, contended, forget_pieces, pieces, put_pieces, value};
use crate::published::{Over, Published, PublishedRevision, Publishing};
use crate::values::ValueStore;

pub(super) const HEAD: &[u8] = b"rules";
/// How long published rules are kept after the last publish; until then nodes can start without the database.
const KEPT: Micros = Micros::from_secs(7 * 24 * 3_600);
/// The longest set that is read: what claims more is not ours.
const LONGEST_SET: u64 = 1 << 30;

/// Something in pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kept {
    name: u64,
    length: usize,
}

#[derive(Clone, Debug, Default)]
struct Head {
    revision: PublishedRevision,
    format: u32,
    set: Kept,
    changes: Kept,
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let lineage = reader.text()?;
        let revision = reader.number()?;
        let mark = reader.text()?;
        let serial = reader.number()?;
        let seal = reader.text()?;
        let found = bytes[..bytes.len() - reader.0.len()].to_vec();
        let revision = PublishedRevision { lineage, revision, mark, serial, seal, found };
        let format = u32::try_from(reader.number()?).unwrap_or(u32::MAX);
        let mut kept = || {
            let (name, length) = (reader.number()?, reader.number().filter(|length| *length <= LONGEST_SET)?);
            Some(Kept { name, length: length as usize })
        };
        let (set, changes) = (kept()?, kept()?);
        reader.is_empty().then_some(Head { revision, format, set, changes })
    }

    fn bytes(&self) -> Vec<u8> {
        let (mut bytes, of) = (Vec::new(), &self.revision);
        append(&mut bytes, of.lineage.as_bytes());
        append_number(&mut bytes, of.revision);
        append(&mut bytes, of.mark.as_bytes());
        append_number(&mut bytes, of.serial);
        append(&mut bytes, of.seal.as_bytes());
        append_number(&mut bytes, self.format.into());
        for kept in [self.set, self.changes] {
            append_number(&mut bytes, kept.name);
            append_number(&mut bytes, kept.length as u64);
        }
        bytes
    }
}

/// What a heartbeat finds; none if nothing is published, or what is there is not ours.
pub(super) fn revision(head: &[u8]) -> Option<PublishedRevision> {
    Head::read(head).map(|head| head.revision)
}

pub(super) async fn publish(
    store: &dyn ValueStore,
    revision: &PublishedRevision,
    published: &Published,
    over: Over<'_>,
) -> Result<Publishing, StoreError> {
    let set = keep_new(store, &published.set).await?;
    let changes = keep_new(store, &published.changes).await?;
    let new = Head { revision: revision.clone(), format: published.format, set, changes };
    for _ in 0..MOST_TRIES {
        let known = value(store, HEAD).await?.1;
        // What nobody can read is replaced.
        let there = known.as_deref().and_then(Head::read);
        let refused = there.as_ref().and_then(|there| refusal(&there.revision, revision, over));
        if let Some(publishing) = refused {
            forget(store, set).await?;
            forget(store, changes).await?;
            return Ok(publishing);
        }
        if store.swap(HEAD, known.as_deref(), &new.bytes(), KEPT).await? {
            if let Some(there) = there {
                forget(store, there.set).await?;
                forget(store, there.changes).await?;
            }
            return Ok(Publishing::Stored);
        }
    }
    Err(contended())
}

/// Why `new` does not replace what is there; [`Publishing::Stored`] where something newer is.
fn refusal(there: &PublishedRevision, new: &PublishedRevision, over: Over<'_>) -> Option<Publishing> {
    match over {
        Over::This(this) if this.found == there.found => return None,
        _ if there.lineage != new.lineage => return Some(Publishing::OtherDatabase),
        _ if new.serial != 0 && new.serial <= there.serial => return Some(Publishing::Behind),
        _ => {}
    }
    (over != Over::Restored && new.revision < there.revision).then_some(Publishing::Stored)
}

pub(super) async fn publish_changes(
    store: &dyn ValueStore,
    revision: &PublishedRevision,
    known_changes: &[u8],
    (changes, format): (&[u8], u32),
) -> Result<bool, StoreError> {
    let Some((known, head)) = head(store).await? else { return Ok(false) };
    let there = pieces(store, &name(head.changes), head.changes.length).await?;
    let is_behind = revision.serial != 0 && revision.serial <= head.revision.serial;
    if head.revision.lineage != revision.lineage || is_behind || there.as_deref() != Some(known_changes) {
        return Ok(false);
    }
    let kept = keep_new(store, changes).await?;
    let new = Head { revision: revision.clone(), format, set: head.set, changes: kept };
    let is_taken = store.swap(HEAD, Some(&known), &new.bytes(), KEPT).await?;
    forget(store, if is_taken { head.changes } else { kept }).await?;
    Ok(is_taken)
}

/// Writes all of it again: nothing else makes a value last longer.
pub(super) async fn keep(store: &dyn ValueStore) -> Result<(), StoreError> {
    let Some((known, head)) = head(store).await? else { return Ok(()) };
    for kept in [head.set, head.changes] {
        if let Some(bytes) = pieces(store, &name(kept), kept.length).await? {
            put_pieces(store, &name(kept), &bytes, KEPT).await?;
        }
    }
    store.swap(HEAD, Some(&known), &known, KEPT).await.map(drop)
}

pub(super) async fn published(store: &dyn ValueStore) -> Result<Option<Published>, StoreError> {
    for _ in 0..MOST_TRIES {
        let Some((known, head)) = head(store).await? else { return Ok(None) };
        let set = pieces(store, &name(head.set), head.set.length).await?;
        let changes = pieces(store, &name(head.changes), head.changes.length).await?;
        if let (Some(set), Some(changes)) = (set, changes) {
            return Ok(Some(Published { set, changes, format: head.format }));
        }
        // Replaced meanwhile, or partly lost.
        if value(store, HEAD).await?.1.as_deref() == Some(&known[..]) {
            return Ok(None);
        }
    }
    Err(contended())
}

pub(super) async fn changes(store: &dyn ValueStore) -> Result<(Vec<u8>, u32), StoreError> {
    for _ in 0..MOST_TRIES {
        let Some((known, head)) = head(store).await? else { return Ok((Vec::new(), 1)) };
        if let Some(changes) = pieces(store, &name(head.changes), head.changes.length).await? {
            return Ok((changes, head.format));
        }
        if value(store, HEAD).await?.1.as_deref() == Some(&known[..]) {
            return Ok((Vec::new(), head.format));
        }
    }
    Err(contended())
}

async fn head(store: &dyn ValueStore) -> Result<Option<(Vec<u8>, Head)>, StoreError> {
    let known = value(store, HEAD).await?.1;
    Ok(known.and_then(|known| Head::read(&known).map(|head| (known, head))))
}

/// Keeps bytes under a new name.
async fn keep_new(store: &dyn ValueStore, bytes: &[u8]) -> Result<Kept, StoreError> {
    let kept = Kept { name: RandomState::new().hash_one(bytes.len()), length: bytes.len() };
    put_pieces(store, &name(kept), bytes, KEPT).await?;
    Ok(kept)
}

async fn forget(store: &dyn ValueStore, kept: Kept) -> Result<(), StoreError> {
    forget_pieces(store, &name(kept), kept.length).await
}

fn name(kept: Kept) -> Vec<u8> {
    format!("rules{:016x}", kept.name).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(lineage: &str, revision: u64, serial: u64) -> PublishedRevision {
        PublishedRevision { lineage: lineage.to_owned(), revision, serial, ..PublishedRevision::default() }
    }

    #[test]
    fn a_head_is_read_as_it_was_written_and_never_cut() {
        let head = Head {
            revision: PublishedRevision { mark: "m".into(), seal: "s".into(), ..revision("db", 7, 9) },
            format: 2,
            set: Kept { name: 1, length: 10 },
            changes: Kept { name: 2, length: 0 },
        };
        let bytes = head.bytes();
        let read = Head::read(&bytes).unwrap();
        assert_eq!(read.bytes(), bytes);
        assert!(bytes.starts_with(&read.revision.found));
        assert!((0..bytes.len()).all(|end| Head::read(&bytes[..end]).is_none()));
    }

    #[test]
    fn only_the_newer_of_the_same_database_replaces() {
        let there = revision("db", 5, 50);
        let by = |new: PublishedRevision, over: Over<'_>| refusal(&there, &new, over);
        assert_eq!(by(revision("db", 6, 51), Over::Older), None);
        assert_eq!(by(revision("db", 4, 51), Over::Older), Some(Publishing::Stored));
        assert_eq!(by(revision("db", 4, 51), Over::Restored), None);
        assert_eq!(by(revision("db", 6, 50), Over::Older), Some(Publishing::Behind));
        assert_eq!(by(revision("other", 6, 51), Over::Older), Some(Publishing::OtherDatabase));
        assert_eq!(by(revision("other", 6, 51), Over::This(&there)), None);
    }
}
