//! The connections of one listener, and which one leaves when there is no room for another.
//!
//! An address may hold four times as many connections as are free: alone it gets four fifths of a listener, two get four
//! ninths each, and there is always room for a new address. Beyond its share, or if nothing is free, a new connection takes
//! the seat of one without requests in flight: first of the same address, and if nothing is free, of an address that holds no
//! less. Seats are searched in turn (as in the clock algorithm of a page cache), so that the newest leave last.

use std::collections::HashMap;
use std::sync::Arc;

use crate::guesses::PeerGroup;

/// The share of an address, as a multiple of the free seats.
const SHARE: usize = 4;

/// An open connection, as the register sees it.
pub trait Occupant {
    /// Whose it is.
    fn peer(&self) -> PeerGroup;

    /// Whether it has no request in flight and was not used since the last call.
    fn could_leave(&self) -> bool;

    /// Records that another connection took its seat.
    fn set_removed(&self);
}

/// The connections of one listener.
#[derive(Debug)]
pub struct Register<S> {
    seats: Vec<Option<Arc<S>>>,
    vacant: Vec<usize>,
    /// Connections by address; at most as many entries as taken seats.
    peers: HashMap<PeerGroup, usize>,
    /// The clock hand: where the search for a seat to take continues.
    hand: usize,
    most: usize,
    most_per_peer: usize,
}

/// How a new connection may be seated.
#[derive(Debug)]
pub enum Room<S> {
    /// On a seat that is free.
    Free,
    /// This one was removed from the register, and must be asked to leave.
    InPlaceOf(Arc<S>),
    /// Not at all: nobody can leave.
    None,
}

impl<S: Occupant> Register<S> {
    /// Of at most `most` connections, and `most_per_peer` of one address.
    #[must_use]
    pub fn new(most: usize, most_per_peer: usize) -> Self {
        Register {
            seats: Vec::new(),
            vacant: Vec::new(),
            peers: HashMap::new(),
            hand: 0,
            most,
            most_per_peer,
        }
    }

    fn taken(&self) -> usize {
        self.seats.len() - self.vacant.len()
    }

    fn held_by(&self, peer: PeerGroup) -> usize {
        self.peers.get(&peer).copied().unwrap_or(0)
    }

    /// Whether there is room for one more connection of `peer` without removing another.
    #[must_use]
    pub fn look_for_room(&self, peer: PeerGroup) -> Room<S> {
        let free = self.most - self.taken();
        match free > 0 && self.held_by(peer) < self.most_per_peer.min(free.saturating_mul(SHARE)) {
            true => Room::Free,
            false => Room::None,
        }
    }

    /// Makes room for one more connection of `peer`: a free seat, or another connection's.
    pub fn make_room(&mut self, peer: PeerGroup) -> Room<S> {
        if let Room::Free = self.look_for_room(peer) {
            return Room::Free;
        }
        let (held, is_full) = (self.held_by(peer), self.taken() >= self.most);
        let mut leaver = self.find(|seat, _| seat.peer() == peer);
        if leaver.is_none() && is_full && held < self.most_per_peer {
            leaver = self.find(|seat, peers| peers.get(&seat.peer()).is_some_and(|other| *other >= held));
        }
        match leaver {
            Some(at) => {
                let seat = self.seats[at].clone().expect("the hand stopped at a seat that is taken");
                self.remove(at);
                seat.set_removed();
                Room::InPlaceOf(seat)
            }
            None => Room::None,
        }
    }

    /// The next seat that may be taken. Two rounds: the first clears the marks of use.
    fn find(&mut self, may_leave: impl Fn(&S, &HashMap<PeerGroup, usize>) -> bool) -> Option<usize> {
        for _ in 0..self.seats.len() * 2 {
            let at = self.hand % self.seats.len();
            self.hand = at + 1;
            if let Some(seat) = &self.seats[at]
                && may_leave(seat, &self.peers)
                && seat.could_leave()
            {
                return Some(at);
            }
        }
        None
    }

    /// Seats a connection; returns its index.
    pub fn insert(&mut self, seat: Arc<S>) -> usize {
        *self.peers.entry(seat.peer()).or_default() += 1;
        match self.vacant.pop() {
            Some(at) => {
                self.seats[at] = Some(seat);
                at
            }
            None => {
                self.seats.push(Some(seat));
                self.seats.len() - 1
            }
        }
    }

