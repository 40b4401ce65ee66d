//! Sessions that this node keeps in memory, for tokens of its configuration while there is no database to keep them in.
//!
//! An operator needs the dashboard most while the node with the database is down. Tokens of the configuration are known to each
//! node, so any of them can open a session with one. It ends with the process, and only this node knows it: what opens and ends
//! here is logged, as no audit log may be there to have it.

use std::collections::HashMap;

use parking_lot::Mutex;
use tidegate_access::SecretDigest;
use tidegate_rules::Timestamp;
use tidegate_rulestore::{Origin, Secret};

/// The most sessions of one address, of one token, and of all; the oldest of those make room. Several people may share a token,
/// so whoever signs in without end from one address ends its own sessions first.
const MOST_OF_ADDRESS: usize = 32;
const MOST_OF_TOKEN: usize = 128;
const MOST: usize = 256;

/// The sessions of this process, by the id of their secret.
#[derive(Default)]
pub(crate) struct LocalSessions(Mutex<HashMap<String, LocalSession>>);

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalSession {
    pub(crate) id: String,
    digest: SecretDigest,
    /// The tag of the configured token that it was opened with, and ends with.
    pub(crate) tag: String,
    /// The address that signed in.
    pub(crate) from: String,
    pub(crate) at: Timestamp,
    pub(crate) expires: Timestamp,
}

impl LocalSession {
    fn is_of(&self, origin: Option<&Origin>) -> bool {
        origin.is_none_or(|origin| matches!(origin, Origin::Configured(tag) if *tag == self.tag))
    }
}

impl LocalSessions {
    /// Opens a session with the token of this tag, from `at` until `expires`.
    pub(crate) fn open(&self, secret: &Secret, tag: &str, from: &str, [at, expires]: [Timestamp; 2]) {
        let mut sessions = self.0.lock();
        sessions.retain(|_, one| one.expires > at);
        make_room(&mut sessions, MOST_OF_ADDRESS, |one| one.from == from);
        make_room(&mut sessions, MOST_OF_TOKEN, |one| one.tag == tag);
        make_room(&mut sessions, MOST, |_| true);
        let (id, digest) = (secret.id().to_owned(), SecretDigest::of(secret.reveal().as_bytes()));
        tracing::info!(session = id, token = tag, address = from, "signed in at this node alone");
        let (tag, from) = (tag.to_owned(), from.to_owned());
        sessions.insert(id.clone(), LocalSession { id, digest, tag, from, at, expires });
    }

    /// The tag of the token, and the end, of the session with this secret.
    pub(crate) fn find(&self, secret: &Secret, now: Timestamp) -> Option<(String, Timestamp)> {
        let one = self.0.lock().get(secret.id()).cloned()?;
        (one.expires > now && one.digest.is_of(secret.reveal().as_bytes())).then_some((one.tag, one.expires))
    }

    /// The sessions of a token, or of all, newest first.
    pub(crate) fn list(&self, of: Option<&Origin>, now: Timestamp) -> Vec<LocalSession> {
        let sessions = self.0.lock();
        let own = sessions.values().filter(|one| one.expires > now && one.is_of(of));
        let mut own: Vec<LocalSession> = own.cloned().collect();
        own.sort_unstable_by(|one, other| other.at.cmp(&one.at).then_with(|| one.id.cmp(&other.id)));
        own
    }

    /// Ends a session; none if there is none with this id, or it is another token's than `of`.
    pub(crate) fn end(&self, id: &str, of: Option<&Origin>) -> Option<LocalSession> {
        let mut sessions = self.0.lock();
        let ended = sessions.get(id).is_some_and(|one| one.is_of(of)).then(|| sessions.remove(id))??;
        tracing::info!(
            session = id,
            token = ended.tag,
            address = ended.from,
            "signed out at this node alone"
        );
        Some(ended)
    }
}

