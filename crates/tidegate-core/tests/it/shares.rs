//! Shares of a limit over a network that loses, delays and repeats: what all holders spend together is counted here, and compared
//! with the limit and with what others do.

use proptest::prelude::*;
use tidegate_core::{Claim, Holder, Lender, Lending, Micros, Share, Timestamp, divide};

const TERM: Micros = Micros::from_secs(1);
const WINDOW_US: u64 = 10_000_000;
const START_US: u64 = 1_800_000_000_000_000;

/// Numbers from a seed.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// What the links do to a message.
#[derive(Clone, Copy)]
struct Links {
    delay_us: u64,
    lost_percent: u64,
    repeated_percent: u64,
}

enum Message {
    Claim { holder: usize, claim: Claim, made: Timestamp },
    Share { holder: usize, share: Share, claimed: Timestamp },
}

/// A fixed window whose hits are lent, its holders, and the messages between them.
struct World {
    random: Seeded,
    links: Links,
    limit: u64,
    window: u64,
    /// Hits of this window that the lender was told of, or counts as used.
    spent: u64,
    lender: Lender<usize>,
    holders: Vec<Holder>,
    asked_at: Vec<Option<Timestamp>>,
    on_the_way: Vec<(u64, Message)>,
    /// The oracle: hits that holders admitted in this window.
    admitted: u64,
    admitted_ever: u64,
}

impl World {
    fn new(seed: u64, limit: u64, holders: usize, links: Links) -> Self {
        let now = Timestamp::from_micros(START_US);
        World {
            random: Seeded(seed | 1),
            links,
            limit,
            window: START_US / WINDOW_US,
            spent: 0,
            lender: Lender::new(Lending::Hits, TERM, 100),
            holders: (0..holders).map(|_| Holder::new(TERM, now)).collect(),
            asked_at: vec![None; holders],
            on_the_way: Vec::new(),
            admitted: 0,
            admitted_ever: 0,
        }
    }

    fn turn_window(&mut self, now_us: u64) {
        if now_us / WINDOW_US != self.window {
            // What ends with its window is charged to that one, which is over.
            let _over = self.lender.expire(Timestamp::from_micros(now_us));
            self.window = now_us / WINDOW_US;
            self.spent = 0;
            self.admitted = 0;
        }
    }

    fn send(&mut self, now_us: u64, message: Message) {
        if self.random.below(100) < self.links.lost_percent {
            return;
        }
        let copies = 1 + u64::from(self.random.below(100) < self.links.repeated_percent);
        for _ in 0..copies {
            let arrives = now_us + 1 + self.random.below(self.links.delay_us.max(1));
            let copy = match &message {
                Message::Claim { holder, claim, made } => {
                    Message::Claim { holder: *holder, claim: *claim, made: *made }
                }
                Message::Share { holder, share, claimed } => {
                    Message::Share { holder: *holder, share: *share, claimed: *claimed }
                }
            };
            self.on_the_way.push((arrives, copy));
        }
    }

    fn deliver(&mut self, now_us: u64) {
        let now = Timestamp::from_micros(now_us);
        let (due, rest) = std::mem::take(&mut self.on_the_way).into_iter().partition(|(at, _)| *at <= now_us);
        self.on_the_way = rest;
        let due: Vec<(u64, Message)> = due;
        for (_, message) in due {
            match message {
                Message::Claim { holder, claim, made } => {
                    self.spent += self.lender.expire(now);
                    let capacity = self.limit.saturating_sub(self.spent);
                    let ends_in = Micros::new((self.window + 1) * WINDOW_US - now_us);
                    let (share, used) =
                        self.lender.renew(now, capacity, Some(ends_in), &holder, claim).unwrap();
                    self.spent += used;
                    self.send(now_us, Message::Share { holder, share, claimed: made });
                }
                Message::Share { holder, share, claimed } => {
                    self.holders[holder].receive(share, claimed);
                    self.asked_at[holder] = None;
                }
            }
        }
    }

