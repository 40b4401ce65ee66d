//! Users and passwords, and the rate limit for wrong ones by address.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_access::{Guesses, PeerGroup, SecretDigest};
use tidegate_core::Micros;

use tidegate_runtime::Occasional;

/// The user of clients that name none.
pub(crate) const DEFAULT_USER: &[u8] = b"default";

/// Users and their passwords: several each, for rotation. Without any users, no login is needed.
#[derive(Clone, Debug, Default)]
pub struct Users(Vec<User>);

#[derive(Clone, Debug)]
struct User {
    name: Vec<u8>,
    passwords: Vec<SecretDigest>,
}

impl Users {
    /// Adds user `name` with `passwords`.
    #[must_use]
    pub fn with(mut self, name: &str, passwords: Vec<SecretDigest>) -> Self {
        self.0.push(User { name: name.as_bytes().to_vec(), passwords });
        self
    }

    /// Whether no login is needed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is this user's password. All passwords are compared, so that timing does not reveal which users exist.
    fn know(&self, name: &[u8], given: &[u8]) -> bool {
        self.0.iter().fold(false, |known, user| {
            let right = user.passwords.iter().fold(false, |right, password| right | password.is_of(given));
            known | (right & (user.name == name))
        })
    }
}

/// The login attempts of all workers.
#[derive(Debug)]
pub struct Logins {
    users: Users,
    guesses: Guesses,
    refused: AtomicU64,
    log: Mutex<Occasional>,
}

/// The result of a login attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    Right,
    Wrong,
    /// Not checked: this address failed too often.
    Later(Micros),
}

/// The least time between two log lines about wrong passwords.
const LOG_PAUSE: Duration = Duration::from_secs(10);

impl Logins {
    pub(crate) fn new(users: Users) -> Self {
        let (guesses, refused) = (Guesses::default(), AtomicU64::new(0));
        Logins { users, guesses, refused, log: Mutex::new(Occasional::every(LOG_PAUSE)) }
    }

    /// Whether a login is needed.
    pub(crate) fn are_needed(&self) -> bool {
        !self.users.is_empty()
    }

    /// Failed attempts since the start.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn attempt(&self, peer: PeerGroup, name: &[u8], given: &[u8]) -> Attempt {
        let wait = self.guesses.wait(peer);
        if wait.is_none() && self.users.know(name, given) {
            return Attempt::Right;
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(attempts) = self.log.lock().happened() {
            let name = name.escape_ascii().to_string();
            tracing::warn!(address = %peer, user = name, attempts, "wrong password for the Redis protocol");
        }
        match wait {
            Some(wait) => Attempt::Later(wait),
            None => {
                self.guesses.wrong(peer);
                Attempt::Wrong
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logins() -> Logins {
        let passwords = |texts: &[&str]| texts.iter().map(|text| SecretDigest::of(text.as_bytes())).collect();
        Logins::new(
            Users::default().with("default", passwords(&["a"])).with("app", passwords(&["old", "new"])),
        )
    }

    fn peer(last: u8) -> PeerGroup {
        PeerGroup::of([10, 0, 0, last].into())
    }

    #[test]
    fn each_user_has_passwords_of_its_own_and_each_of_them_will_do() {
        let logins = logins();
        let attempt = |name: &str, given: &str| logins.attempt(peer(1), name.as_bytes(), given.as_bytes());
        for (name, given) in [("default", "a"), ("app", "old"), ("app", "new")] {
            assert_eq!(attempt(name, given), Attempt::Right, "{name} {given}");
        }
        for (name, given) in [("default", "old"), ("app", "a"), ("nobody", "a"), ("app", "")] {
            assert_eq!(attempt(name, given), Attempt::Wrong, "{name} {given}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_was_wrong_too_often_is_not_compared_any_more_and_others_are() {
        let logins = logins();
        for _ in 0..10 {
            assert_eq!(logins.attempt(peer(1), b"default", b"x"), Attempt::Wrong);
        }
        assert_eq!(logins.attempt(peer(1), b"default", b"a"), Attempt::Later(Micros::from_secs(6)));
        assert_eq!(logins.attempt(peer(2), b"default", b"a"), Attempt::Right);
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(logins.attempt(peer(1), b"default", b"a"), Attempt::Right);
        assert_eq!(logins.refused(), 11);
    }
}
