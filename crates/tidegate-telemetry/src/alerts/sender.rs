//! Decides which node of a fleet sends notices, by a lease in the store.
//!
//! The holder renews it. While the store is unreachable the holder keeps sending, since no other node can take the lease.
//! Another node starts sending only after the store has been unreachable for longer than the lease lasts, because the holder
//! may be gone with it. Two nodes may then send the same notice: receivers deduplicate by fingerprint.

/// Whether this node sends notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderRole {
    /// It holds the lease.
    Holder,
    /// Another node holds it.
    Other,
    /// Unknown: this node sends, so that at least one does.
    Orphan,
}

impl SenderRole {
    /// Whether it sends notices.
    #[must_use]
    pub fn tells(self) -> bool {
        self != SenderRole::Other
    }
}

/// The current role of this node.
#[derive(Debug)]
pub struct SenderLease {
    role: SenderRole,
    lease_s: u64,
    last_answer_s: Option<u64>,
    began_s: u64,
}

impl SenderLease {
    /// No holder is known yet. A lease lasts `lease_s`.
    #[must_use]
    pub fn new(lease_s: u64, now_s: u64) -> Self {
        SenderLease { role: SenderRole::Other, lease_s, last_answer_s: None, began_s: now_s }
    }

    /// Records the store's answer at `now_s`: whether the lease is ours, or `None` without an answer.
    pub fn heard(&mut self, now_s: u64, ours: Option<bool>) -> SenderRole {
        match ours {
            Some(ours) => {
                self.last_answer_s = Some(now_s);
                self.role = if ours { SenderRole::Holder } else { SenderRole::Other };
            }
            None => {
                // After the clock was set back, the silence counts from now.
                let since_s = self.last_answer_s.unwrap_or(self.began_s).min(now_s);
                self.last_answer_s = Some(since_s);
                let silent_s = now_s - since_s;
                if self.role == SenderRole::Other && silent_s > self.lease_s {
                    self.role = SenderRole::Orphan;
                }
            }
        }
        self.role
    }

    /// The current role.
    #[must_use]
    pub fn role(&self) -> SenderRole {
        self.role
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_goes_on_while_the_store_is_away_and_others_wait_for_its_lease() {
        let (mut holder, mut other) = (SenderLease::new(15, 0), SenderLease::new(15, 0));
        assert_eq!(holder.heard(1, Some(true)), SenderRole::Holder);
        assert_eq!(other.heard(1, Some(false)), SenderRole::Other);
        for now in 2..=16 {
            assert_eq!(
                (holder.heard(now, None), other.heard(now, None)),
                (SenderRole::Holder, SenderRole::Other),
                "at {now}"
            );
        }
        assert_eq!(other.heard(17, None), SenderRole::Orphan);
        assert_eq!(
            other.heard(18, Some(false)),
            SenderRole::Other,
            "and is one of many again when the store answers"
        );
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_nobody_from_telling_in_an_outage() {
        let mut duty = SenderLease::new(15, 10_000);
        assert_eq!(duty.heard(10_001, Some(false)), SenderRole::Other);
        let tells = (5_000..5_060).find(|now| duty.heard(*now, None).tells());
        assert_eq!(tells, Some(5_016));
    }

    #[test]
    fn a_node_that_never_heard_from_the_store_tells_after_a_lease() {
        let mut duty = SenderLease::new(15, 100);
        assert!(!duty.heard(101, None).tells());
        assert!(duty.heard(116, None).tells());
    }
}
