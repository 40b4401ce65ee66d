//! Redis Cluster: this process's view of which master serves a slot.
//!
//! Any member provides the map; every `MOVED` corrects it, and it is reloaded when a master does not answer. It is only
//! a guess: the member that receives a call knows better and redirects it.

use arc_swap::ArcSwap;
use redis::Value;

use crate::key::SLOTS;
use crate::url::Endpoint;

/// Which master serves which slot.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// The members named in the URL.
    seeds: Vec<Endpoint>,
    map: ArcSwap<SlotMap>,
}

/// The masters, and for each slot the index of its master.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotMap {
    masters: Vec<Endpoint>,
    /// The store node number of each master: stable while it is a master.
    nodes: Vec<usize>,
    slots: Vec<u16>,
}

/// Store nodes. Up to this many masters fail independently; beyond that, masters share nodes.
pub(crate) const NODES: usize = 32;

const NOBODY: u16 = u16::MAX;
/// Redis allows as many masters as slots; this map stops earlier.
const MOST_MASTERS: usize = 4_096;

impl Cluster {
    pub(crate) fn new(seeds: Vec<Endpoint>) -> Self {
        Cluster { seeds, map: ArcSwap::default() }
    }

    pub(crate) fn seeds(&self) -> &[Endpoint] {
        &self.seeds
    }

    /// The master of `slot`; none before the map is loaded or while the slot is not served.
    pub(crate) fn master_of(&self, slot: u16) -> Option<Endpoint> {
        self.map.load().master_of(slot).cloned()
    }

    /// The store node of the master of `slot`; 0 before the map is loaded.
    pub(crate) fn node_of(&self, slot: u16) -> usize {
        let map = self.map.load();
        map.place_of(slot).map_or(0, |place| map.nodes[place])
    }

    /// The master with this store node number.
    pub(crate) fn master_at(&self, node: usize) -> Option<Endpoint> {
        let map = self.map.load();
        map.nodes.iter().position(|its| *its == node).map(|place| map.masters[place].clone())
    }

    /// A slot of the master with this store node number.
    pub(crate) fn slot_for(&self, node: usize) -> Option<u16> {
        let map = self.map.load();
        (0..SLOTS).find(|slot| map.place_of(*slot).is_some_and(|place| map.nodes[place] == node))
    }

    /// Whether the map is loaded.
    pub(crate) fn is_known(&self) -> bool {
        !self.map.load().masters.is_empty()
    }

    /// One slot of each master.
    pub(crate) fn slot_per_master(&self) -> Vec<u16> {
        let map = self.map.load();
        let slot_of = |master: &Endpoint| (0..SLOTS).find(|slot| map.master_of(*slot) == Some(master));
        map.masters.iter().filter_map(slot_of).collect()
    }

    /// All members that may have the map: masters first.
    pub(crate) fn members(&self) -> Vec<Endpoint> {
        let mut members = self.map.load().masters.clone();
        for seed in &self.seeds {
            if !members.contains(seed) {
                members.push(seed.clone());
            }
        }
        members
    }

    /// From now on `master` serves `slot`.
    pub(crate) fn moved(&self, slot: u16, master: &Endpoint) {
        self.map.rcu(|map| {
            let mut map = SlotMap::clone(map);
            map.assign(slot..=slot, master);
            map.keep_nodes_of(&SlotMap::default());
            map
        });
    }

    pub(crate) fn learn(&self, map: SlotMap) {
        self.map.rcu(|known| {
            let mut map = map.clone();
            map.keep_nodes_of(known);
            map
        });
    }
}

