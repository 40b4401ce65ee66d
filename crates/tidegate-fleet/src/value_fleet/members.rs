//! Who is alive, and what each says of itself.

use tidegate_core::{Micros, Timestamp};
use tidegate_store::StoreError;

use super::bytes::{Reader, append_number};
use super::{MOST_TRIES, contended, value};
use crate::store::LimiterNote;
use crate::values::ValueStore;

const MEMBERS: &[u8] = b"members";
/// How long a limiter that stopped without signing off is remembered.
const REMEMBERED: Micros = Micros::from_secs(600);
/// More limiters than a fleet has; further ones are not counted.
const MOST_MEMBERS: usize = 16_384;

/// How many limiters are alive, and when that was counted.
pub(super) struct Alive {
    pub(super) count: usize,
    pub(super) now: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    id: u64,
    seen: Timestamp,
    ttl: Micros,
}

impl Member {
    fn is_alive(&self, now: Timestamp) -> bool {
        now < self.seen + self.ttl
    }
}

/// Those that are alive or lost lately. One seen by a clock that was ahead counts as seen now: otherwise it would be alive until
/// the clock gets there again.
fn read(bytes: &[u8], now: Timestamp) -> Vec<Member> {
    let (mut reader, mut members) = (Reader(bytes), Vec::new());
    while let (Some(id), Some(seen), Some(ttl)) = (reader.number(), reader.number(), reader.number()) {
        let seen = Timestamp::from_micros(seen).min(now);
        let ttl = Micros::new(ttl.min(REMEMBERED.get()));
        if now < seen + ttl + REMEMBERED && members.len() < MOST_MEMBERS {
            members.push(Member { id, seen, ttl });
        }
    }
    members
}

fn write(members: &[Member]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(members.len() * 27);
    for member in members {
        append_number(&mut bytes, member.id);
        append_number(&mut bytes, member.seen.as_micros());
        append_number(&mut bytes, member.ttl.get());
    }
    bytes
}

/// Changes the list: what it was changed to, and when.
async fn change(
    store: &dyn ValueStore,
    change: impl Fn(&mut Vec<Member>, Timestamp) + Send + Sync,
) -> Result<(Vec<Member>, Timestamp), StoreError> {
    for _ in 0..MOST_TRIES {
        let (now, known) = value(store, MEMBERS).await?;
        let mut members = read(known.as_deref().unwrap_or_default(), now);
        change(&mut members, now);
        if store.swap(MEMBERS, known.as_deref(), &write(&members), REMEMBERED + REMEMBERED).await? {
            return Ok((members, now));
        }
    }
    Err(contended())
}

/// Registers a limiter as alive for another `ttl`.
pub(super) async fn register(store: &dyn ValueStore, id: u64, ttl: Micros) -> Result<Alive, StoreError> {
    let register = |members: &mut Vec<Member>, now| {
        members.retain(|member| member.id != id);
        members.push(Member { id, seen: now, ttl });
    };
    let (members, now) = change(store, register).await?;
    Ok(Alive { count: members.iter().filter(|member| member.is_alive(now)).count(), now })
}

/// A limiter that signed off does not count as lost.
pub(super) async fn leave(store: &dyn ValueStore, id: u64) -> Result<(), StoreError> {
    change(store, |members, _| members.retain(|member| member.id != id)).await?;
    store.put(&note_name(id), None, Micros::ONE).await
}

pub(super) async fn put_note(
    store: &dyn ValueStore,
    id: u64,
    note: &[u8],
    ttl: Micros,
) -> Result<(), StoreError> {
    store.put(&note_name(id), Some(note), ttl + REMEMBERED).await
}

/// The notes of all live limiters, and of those lost lately.
pub(super) async fn notes(store: &dyn ValueStore) -> Result<Vec<LimiterNote>, StoreError> {
    let (now, known) = value(store, MEMBERS).await?;
    let members = read(known.as_deref().unwrap_or_default(), now);
    let names: Vec<Vec<u8>> = members.iter().map(|member| note_name(member.id)).collect();
    let (now, notes) = store.values(&names).await?;
    let note = |(member, note): (&Member, Option<Vec<u8>>)| {
        let (age_us, lost) = (now.since(member.seen).get(), !member.is_alive(now));
        Some(LimiterNote { member: member.id, age_us, note: note?, lost })
    };
    Ok(members.iter().zip(notes).filter_map(note).collect())
}

fn note_name(id: u64) -> Vec<u8> {
    format!("note{id:016x}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    #[test]
    fn members_are_read_as_they_were_written_until_they_are_forgotten() {
        let members = [Member { id: 7, seen: NOW, ttl: Micros::from_secs(5) }];
        let bytes = write(&members);
        assert_eq!(read(&bytes, NOW), members);
        let late = NOW + Micros::from_secs(604);
        assert!(!read(&bytes, late)[0].is_alive(late));
        assert!(read(&bytes, NOW + Micros::from_secs(605)).is_empty());
        assert_eq!(read(&bytes, NOW.back(Micros::from_secs(60)))[0].seen, NOW.back(Micros::from_secs(60)));
    }

    #[test]
    fn bytes_of_others_are_no_members() {
        assert!(read(b"\x08", NOW).is_empty() && read(&[0xff; 40], NOW).is_empty());
    }
}
