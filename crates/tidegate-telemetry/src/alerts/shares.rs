//! Problems that are a share of a node's requests, over a while: what a blip makes is neither.

use std::collections::BTreeMap;

use super::kinds::{Finding, Kind};
use super::signals::Signals;

/// How long requests are counted before their share is judged, and how many such spans in a row must be too bad.
pub(super) const SPAN_S: u64 = 10;
pub(super) const IN_A_ROW: u32 = 3;

/// The kinds that are shares, in the order of [`Totals::events`].
const KINDS: [Kind; 3] = [Kind::Fallback, Kind::Overload, Kind::NodeOverload];

/// A process: its node's name, and when it started.
pub(super) type NodeId = (String, u64);

/// The shares of every node that is heard.
#[derive(Debug, Default)]
pub(super) struct Shares(BTreeMap<NodeId, Watch>);

#[derive(Debug)]
struct Watch {
    /// When the current span began, and the counts then and at the last look.
    from_s: u64,
    began: Totals,
    last: Totals,
    /// Spans in a row that were too bad, by kind.
    in_a_row: [u32; KINDS.len()],
    /// The shares of the last whole span.
    shares: [f64; KINDS.len()],
    /// Whether a store was down at the last look.
    was_without_store: bool,
}

#[derive(Clone, Copy, Debug)]
struct Totals {
    requests: u64,
    events: [u64; KINDS.len()],
}

impl Totals {
    fn of(one: &Signals) -> Self {
        Totals { requests: one.requests, events: [one.fallbacks, one.overloads, one.own_lags] }
    }

    /// The shares of the requests since `before`. A node of an older release counts no requests: there, all are.
    fn shares_since(&self, before: &Totals) -> [f64; KINDS.len()] {
        let requests = self.requests.saturating_sub(before.requests);
        std::array::from_fn(|kind| {
            let events = self.events[kind].saturating_sub(before.events[kind]);
            events as f64 / requests.max(events).max(1) as f64
        })
    }
}

impl Shares {
    /// Counts the nodes' requests, and returns the problems that have lasted. `worst` is the share that is no problem yet.
    pub(super) fn look(&mut self, now_s: u64, nodes: &[Signals], worst: f64) -> Vec<Finding> {
        let mut before = std::mem::take(&mut self.0);
        let mut found = Vec::new();
        for one in nodes {
            let (id, now) = ((one.node.clone(), one.started_us), Totals::of(one));
            let mut watch = before.remove(&id).unwrap_or_else(|| Watch::new(now_s, now));
            let since_last = now.shares_since(&watch.last);
            watch.count(now_s, now, worst);
            // What follows from a store that is down is known with it, and told in one body; so is what it did until the
            // look that saw it back.
            let without_store = !one.stores_down.is_empty() || !one.breakers_open.is_empty();
            let was_without_store = std::mem::replace(&mut watch.was_without_store, without_store);
            if (without_store || was_without_store) && since_last[0] > worst {
                found.push(finding(Kind::Fallback, one, since_last[0]));
            }
            let lasting = (0..KINDS.len()).filter(|kind| watch.in_a_row[*kind] >= IN_A_ROW);
            found.extend(lasting.map(|kind| finding(KINDS[kind], one, watch.shares[kind])));
            self.0.insert(id, watch);
        }
        found
    }
}

impl Watch {
    fn new(from_s: u64, now: Totals) -> Self {
        Watch {
            from_s,
            began: now,
            last: now,
            in_a_row: [0; KINDS.len()],
            shares: [0.0; KINDS.len()],
            was_without_store: false,
        }
    }

    fn count(&mut self, now_s: u64, now: Totals, worst: f64) {
        self.last = now;
        // A clock that is set back ends the span too.
        if now_s.abs_diff(self.from_s) < SPAN_S {
            return;
        }
        self.shares = now.shares_since(&self.began);
        for (row, share) in self.in_a_row.iter_mut().zip(self.shares) {
            *row = if share > worst { row.saturating_add(1) } else { 0 };
        }
        (self.from_s, self.began) = (now_s, now);
    }
}

fn finding(kind: Kind, one: &Signals, share: f64) -> Finding {
    let (node, store, part) = (&one.node, one.the_store(), percent(share));
    match kind {
        Kind::Fallback => {
            let summary = format!("{node} decides {part} of its requests without the shared counters");
            Finding::new(kind, node, summary)
        }
        Kind::NodeOverload => {
            let summary = format!(
                "{node} has more requests than its cores can process: {part} did not wait for answers that had come"
            );
            Finding::new(kind, node, summary)
        }
        _ if one.queue_full * 2 > one.overloads => {
            let summary = format!("the queue of {node} before {store} is full for {part} of its requests");
            Finding { next: QUEUE_FULL.to_owned(), ..Finding::new(kind, node, summary) }
        }
        _ => {
            let summary = format!("{store} answers {part} of the requests of {node} too late");
            Finding::new(kind, node, summary)
        }
    }
}