    /// Frees the seat at `at`.
    pub fn remove(&mut self, at: usize) {
        let Some(seat) = self.seats[at].take() else { return };
        self.vacant.push(at);
        if let Some(held) = self.peers.get_mut(&seat.peer()) {
            *held -= 1;
            if *held == 0 {
                self.peers.remove(&seat.peer());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const ALICE: [u8; 4] = [10, 0, 0, 1];
    const BOB: [u8; 4] = [10, 0, 0, 2];

    #[derive(Debug)]
    struct Seat {
        peer: PeerGroup,
        busy: AtomicBool,
        used: AtomicBool,
    }

    impl Occupant for Seat {
        fn peer(&self) -> PeerGroup {
            self.peer
        }

        fn could_leave(&self) -> bool {
            !self.busy.load(Ordering::Relaxed) && !self.used.swap(false, Ordering::Relaxed)
        }

        fn set_removed(&self) {}
    }

    fn seat(address: [u8; 4]) -> Arc<Seat> {
        let [busy, used] = [false; 2].map(AtomicBool::new);
        Arc::new(Seat { peer: PeerGroup::of(IpAddr::from(address)), busy, used })
    }

    fn set_busy(seats: &[Arc<Seat>], busy: bool) {
        seats.iter().for_each(|seat| seat.busy.store(busy, Ordering::Relaxed));
    }

    /// Seats connections of `address` as long as none has to leave.
    fn fill(register: &mut Register<Seat>, address: [u8; 4]) -> Vec<Arc<Seat>> {
        let mut seats = Vec::new();
        while let Room::Free = register.look_for_room(PeerGroup::of(IpAddr::from(address))) {
            seats.push(seat(address));
            register.insert(Arc::clone(seats.last().unwrap()));
        }
        seats
    }

    fn leaver(room: Room<Seat>) -> Arc<Seat> {
        match room {
            Room::InPlaceOf(seat) => seat,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_address_leaves_a_fifth_for_others_and_two_a_ninth() {
        let mut register = Register::new(90, usize::MAX);
        assert_eq!(fill(&mut register, ALICE).len(), 72);
        assert_eq!(fill(&mut register, BOB).len(), 15);
        assert!(matches!(register.make_room(PeerGroup::of(IpAddr::from([10, 0, 0, 3]))), Room::Free));
    }

    #[test]
    fn an_address_can_be_given_a_smaller_share() {
        assert_eq!(fill(&mut Register::new(100, 7), ALICE).len(), 7);
    }

    #[test]
    fn beyond_its_share_an_address_takes_the_seat_of_its_own_oldest_idle_connection() {
        let mut register = Register::new(20, usize::MAX);
        let others = fill(&mut register, BOB);
        set_busy(&others, true);
        let own = fill(&mut register, ALICE);
        set_busy(&own[..1], true);
        let left = leaver(register.make_room(own[0].peer()));
        assert!(Arc::ptr_eq(&left, &own[1]));
        set_busy(&others, false);
        // Bob's are idle now, but Alice must not take Bob's share.
        register.insert(seat(ALICE));
        assert_eq!(leaver(register.make_room(own[0].peer())).peer(), own[0].peer());
    }

    #[test]
    fn who_holds_nothing_takes_any_idle_seat_where_none_is_free() {
        let mut register = Register::new(2, usize::MAX);
        let seats = fill(&mut register, ALICE);
        assert_eq!(seats.len(), 2);
        let left = leaver(register.make_room(PeerGroup::of(IpAddr::from(BOB))));
        assert!(Arc::ptr_eq(&left, &seats[0]));
    }

    #[test]
    fn who_has_nothing_idle_takes_from_who_holds_no_less() {
        let mut register = Register::new(3, usize::MAX);
        let [alice, bob, carol] = [ALICE, BOB, [10, 0, 0, 3]].map(seat);
        for seat in [&alice, &bob, &carol] {
            register.insert(Arc::clone(seat));
        }
        set_busy(std::slice::from_ref(&alice), true);
        assert!(Arc::ptr_eq(&leaver(register.make_room(alice.peer())), &bob));
        let second = seat(ALICE);
        register.insert(Arc::clone(&second));
        set_busy(&[second], true);
        assert!(matches!(register.make_room(alice.peer()), Room::None), "carol holds less");
    }

    #[test]
    fn who_was_used_since_the_last_round_is_passed_over_once() {
        let mut register = Register::new(2, usize::MAX);
        let seats = fill(&mut register, ALICE);
        seats[0].used.store(true, Ordering::Relaxed);
        let left = leaver(register.make_room(PeerGroup::of(IpAddr::from(BOB))));
        assert!(Arc::ptr_eq(&left, &seats[1]));
    }

    #[test]
    fn nobody_leaves_with_a_request_under_way() {
        let mut register = Register::new(2, usize::MAX);
        let seats = fill(&mut register, ALICE);
        set_busy(&seats, true);
        assert!(matches!(register.make_room(PeerGroup::of(IpAddr::from(BOB))), Room::None));
    }
}