    fn step(&mut self, now_us: u64, hits: &[u64]) {
        let now = Timestamp::from_micros(now_us);
        self.turn_window(now_us);
        self.deliver(now_us);
        for (holder, &hits) in hits.iter().enumerate() {
            for _ in 0..hits {
                if self.holders[holder].spend(now, 1) {
                    self.admitted += 1;
                    self.admitted_ever += 1;
                }
            }
            let waits = self.asked_at[holder].is_some_and(|asked| (now - asked).get() < TERM.get() / 4);
            if !waits && self.holders[holder].is_due(now) {
                let claim = self.holders[holder].claim(now);
                self.asked_at[holder] = Some(now);
                self.send(now_us, Message::Claim { holder, claim, made: now });
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn holders_never_spend_more_than_the_window_has(
        seed in any::<u64>(),
        limit in 0_u64..4_000,
        busy in 1_u64..8,
        holders in 1_usize..6,
        delay_us in 1_u64..1_500_000,
        lost_percent in 0_u64..60,
        repeated_percent in 0_u64..40,
    ) {
        let mut world = World::new(seed, limit, holders, Links { delay_us, lost_percent, repeated_percent });
        for step in 0..1_500 {
            let now_us = START_US + step * 20_000;
            let hits: Vec<u64> = (0..holders).map(|_| world.random.below(busy)).collect();
            world.step(now_us, &hits);
            prop_assert!(world.admitted <= limit, "{} of {limit} in one window", world.admitted);
        }
    }

    #[test]
    fn capacity_lent_never_exceeds_what_there_is(
        capacity in 0_u64..1_000,
        calls in prop::collection::vec((0_u8..8, 0_u64..2_000, any::<bool>(), prop_oneof![0_u64..700_000, 0_u64..20_000]), 1..200),
    ) {
        let mut lender = Lender::new(Lending::Capacity, TERM, 8);
        let mut now_us = START_US;
        // What each holder may believe: every share that it was sent and has not replaced, by its end.
        let mut believed: Vec<Option<(Share, u64)>> = vec![None; 8];
        for (holder, wants, arrives, wait_us) in calls {
            now_us += wait_us;
            let now = Timestamp::from_micros(now_us);
            prop_assert_eq!(lender.expire(now), 0, "capacity is not used up");
            let place = usize::from(holder);
            let holds = believed[place].map_or(0, |(share, _)| share.serial);
            let (share, used) = lender.renew(now, capacity, None, &holder, Claim { holds, used: 0, wants }).unwrap();
            prop_assert_eq!(used, 0);
            prop_assert!(share.ceiling <= wants);
            if arrives {
                believed[place] = Some((share, now_us + share.lasts.get()));
            }
            let in_use: u64 =
                believed.iter().flatten().filter(|(_, ends)| *ends > now_us).map(|(share, _)| share.ceiling).sum();
            prop_assert!(in_use <= capacity, "{in_use} of {capacity}");
        }
    }

    #[test]
    fn a_division_is_fair_and_leaves_nothing_that_is_wanted(
        capacity in any::<u64>(),
        wants in prop::collection::vec(prop_oneof![0_u64..100, any::<u64>()], 0..20),
    ) {
        let gets = divide(capacity, &wants);
        let wanted: u128 = wants.iter().map(|&want| u128::from(want)).sum();
        let given: u128 = gets.iter().map(|&get| u128::from(get)).sum();
        prop_assert_eq!(given, wanted.min(u128::from(capacity)));
        for (&get, &want) in gets.iter().zip(&wants) {
            prop_assert!(get <= want);
            let most = gets.iter().copied().max().unwrap_or(0);
            // Who did not get all it wants has at most one hit less than whoever got most.
            prop_assert!(get == want || get + 1 >= most);
        }
    }
}

/// Admitted hits of three holders over ten windows while the demand moves from one to the next every 20 s.
fn admitted_while_demand_moves(links: Links) -> (u64, u64, u64) {
    let limit = 9_000;
    let mut world = World::new(7, limit, 3, links);
    let mut static_thirds = 0;
    let mut thirds_used = [0_u64; 3];
    let steps_per_window = WINDOW_US / 10_000;
    for step in 0..10 * steps_per_window {
        if step % steps_per_window == 0 {
            thirds_used = [0; 3];
        }
        let busy = usize::try_from(step / (2 * steps_per_window)).unwrap() % 3;
        let hits: Vec<u64> = (0..3).map(|holder| if holder == busy { 12 } else { 1 }).collect();
        for (used, &hits) in thirds_used.iter_mut().zip(&hits) {
            let fits = hits.min((limit / 3).saturating_sub(*used));
            *used += fits;
            static_thirds += fits;
        }
        world.step(START_US + step * 10_000, &hits);
    }
    (world.admitted_ever, static_thirds, 10 * limit)
}

#[test]
fn nine_tenths_of_a_limit_are_used_while_demand_moves_between_holders() {
    let links = Links { delay_us: 160_000, lost_percent: 1, repeated_percent: 1 };
    let (lent, thirds, possible) = admitted_while_demand_moves(links);
    println!("lent in shares {lent}, static thirds {thirds}, of {possible}");
    assert!(lent * 10 >= possible * 9, "{lent} of {possible}");
    assert!(lent > thirds, "{lent} lent, {thirds} by thirds");
}

#[test]
fn a_holder_that_vanishes_keeps_its_share_no_longer_than_a_term() {
    let mut lender = Lender::new(Lending::Capacity, TERM, 8);
    let now = Timestamp::from_micros(START_US);
    let claim = Claim { holds: 0, used: 0, wants: 100 };
    assert_eq!(lender.renew(now, 100, None, &"gone", claim).unwrap().0.ceiling, 100);
    assert_eq!(lender.renew(now, 100, None, &"new", claim).unwrap().0.ceiling, 0);

    let _nothing = lender.expire(now + TERM);
    assert_eq!(lender.renew(now + TERM, 100, None, &"new", claim).unwrap().0.ceiling, 100);
}

#[test]
fn demand_that_moves_takes_the_capacity_along_within_two_renewals() {
    let mut lender = Lender::new(Lending::Capacity, TERM, 8);
    let mut now = Timestamp::from_micros(START_US);
    let renew = |lender: &mut Lender<&'static str>, now, holder, holds, wants| {
        let _nothing = lender.expire(now);
        lender.renew(now, 100, None, &holder, Claim { holds, used: 0, wants }).unwrap().0
    };
    let busy = renew(&mut lender, now, "a", 0, 100);
    assert_eq!(busy.ceiling, 100);

    now = now + Micros::from_millis(100);
    let newcomer = renew(&mut lender, now, "b", 0, 100);
    assert_eq!(newcomer.ceiling, 0, "all is lent");

    // The first renewal offers half, the second confirms it; then the newcomer has the other half.
    let smaller = renew(&mut lender, now, "a", busy.serial, 100);
    assert_eq!(smaller.ceiling, 50);
    let confirmed = renew(&mut lender, now, "a", smaller.serial, 100);
    assert_eq!(confirmed.ceiling, 50);
    assert_eq!(renew(&mut lender, now, "b", newcomer.serial, 100).ceiling, 50);
}

#[test]
fn more_holders_than_allowed_get_no_share() {
    let mut lender = Lender::new(Lending::Hits, TERM, 1);
    let now = Timestamp::from_micros(START_US);
    let claim = Claim { holds: 0, used: 0, wants: 1 };
    assert!(lender.renew(now, 100, None, &1, claim).is_some());
    assert!(lender.renew(now, 100, None, &2, claim).is_none());
    assert_eq!(lender.holders(), 1);
}

#[test]
fn capacity_that_is_handed_over_is_lent_once_and_ends_when_it_would_have() {
    let mut lender = Lender::new(Lending::Capacity, TERM, 8);
    let now = Timestamp::from_micros(START_US);
    let claim = |wants| Claim { holds: 0, used: 0, wants };
    assert_eq!(lender.renew(now, 100, None, &"old", claim(80)).unwrap().0.ceiling, 80);
    assert_eq!(lender.hand_over(&"old", &"new", 50), 50);
    assert_eq!(lender.lent(), 80);
    assert_eq!(lender.hand_over(&"old", &"other", 50), 30, "no more than it has");
    assert_eq!((lender.lent(), lender.hand_over(&"nobody", &"new", 1)), (80, 0));
    // With what is not lent, it may keep what it took.
    let later = now + Micros::from_millis(1);
    assert_eq!(lender.renew(later, 100, None, &"new", claim(90)).unwrap().0.ceiling, 70);
    assert_eq!(lender.lent(), 100);
    let _nothing = lender.expire(now + TERM);
    assert_eq!(lender.lent(), 70);
}

#[test]
fn a_share_ends_a_term_after_it_was_claimed_however_late_it_arrives() {
    let claimed = Timestamp::from_micros(START_US);
    let mut holder = Holder::new(TERM, claimed);
    let _claim = holder.claim(claimed);
    holder.receive(Share { serial: 1, ceiling: 10, lasts: TERM }, claimed);
    assert!(holder.spend(claimed + TERM.saturating_sub(Micros::ONE), 1));
    assert!(!holder.spend(claimed + TERM, 1), "the lender may have lent it to another");
}

#[test]
fn shares_whose_answers_were_lost_stay_lent_until_the_last_of_them_ends() {
    let mut lender = Lender::new(Lending::Capacity, TERM, 8);
    let now = Timestamp::from_micros(START_US);
    let claim = |wants| Claim { holds: 0, used: 0, wants };
    // The first ends last, and more follow than are remembered one by one.
    assert_eq!(lender.renew(now, 100, None, &"a", claim(100)).unwrap().0.ceiling, 100);
    for _ in 0..6 {
        let _lost = lender.renew(now, 100, Some(Micros::from_millis(1)), &"a", claim(1)).unwrap();
    }
    let later = now + Micros::from_millis(2);
    let _nothing = lender.expire(later);
    assert_eq!(lender.lent(), 100);
}

proptest! {
    #[test]
    fn what_is_wanted_and_unused_is_at_most_what_idle_holders_hold_and_nothing_once_their_shares_end(
        capacity in 1_u64..1_000,
        idle in prop::collection::vec(0_u64..400, 0..6),
    ) {
        let mut lender = Lender::new(Lending::Capacity, TERM, 8);
        let now = Timestamp::from_micros(START_US);
        let claim = |wants| Claim { holds: 0, used: 0, wants };
        let held: u64 = idle
            .iter()
            .enumerate()
            .map(|(holder, wants)| lender.renew(now, capacity, None, &holder, claim(*wants)).unwrap().0.ceiling)
            .sum();
        // They ask for nothing more, and one that wants everything comes.
        let busy = lender.renew(now, capacity, None, &100, claim(capacity)).unwrap().0;
        prop_assert!(capacity - busy.ceiling <= held, "{} of {capacity}, {held} held", busy.ceiling);
        let later = now + TERM;
        let _nothing = lender.expire(later);
        let all = lender.renew(later, capacity, None, &100, Claim { holds: busy.serial, used: 0, wants: capacity });
        prop_assert_eq!(all.unwrap().0.ceiling, capacity);
    }
}