const QUEUE_FULL: &str =
    "more requests wait than may: give the store more capacity (shards, cores), or let more be refused early";

fn percent(share: f64) -> String {
    if share < 0.01 { format!("{:.1} %", share * 100.0) } else { format!("{:.0} %", share * 100.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kinds found at each second, with these counts in each.
    fn found(looks: impl IntoIterator<Item = Signals>) -> Vec<(u64, Kind)> {
        let mut shares = Shares::default();
        let looks = (0..).step_by(2).zip(looks);
        let found = looks.flat_map(|(now_s, one)| {
            shares.look(now_s, &[one], 0.001).into_iter().map(move |finding| (now_s, finding.kind))
        });
        found.collect()
    }

    /// A minute and a half at 75 requests/s, with what `change` counts in it.
    fn at_75_a_second(change: impl Fn(u64, &mut Signals)) -> Vec<Signals> {
        let at = |now_s| {
            let mut one = Signals { node: "a".to_owned(), requests: 75 * now_s, ..Signals::default() };
            change(now_s, &mut one);
            one
        };
        (0..90).step_by(2).map(at).collect()
    }

    type Count = fn(&mut Signals) -> &mut u64;
    const COUNTS: [(Kind, Count); 3] = [
        (Kind::Fallback, |one| &mut one.fallbacks),
        (Kind::Overload, |one| &mut one.overloads),
        (Kind::NodeOverload, |one| &mut one.own_lags),
    ];

    #[test]
    fn a_blip_at_75_requests_a_second_is_no_finding() {
        for (kind, count) in COUNTS {
            let once = at_75_a_second(|now_s, one| *count(one) = if now_s < 20 { 0 } else { 75 });
            assert_eq!(found(once), [], "{}", kind.name());
            let twice = at_75_a_second(|now_s, one| *count(one) = 40 * (now_s / 25));
            assert_eq!(found(twice), [], "{}", kind.name());
            let few = at_75_a_second(|now_s, one| *count(one) = 75 * now_s / 1_100);
            assert_eq!(found(few), [], "{}, less than one in a thousand", kind.name());
        }
    }

    #[test]
    fn a_share_that_stands_for_half_a_minute_is_one_until_it_is_over() {
        for (kind, count) in COUNTS {
            let lasting = at_75_a_second(|now_s, one| *count(one) = now_s.clamp(10, 60) - 10);
            let found = found(lasting);
            assert!(found.iter().all(|(_, found)| *found == kind), "{found:?}");
            assert_eq!((found[0].0, found[found.len() - 1].0), (40, 68), "{}", kind.name());
        }
    }

    #[test]
    fn what_is_decided_without_a_store_that_is_down_is_found_at_once() {
        let down = |now_s: u64, one: &mut Signals| {
            one.stores_down = if now_s < 10 { vec![] } else { vec!["redis:1".to_owned()] };
            one.fallbacks = 75 * now_s.saturating_sub(8);
        };
        assert_eq!(found(at_75_a_second(down))[0], (10, Kind::Fallback));
        let breaker = |now_s: u64, one: &mut Signals| {
            one.breakers_open = vec!["redis:1".to_owned()];
            one.fallbacks = now_s;
        };
        assert_eq!(found(at_75_a_second(breaker))[0], (2, Kind::Fallback));
    }

    #[test]
    fn a_process_is_judged_by_its_own_counts() {
        let restarted = at_75_a_second(|now_s, one| {
            one.started_us = now_s / 30;
            one.fallbacks = 75 * now_s;
        });
        assert_eq!(found(restarted), [], "none of them lived for three spans");
    }

    #[test]
    fn a_node_of_an_older_release_counts_no_requests() {
        let older = at_75_a_second(|now_s, one| (one.requests, one.overloads) = (0, now_s));
        assert_eq!(found(older)[0], (30, Kind::Overload));
    }

    #[test]
    fn an_overload_is_put_down_to_its_reason() {
        let of = |change: fn(u64, &mut Signals)| {
            let mut shares = Shares::default();
            let looks = (0..).step_by(2).zip(at_75_a_second(change));
            let found = looks.flat_map(|(now_s, one)| shares.look(now_s, &[one], 0.001));
            found.last().map(|one| (one.summary, one.next)).unwrap()
        };
        let (late, next) = of(|now_s, one| {
            one.overloads = now_s;
            one.store = "redis:1".to_owned();
        });
        assert_eq!(late, "the store redis:1 answers 1 % of the requests of a too late");
        assert!(next.contains("store.timeout"), "{next}");
        let (full, next) = of(|now_s, one| (one.overloads, one.queue_full) = (now_s, now_s));
        assert_eq!(full, "the queue of a before the store is full for 1 % of its requests");
        assert!(next.contains("more requests wait"), "{next}");
        let (lags, next) = of(|now_s, one| one.own_lags = 3 * now_s);
        assert!(lags.starts_with("a has more requests than its cores can process: 4 %"), "{lags}");
        assert!(next.contains("nodes") && !next.contains("shard"), "{next}");
    }
}
