//! A fault under load, its end, and what must be true of every answer meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::redis_world::{
    Asked, DEFAULT, LOCAL_ASKS, LOCAL_LIMIT, Load, Node, Outcome, POLICY_RULES, RECOVERED, assert_exact,
    look, pass, tell,
};

/// How long load goes on before a fault.
const CALM: Duration = Duration::from_millis(300);
/// After a server fell silent, requests under way and the breaker take at most this long.
pub(crate) const NOTICED: Duration = Duration::from_millis(500);
/// One that answers, and always too late, may only be busy: that takes longer to tell.
pub(crate) const TOO_SLOW: Duration = Duration::from_millis(2_500);

/// Whether the store remembers after a fault what it knew before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Kept,
    Lost,
}

/// How much of the store is away.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Nobody is answered.
    All,
    /// Some users are not; the others do not notice.
    Some,
}

/// A store that stops answering for a while.
pub(crate) struct Outage<'o> {
    pub(crate) what: &'o str,
    /// The store's URL.
    pub(crate) url: String,
    pub(crate) lasts: Duration,
    /// After so long everybody is answered by policy.
    pub(crate) noticed: Duration,
    pub(crate) memory: Memory,
    pub(crate) reach: Reach,
}

impl Outage<'_> {
    /// Loads two nodes, begins the fault, ends it after a while, and looks at every answer. What a machine that stands
    /// still for a moment explains is an error, to be tried again; what nothing explains is a panic.
    pub(crate) fn run(&self, begin: impl Fn(), end: impl Fn()) -> Result<(), String> {
        let what = self.what;
        let nodes = Node::pair(&self.url, DEFAULT, POLICY_RULES);
        // Enough users that some have lost their server, and some have not.
        let each = if self.reach == Reach::All { 2 } else { 4 };
        let load = Load::start(&nodes.each_ref(), each);
        pass(CALM);
        let began = load.at();
        begin();
        pass(self.lasts);
        for node in &nodes {
            assert!(node.readyz().starts_with("degraded\n"), "{what}: {}", node.readyz());
            assert!(node.metric_sum("tidegate_breaker_state{") > 0.0, "{what}: no breaker is open");
        }
        let over = load.at();
        end();
        let back = load.at();
        pass(RECOVERED);
        assert_exact(&nodes.each_ref(), what);
        let lasted = load.at();
        let outcome = load.finish();

        let meanwhile = outcome.between(began + self.noticed, over);
        let away = meanwhile.iter().filter(|one| one.answer.is_fallback()).count();
        tell!("{what}: {away} of {} answers by policy", meanwhile.len());
        match self.reach {
            Reach::All => {
                let other = meanwhile.iter().find(|one| !one.answer.is_fallback());
                assert!(other.is_none(), "{what}: the store is away for everybody: {other:?}");
            }
            Reach::Some => assert_by_user(what, &meanwhile),
        }
        assert_local_users_got_their_share(&outcome, began + self.noticed, over);
        assert_one_line_per_change(what, &nodes, lasted);
        if self.memory == Memory::Kept {
            assert_charged_once(what, &outcome, &nodes);
        }
        outcome.is_prompt(what)?;
        outcome.is_exact_again(what, back)?;
        outcome.obeys(what, began..back + RECOVERED)
    }
}

/// Each user has a home: either the store is away for it throughout, or never; on a busy machine some are late. There must
/// be some of each.
fn assert_by_user(what: &str, meanwhile: &[&Asked]) {
    let mut users: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for one in meanwhile.iter().filter(|one| one.policy != "local") {
        let (here, away) = users.entry(&one.user).or_default();
        *(if one.answer.is_fallback() { away } else { here }) += 1;
    }
    let away = users.values().filter(|(_, away)| *away > 0).count();
    tell!("{what}: the store is away for {away} of {} users", users.len());
    assert!(0 < away && away < users.len(), "{what}: {users:?}");
    assert!(users.values().all(|(here, away)| *here == 0 || *away == 0), "{what}: {users:?}");
}

/// A user that is new during an outage has its share of the limit on the node it asks: half of two.
fn assert_local_users_got_their_share(outcome: &Outcome, from: Duration, to: Duration) {
    let mut users: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
    let local = |one: &&Asked| one.policy == "local" && one.answer.is_fallback();
    for one in outcome.between(from, to).into_iter().filter(local) {
        users.entry(&one.user).or_default().push(one.answer.allowed);
    }
    let whole: Vec<&Vec<bool>> = users.values().filter(|asked| asked.len() == LOCAL_ASKS).collect();
    assert!(whole.len() > 5, "too few users to tell: {}", whole.len());
    let share = LOCAL_LIMIT.div_ceil(2);
    for asked in whole {
        let expected: Vec<bool> = (0..LOCAL_ASKS).map(|turn| turn < share).collect();
        assert_eq!(*asked, expected);
    }
}

/// A breaker says when it opens and when it closes. A fault that lets some answers through, or a machine that is too busy,
/// may open it now and again; hundreds of requests a second must not show.
fn assert_one_line_per_change(what: &str, nodes: &[Node], lasted: Duration) {
    let most = 4 * usize::try_from(lasted.as_secs()).expect("a short test");
    for node in nodes {
        let lines = |text: &str| node.server.stderr().matches(text).count();
        let (lost, found) = (lines("the store does not answer: rules"), lines("the store answers again"));
        assert!(
            (1..=most).contains(&lost) && lost.abs_diff(found) <= 1,
            "{what}: {lost} and {found} lines for one outage"
        );
        let charged = lines("are now charged to it");
        assert!(charged <= 2 * lost, "{what}: {charged} lines of what was charged, for {lost} outages");
    }
}

/// What the store has on its books is what it admitted, and at most one hit more for each request whose answer was lost:
/// nothing is sent twice. Such a request waited for the store in vain, or the connection broke under it. (Users of `local`
/// are left out: what they spend meanwhile is charged later.)
fn assert_charged_once(what: &str, outcome: &Outcome, nodes: &[Node]) {
    let asked = || outcome.asked.iter().filter(|one| one.policy != "local");
    let admitted = asked().filter(|one| one.answer.allowed && one.answer.is_exact()).count() as i64;
    let in_vain = |one: &&Asked| !one.answer.is_exact() && one.took >= Duration::from_millis(5);
    let broken = |node: &Node| node.metric("tidegate_store_errors_total{reason=\"fate_unknown\"}") as i64;
    // What an open rule lets pass while the store is late is charged, whether or not the call that it waited for was.
    let let_pass = asked().filter(|one| one.answer.source == "overload_open").count() as i64;
    let unknown = asked().filter(in_vain).count() as i64 + nodes.iter().map(broken).sum::<i64>() + let_pass;
    let users: BTreeSet<(&str, &str)> = asked().map(|one| (one.policy, one.user.as_str())).collect();
    let mut client = nodes[0].client();
    let mut left = |(policy, user)| look(&mut client, &[("policy", policy), ("user", user)]).remaining;
    let spent: i64 = users.into_iter().map(|user| 1_000_000 - left(user)).sum();
    let lost = spent - admitted;
    tell!("{what}: {admitted} admitted, {lost} more charged, {unknown} answers lost");
    assert!(
        (0..=unknown).contains(&lost),
        "{what}: {lost} more charged than admitted, {unknown} answers lost"
    );
}
