//! A Redis that answers pings while decisions are late or never answered. Such a server has failed: each rule's policy decides,
//! nobody who has quota is refused for long, and the node says so.

use std::time::Duration;

use tidegate_testkit::{Fault, FaultProxy, Redis, eventually, in_three_tries};

use crate::redis_world::{Answer, DEFAULT, Node, PATIENCE, RECOVERED, alone, check, now, pass, tell};

const RULES: &str =
    "- { name: local, key: [user], limits: [{ algorithm: fixed_window, limit: 10, window: 1h }] }\n";
/// A new caller comes this often.
const EVERY: Duration = Duration::from_millis(20);
/// A server that is always late is overloaded for two seconds, and a busy machine may take a little longer to say so.
const NOTICED: Duration = Duration::from_secs(3);

/// What callers of whom nothing is known were answered, and when.
struct Crowd {
    node: Node,
    asked: usize,
}

impl Crowd {
    fn on(url: &str) -> Self {
        Crowd { node: Node::ready(url, DEFAULT, RULES), asked: 0 }
    }

    fn ask(&mut self, client: &mut tidegate_testkit::resp::Client) -> Answer {
        self.asked += 1;
        check(client, &[("user", &format!("u{}", self.asked))], 1)
    }

    fn is_up(&self) -> bool {
        self.node.metric_sum("tidegate_store_up{") == 1.0
    }

    /// Asks while the fault lasts, and until it is over.
    fn go_through(
        &mut self,
        what: &str,
        lasts: Duration,
        begin: impl Fn(),
        end: impl Fn(),
    ) -> Result<(), String> {
        let mut client = self.node.client();
        begin();
        let began = now();
        let (mut refused, mut noticed) = (Vec::new(), None);
        while began.elapsed() < lasts {
            let at = began.elapsed();
            let answer = self.ask(&mut client);
            match answer.source == "fallback_local" {
                true => _ = noticed.get_or_insert(at),
                // Until then it may be overloaded and failed by turns.
                false if at > NOTICED && noticed.is_some() => {
                    panic!(
                        "{what}: it had failed after {noticed:?}, and after {at:?} is said to be well: {answer:?}"
                    )
                }
                false => {}
            }
            if !answer.allowed {
                refused.push((at, answer));
            }
            pass(EVERY);
        }
        tell!("{what}: noticed after {noticed:?}, {} of {} refused", refused.len(), self.asked);
        let Some(noticed) = noticed else { return Err(format!("{what}: not noticed within {lasts:?}")) };
        assert!(refused.is_empty(), "{what}: nobody has spent anything: {refused:?}");
        assert!(self.node.readyz().starts_with("degraded\n"), "{what}: {}", self.node.readyz());
        assert!(!self.is_up(), "{what}: store_up");
        end();
        let ended = now();
        eventually("the store decides again", PATIENCE, || self.ask(&mut client).source == "store");
        eventually("the node says so", PATIENCE, || self.is_up() && self.node.readyz() == "ready\n");
        let back = ended.elapsed();
        tell!("{what}: exact again after {back:?}");
        match (noticed, back) {
            (noticed, _) if noticed > NOTICED => Err(format!("{what}: noticed only after {noticed:?}")),
            (_, back) if back > RECOVERED => Err(format!("{what}: exact again only after {back:?}")),
            _ => Ok(()),
        }
    }
}

#[test]
fn paused_writes_are_a_failure_though_pings_are_answered() {
    let _alone = alone();
    in_three_tries(|| {
        let redis = Redis::start();
        let pause = || drop(redis.cmd(&["CLIENT", "PAUSE", "60000", "WRITE"]));
        let resume = || drop(redis.cmd(&["CLIENT", "UNPAUSE"]));
        Crowd::on(&redis.url()).go_through("paused writes", Duration::from_secs(14), pause, resume)
    });
}

#[test]
fn lost_large_packets_are_a_failure_though_pings_arrive() {
    let _alone = alone();
    in_three_tries(|| {
        let redis = Redis::start();
        let proxy = FaultProxy::start(redis.addr());
        let url = format!("redis://{}", proxy.addr());
        let lose = || proxy.set(Fault::DropLarge(200));
        Crowd::on(&url).go_through("lost packets", Duration::from_secs(6), lose, || proxy.resume())
    });
}

/// Three times as late as may be: what a busy machine discounts as its own lag does not make it prompt.
#[test]
fn answers_that_are_always_late_are_a_failure_after_two_seconds() {
    let _alone = alone();
    in_three_tries(|| {
        let redis = Redis::start();
        let proxy = FaultProxy::start(redis.addr());
        let url = format!("redis://{}", proxy.addr());
        let delay = || proxy.set(Fault::Delay(Duration::from_millis(30)));
        Crowd::on(&url).go_through("always late", Duration::from_secs(6), delay, || proxy.resume())
    });
}
