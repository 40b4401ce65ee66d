//! Whether a store server is alive: the rule alone, without I/O and without a clock.
//!
//! The prober makes each server decide something again and again, and tells the server's judge how much time it gave it. Time
//! in which the prober's own thread did not run is never told.

use tidegate_core::Micros;

/// What is known of a store server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ServerState {
    /// It decides in time.
    #[default]
    Alive,
    /// It decides late, or has not decided for longer than that takes.
    Overloaded,
    /// It has decided nothing for a while, or nothing in time for a long while, and nothing in time since.
    Failed,
}

/// A server that decides nothing for this long, and for three deadlines, has failed: Redis pauses for tens of milliseconds when
/// many keys expire, and for longer on a machine that is busy.
const SILENCE: Micros = Micros::from_millis(200);
const DEADLINES: u64 = 3;
/// A server that decides nothing in time for this long has failed: nobody waits for a server that is always late.
const LATENESS: Micros = Micros::from_secs(2);

/// The pause before the next probe of a server that decided the last one in time, and of any other.
const CALM_PAUSE: Micros = Micros::from_millis(100);
const DOUBT_PAUSE: Micros = Micros::from_millis(25);

/// How the last probe ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastProbe {
    InTime,
    Late,
    /// With an error, or never.
    Undecided,
}

/// The judge of one server.
#[derive(Clone, Debug)]
pub(super) struct Judge {
    deadline: Micros,
    last: LastProbe,
    /// For how long it has decided nothing that it was asked.
    silent_for: Micros,
    /// For how long it has decided nothing in time.
    late_for: Micros,
}

impl Judge {
    /// Judges a server that has `deadline` for a decision; at first it counts as alive.
    pub(super) fn new(deadline: Micros) -> Self {
        Judge { deadline, last: LastProbe::InTime, silent_for: Micros::ZERO, late_for: Micros::ZERO }
    }

    /// After this long without any decision a server has failed.
    pub(super) fn silence(deadline: Micros) -> Micros {
        Micros::new(deadline.get().saturating_mul(DEADLINES)).max(SILENCE)
    }

    /// The server had `span` more for the probe in flight.
    pub(super) fn waited(&mut self, span: Micros) {
        self.silent_for = self.silent_for + span;
        self.late_for = self.late_for + span;
        if self.silent_for >= Judge::silence(self.deadline) {
            // Only a decision in time brings it back.
            self.late_for = self.late_for.max(self.lateness());
        }
    }

    /// After this long without a decision in time a server has failed.
    fn lateness(&self) -> Micros {
        Judge::silence(self.deadline).max(LATENESS)
    }

    /// The server decided the probe, `took` after it was sent.
    pub(super) fn decided(&mut self, took: Micros) {
        self.silent_for = Micros::ZERO;
        self.last = LastProbe::Late;
        if took <= self.deadline {
            self.late_for = Micros::ZERO;
            self.last = LastProbe::InTime;
        }
    }

    /// The server decided a request in time meanwhile: only the probe, or its connection, was lost.
    pub(super) fn decided_a_request(&mut self) {
        self.silent_for = Micros::ZERO;
        self.late_for = Micros::ZERO;
    }

    /// The probe ended without a decision.
    pub(super) fn refused(&mut self) {
        self.last = LastProbe::Undecided;
    }

    /// The pause before the next probe.
    pub(super) fn pause(&self) -> Micros {
        if self.last == LastProbe::InTime { CALM_PAUSE } else { DOUBT_PAUSE }
    }

    /// That pause is over. It counts against a server that gave no reason for it.
    pub(super) fn paused(&mut self) {
        let span = self.pause();
        match self.last {
            LastProbe::InTime => {}
            LastProbe::Late => self.late_for = self.late_for + span,
            LastProbe::Undecided => self.waited(span),
        }
    }

    /// What all this says of the server.
    pub(super) fn state(&self) -> ServerState {
        if self.late_for >= self.lateness() {
            ServerState::Failed
        } else if self.late_for > self.deadline {
            ServerState::Overloaded
        } else {
            ServerState::Alive
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Micros {
        Micros::from_millis(millis)
    }

    fn judge() -> Judge {
        Judge::new(ms(10))
    }

    /// One probe that is decided after so many milliseconds, and the pause after it.
    fn probe(judge: &mut Judge, took: u64) -> ServerState {
        judge.waited(ms(took));
        judge.decided(ms(took));
        let state = judge.state();
        judge.paused();
        state
    }

    #[test]
    fn decisions_in_time_are_alive_for_ever() {
        let mut judge = judge();
        assert!((0..1_000).all(|_| probe(&mut judge, 10) == ServerState::Alive));
        assert_eq!(judge.pause(), CALM_PAUSE);
    }

    #[test]
    fn silence_is_overload_after_a_deadline_and_failure_after_200_ms() {
        let mut judge = judge();
        let states = [10, 1, 188, 1].map(|span| {
            judge.waited(ms(span));
            judge.state()
        });
        let [alive, overloaded] = [ServerState::Alive, ServerState::Overloaded];
        assert_eq!(states, [alive, overloaded, overloaded, ServerState::Failed]);
    }

    #[test]
    fn silence_of_a_long_deadline_takes_three_of_them() {
        let mut judge = Judge::new(ms(600));
        judge.waited(ms(1_799));
        assert_eq!(judge.state(), ServerState::Overloaded);
        judge.waited(ms(1));
        assert_eq!(judge.state(), ServerState::Failed);
    }

    #[test]
    fn always_late_is_overload_for_two_seconds_and_then_failure() {
        let mut judge = judge();
        // 12 ms for each decision, 25 ms between them: 37 ms a round.
        let states: Vec<ServerState> = (0..60).map(|_| probe(&mut judge, 12)).collect();
        let failed = states.iter().position(|state| *state == ServerState::Failed);
        assert_eq!(failed, Some(54), "after 54 * 37 + 12 = 2,010 ms");
        assert!(states[54..].iter().all(|state| *state == ServerState::Failed));
        assert_eq!(probe(&mut judge, 9), ServerState::Alive);
    }

    #[test]
    fn late_and_prompt_decisions_by_turns_are_no_failure() {
        let mut judge = judge();
        let failed = (0..1_000).filter(|turn| {
            let took = if turn % 20 == 0 { 5 } else { 40 };
            probe(&mut judge, took) == ServerState::Failed
        });
        assert_eq!(failed.count(), 0);
    }

    #[test]
    fn lost_probe_is_no_failure_while_requests_are_decided() {
        let mut judge = judge();
        for _ in 0..100 {
            judge.waited(ms(190));
            judge.decided_a_request();
        }
        assert_eq!(judge.state(), ServerState::Alive);
        judge.waited(ms(200));
        assert_eq!(judge.state(), ServerState::Failed, "but nothing since");
    }

    #[test]
    fn refusals_fail_like_silence() {
        let mut judge = judge();
        let refuse = |judge: &mut Judge| {
            judge.refused();
            judge.paused();
            judge.state()
        };
        assert!((0..7).all(|_| refuse(&mut judge) == ServerState::Overloaded));
        assert_eq!(refuse(&mut judge), ServerState::Failed);
        assert_eq!(probe(&mut judge, 40), ServerState::Failed, "it decides, but late");
        assert_eq!(probe(&mut judge, 1), ServerState::Alive);
    }
}