impl SlotMap {
    /// Parses a `CLUSTER SLOTS` reply from `asked`: slot ranges, each with its master first.
    pub(crate) fn read(answer: &Value, asked: &Endpoint) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        let mut map = SlotMap::default();
        for range in ranges {
            let Value::Array(range) = range else { return None };
            let [Value::Int(from), Value::Int(to), Value::Array(master), ..] = &range[..] else {
                return None;
            };
            let [host, Value::Int(port), ..] = &master[..] else { return None };
            let host = match host {
                Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
                // A member that does not know its own address means the address at which it was asked.
                _ => asked.host.clone(),
            };
            let (from, to) = (u16::try_from(*from).ok()?, u16::try_from(*to).ok()?);
            if from > to || to >= SLOTS {
                return None;
            }
            map.assign(from..=to, &Endpoint { host, port: u16::try_from(*port).ok()? });
        }
        (!map.masters.is_empty()).then_some(map)
    }

    fn master_of(&self, slot: u16) -> Option<&Endpoint> {
        self.place_of(slot).map(|place| &self.masters[place])
    }

    /// The index of the slot's master.
    fn place_of(&self, slot: u16) -> Option<usize> {
        let place = usize::from(*self.slots.get(usize::from(slot))?);
        (place < self.masters.len()).then_some(place)
    }

    /// Known masters keep their node from `known`. New ones get a node not in use now or in `known`, so that they do
    /// not inherit the failure state of a master that is gone.
    fn keep_nodes_of(&mut self, known: &SlotMap) {
        for place in self.nodes.len()..self.masters.len() {
            let before = known.masters.iter().position(|master| *master == self.masters[place]);
            let is_free = |node: &usize| !self.nodes.contains(node) && !known.nodes.contains(node);
            let node = before.map(|before| known.nodes[before]).or_else(|| (0..NODES).find(is_free));
            self.nodes.push(node.unwrap_or(place % NODES));
        }
    }

    fn assign(&mut self, slots: std::ops::RangeInclusive<u16>, master: &Endpoint) {
        self.slots.resize(usize::from(SLOTS), NOBODY);
        let known = self.masters.iter().position(|known| known == master);
        if known.is_none() && self.masters.len() == MOST_MASTERS {
            return;
        }
        let place = known.unwrap_or_else(|| {
            self.masters.push(master.clone());
            self.masters.len() - 1
        });
        let place = u16::try_from(place).expect("bounded by the most masters");
        self.slots[usize::from(*slots.start())..=usize::from(*slots.end())].fill(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(port: u16) -> Endpoint {
        Endpoint { host: "10.0.0.1".to_owned(), port }
    }

    fn range(from: i64, to: i64, host: &[u8], port: i64) -> Value {
        let master = Value::Array(vec![Value::BulkString(host.to_vec()), Value::Int(port)]);
        Value::Array(vec![Value::Int(from), Value::Int(to), master])
    }

    fn learnt() -> Cluster {
        let cluster = Cluster::new(vec![endpoint(1), endpoint(2)]);
        let answer = Value::Array(vec![range(0, 99, b"10.0.0.1", 1), range(100, 16_383, b"", 3)]);
        cluster.learn(SlotMap::read(&answer, &endpoint(1)).expect("a map"));
        cluster
    }

    #[test]
    fn a_map_names_the_master_of_every_slot() {
        let cluster = learnt();
        assert_eq!(cluster.master_of(99), Some(endpoint(1)));
        assert_eq!(cluster.master_of(100), Some(endpoint(3)));
        assert_eq!(cluster.members(), [endpoint(1), endpoint(3), endpoint(2)]);
    }

    #[test]
    fn a_slot_that_moved_is_found_at_its_new_master() {
        let cluster = learnt();
        cluster.moved(7, &endpoint(9));
        assert_eq!(cluster.master_of(7), Some(endpoint(9)));
        assert_eq!(cluster.master_of(8), Some(endpoint(1)));
    }

    #[test]
    fn every_master_is_a_node_of_its_own_for_as_long_as_it_is_a_master() {
        let cluster = learnt();
        let (one, three) = (cluster.node_of(0), cluster.node_of(100));
        assert_ne!(one, three);
        assert_eq!((cluster.slot_for(three), cluster.master_at(three)), (Some(100), Some(endpoint(3))));
        // The first master is gone; another serves its slots.
        let answer = Value::Array(vec![range(0, 99, b"10.0.0.1", 4), range(100, 16_383, b"10.0.0.1", 3)]);
        cluster.learn(SlotMap::read(&answer, &endpoint(3)).expect("a map"));
        assert_eq!(cluster.node_of(100), three);
        assert!(![one, three].contains(&cluster.node_of(0)));
        assert_eq!((cluster.slot_for(one), cluster.master_at(one)), (None, None));
    }

    #[test]
    fn nothing_is_known_before_the_map_is() {
        let cluster = Cluster::new(vec![endpoint(1), endpoint(2)]);
        assert_eq!(cluster.master_of(0), None);
        assert_eq!(cluster.node_of(16_383), 0);
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_no_map() {
        for answer in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![range(5, 4, b"h", 1)]),
            Value::Array(vec![range(0, 16_384, b"h", 1)]),
            Value::Array(vec![range(0, 1, b"h", 70_000)]),
            Value::Array(vec![Value::Int(3)]),
        ] {
            assert!(SlotMap::read(&answer, &endpoint(1)).is_none(), "{answer:?}");
        }
    }
}
