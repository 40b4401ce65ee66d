//! Sessions that this node keeps in memory, for tokens of its configuration while there is no database to keep them in.
//!
//! An operator needs the dashboard most while the node with the database is down. Tokens of the configuration are known to each
//! node, so any of them can open a session with one. It ends with the process, and only this node knows it.

use std::collections::HashMap;

use parking_lot::Mutex;
use tidegate_access::SecretDigest;
use tidegate_rules::Timestamp;
use tidegate_rulestore::Secret;

/// The most sessions; the one that ends first makes room.
const MOST: usize = 256;

/// The sessions of this process, by the id of their secret.
#[derive(Default)]
pub(crate) struct LocalSessions(Mutex<HashMap<String, LocalSession>>);

#[derive(Clone)]
struct LocalSession {
    digest: SecretDigest,
    /// The tag of the configured token that it was opened with, and ends with.
    tag: String,
    expires: Timestamp,
}

impl LocalSessions {
    pub(crate) fn open(&self, secret: &Secret, tag: String, expires: Timestamp, now: Timestamp) {
        let mut sessions = self.0.lock();
        sessions.retain(|_, one| one.expires > now);
        if sessions.len() >= MOST {
            let first = sessions.iter().min_by_key(|(_, one)| one.expires).map(|(id, _)| id.clone());
            first.and_then(|id| sessions.remove(&id));
        }
        let digest = SecretDigest::of(secret.reveal().as_bytes());
        sessions.insert(secret.id().to_owned(), LocalSession { digest, tag, expires });
    }

    /// The tag of the token, and the end, of the session with this secret.
    pub(crate) fn find(&self, secret: &Secret, now: Timestamp) -> Option<(String, Timestamp)> {
        let one = self.0.lock().get(secret.id()).cloned()?;
        (one.expires > now && one.digest.is_of(secret.reveal().as_bytes())).then_some((one.tag, one.expires))
    }

    /// Ends a session; false if it is none of these.
    pub(crate) fn end(&self, id: &str) -> bool {
        self.0.lock().remove(id).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn a_session_is_found_by_its_whole_secret_until_it_ends() {
        let (sessions, secret) = (LocalSessions::default(), Secret::random().unwrap());
        sessions.open(&secret, "tag".to_owned(), at(10), at(0));
        assert_eq!(sessions.find(&secret, at(9)), Some(("tag".to_owned(), at(10))));
        assert_eq!(sessions.find(&secret, at(10)), None, "it has ended");
        let (text, other) = (secret.reveal(), Secret::random().unwrap());
        let forged = format!("{}{}", &text[..text.len() - 8], &other.reveal()[text.len() - 8..]);
        assert_eq!(sessions.find(&Secret::parse(&forged).unwrap(), at(0)), None, "the id alone is no secret");
        assert!(sessions.end(secret.id()));
        assert_eq!(sessions.find(&secret, at(0)), None);
    }

    #[test]
    fn sessions_beyond_the_bound_displace_the_one_that_ends_first() {
        let (sessions, first) = (LocalSessions::default(), Secret::random().unwrap());
        sessions.open(&first, "tag".to_owned(), at(10), at(0));
        for _ in 0..MOST {
            sessions.open(&Secret::random().unwrap(), "tag".to_owned(), at(20), at(0));
        }
        assert_eq!((sessions.find(&first, at(0)), sessions.0.lock().len()), (None, MOST));
    }
}