/// Ends the oldest of `those`, if there are `most` of them.
fn make_room(
    sessions: &mut HashMap<String, LocalSession>,
    most: usize,
    those: impl Fn(&LocalSession) -> bool,
) {
    let own = || sessions.values().filter(|one| those(one));
    if own().count() < most {
        return;
    }
    let Some(oldest) = own().min_by_key(|one| one.at).map(|one| one.id.clone()) else { return };
    tracing::info!(session = oldest, "signed out at this node alone: a newer session needs its room");
    sessions.remove(&oldest);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: u64 = 1_000_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn open(sessions: &LocalSessions, tag: &str, from: &str, second: u64) -> Secret {
        let secret = Secret::random().unwrap();
        sessions.open(&secret, tag, from, [at(second), at(LATER)]);
        secret
    }

    #[test]
    fn a_session_is_found_by_its_whole_secret_until_it_ends() {
        let (sessions, secret) = (LocalSessions::default(), Secret::random().unwrap());
        sessions.open(&secret, "tag", "::1", [at(0), at(10)]);
        assert_eq!(sessions.find(&secret, at(9)), Some(("tag".to_owned(), at(10))));
        assert_eq!(sessions.find(&secret, at(10)), None, "it has ended");
        let (text, other) = (secret.reveal(), Secret::random().unwrap());
        let forged = format!("{}{}", &text[..text.len() - 8], &other.reveal()[text.len() - 8..]);
        assert_eq!(sessions.find(&Secret::parse(&forged).unwrap(), at(0)), None, "the id alone is no secret");
        assert!(sessions.end(secret.id(), None).is_some());
        assert_eq!(sessions.find(&secret, at(0)), None);
    }

    #[test]
    fn who_signs_in_without_end_ends_sessions_of_its_own_address_first_and_then_of_its_token() {
        let sessions = LocalSessions::default();
        let is_open = |secret: &Secret| sessions.find(secret, at(1_000)).is_some();
        let (other, shared) = (open(&sessions, "other", "a", 0), open(&sessions, "shared", "b", 0));
        let first = open(&sessions, "shared", "c", 1);
        for second in 2..1_000 {
            open(&sessions, "shared", "c", second);
        }
        assert!(is_open(&other) && is_open(&shared) && !is_open(&first));
        assert_eq!(sessions.list(None, at(1_000)).len(), MOST_OF_ADDRESS + 2);
        for second in 1_000..2_000 {
            open(&sessions, "shared", &format!("address-{second}"), second);
        }
        assert!(is_open(&other) && !is_open(&shared));
        assert_eq!(sessions.list(None, at(2_000)).len(), MOST_OF_TOKEN + 1);
        for second in 2_000..3_000 {
            open(&sessions, &format!("tag-{second}"), &format!("address-{second}"), second);
        }
        assert_eq!((sessions.list(None, at(3_000)).len(), is_open(&other)), (MOST, false));
    }

    #[test]
    fn a_token_lists_and_ends_its_own_sessions_and_no_others() {
        let sessions = LocalSessions::default();
        let (own, newer) = (open(&sessions, "own", "a", 1), open(&sessions, "own", "a", 2));
        let other = open(&sessions, "other", "a", 3);
        let of = Origin::Configured("own".to_owned());
        let listed = |of: Option<&Origin>| {
            let list = sessions.list(of, at(4)).into_iter();
            list.map(|one| one.id).collect::<Vec<_>>()
        };
        assert_eq!(listed(Some(&of)), [newer.id(), own.id()]);
        assert_eq!(listed(None).len(), 3);
        assert_eq!(listed(Some(&Origin::Operator)), Vec::<String>::new());
        assert_eq!(sessions.end(other.id(), Some(&of)), None);
        assert!(sessions.end(own.id(), Some(&of)).is_some() && sessions.end(own.id(), Some(&of)).is_none());
        assert_eq!(listed(None), [other.id(), newer.id()]);
        assert_eq!(sessions.list(None, at(LATER)), [], "they have ended");
    }
}
