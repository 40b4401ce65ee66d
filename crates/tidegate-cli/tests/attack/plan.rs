//! Rules, the cells they make, and requests that touch them.

use std::time::Duration;

use crate::history::Cell;
use crate::limit::{Limit, Rate};
use crate::random::Random;

/// Rules of the domain `api`, and every request that an attack makes of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) rules: Vec<Rule>,
    pub(crate) cells: Vec<Cell>,
    pub(crate) shapes: Vec<Shape>,
    /// Which limit of which rule each cell belongs to.
    cell_of: Vec<(usize, String, usize)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) name: String,
    /// Requests with this value of the attribute `case` match.
    case: String,
    key: &'static str,
    pub(crate) limits: Vec<Limit>,
    policy: &'static str,
}

/// A request: what is sent, and the cells it touches.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) attributes: Vec<(&'static str, String)>,
    pub(crate) cells: Vec<usize>,
}

impl Shape {
    /// The request over the Redis protocol.
    pub(crate) fn words(&self, cost: u64) -> Vec<String> {
        let mut words = ["TG.CHECK", "api", "COST"].map(str::to_owned).to_vec();
        words.push(cost.to_string());
        words.extend(self.attributes.iter().flat_map(|(name, value)| [(*name).to_owned(), value.clone()]));
        words
    }
}

/// What a random plan may have in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taste {
    pub(crate) policies: &'static [&'static str],
    pub(crate) windows: &'static [Duration],
    pub(crate) leases: bool,
    pub(crate) count_refused: bool,
}

pub(crate) const BRIEF: &[Duration] =
    &[Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(3_600)];

impl Plan {
    /// Some rules, each with one or two limits and a few users; in some cases also one for the tenant.
    pub(crate) fn random(random: &mut Random, taste: &Taste) -> Self {
        let mut plan = Plan::default();
        for case in 0..3 + random.below(3) {
            let case = format!("case{case}");
            let policy = random.pick(taste.policies);
            let limits = (0..1 + random.below(2)).map(|_| any_limit(random, taste)).collect();
            let tenants = random.percent(40).then(|| vec![any_counter(random, taste)]);
            plan.add(&case, policy, limits, tenants, 1 + random.below(4));
        }
        plan
    }

    /// One rule, one limit, one policy.
    pub(crate) fn of(limit: Limit, policy: &'static str, users: usize) -> Self {
        let mut plan = Plan::default();
        plan.add("case", policy, vec![limit], None, users);
        plan
    }

    /// Rules with these limits, all of which every request of every user must pass.
    pub(crate) fn of_rules(rules: &[Vec<Limit>], users: usize) -> Self {
        let mut plan = Plan::default();
        let rule = |(number, limits): (usize, &Vec<Limit>)| Rule {
            name: format!("rule{number}"),
            case: "case".to_owned(),
            key: "user",
            limits: limits.clone(),
            policy: "local",
        };
        plan.rules = rules.iter().enumerate().map(rule).collect();
        for user in 0..users {
            let user = format!("u{user}");
            let cells = plan.rules.clone().iter().flat_map(|rule| plan.cells_of(rule, &user)).collect();
            plan.shapes.push(Shape { attributes: vec![("case", "case".to_owned()), ("user", user)], cells });
        }
        plan
    }

    /// Adds rules for requests of `case`, and those requests for each user.
    pub(crate) fn add(
        &mut self,
        case: &str,
        policy: &'static str,
        limits: Vec<Limit>,
        tenants: Option<Vec<Limit>>,
        users: usize,
    ) {
        let rule = |name: &str, key, limits| Rule {
            name: format!("{case}-{name}"),
            case: case.to_owned(),
            key,
            limits,
            policy,
        };
        let mut limits = limits;
        // Two limits of one kind in a rule would need names of their own, and so would two sliding ones.
        let slides = |limit: &Limit| matches!(limit, Limit::SlidingWindow { .. } | Limit::SlidingLog { .. });
        limits.dedup_by(|a, b| {
            std::mem::discriminant(a) == std::mem::discriminant(b) || slides(a) && slides(b)
        });
        let per_user = rule("user", "user", limits);
        let per_tenant = tenants.map(|limits| rule("tenant", "tenant", limits));
        let tenant = per_tenant.as_ref().map(|rule| self.cells_of(rule, "t"));
        for user in 0..users {
            let user = format!("u{user}");
            let mut cells = self.cells_of(&per_user, &user);
            cells.extend(tenant.iter().flatten());
            let mut attributes = vec![("case", case.to_owned()), ("user", user)];
            attributes.extend(tenant.as_ref().map(|_| ("tenant", "t".to_owned())));
            self.shapes.push(Shape { attributes, cells });
        }
        self.rules.push(per_user);
        self.rules.extend(per_tenant);
    }

    fn cells_of(&mut self, rule: &Rule, key: &str) -> Vec<usize> {
        let cells = rule
            .limits
            .iter()
            .map(|limit| Cell::new(format!("{} of {key} ({})", rule.name, limit.yaml()), limit.clone()));
        let first = self.cells.len();
        self.cells.extend(cells);
        self.cell_of.extend((0..rule.limits.len()).map(|place| (first + place, rule.name.clone(), place)));
        (first..self.cells.len()).collect()
    }

    /// The same rules, with another number in the limits of one of them.
    pub(crate) fn set_numbers(&mut self, rule: usize, number: u64) {
        let rule = &mut self.rules[rule];
        for limit in &mut rule.limits {
            limit.set_number(number);
        }
        for (cell, of, place) in &mut self.cell_of {
            if *of == rule.name {
                self.cells[*cell].limit = rule.limits[*place].clone();
            }
        }
    }

    /// The rules as a file holds them, below `rules:`.
    pub(crate) fn yaml(&self) -> String {
        let rules = self.rules.iter().map(|rule| {
            let Rule { name, case, key, limits, policy } = rule;
            let limits: Vec<String> = limits.iter().map(Limit::yaml).collect();
            let limits = limits.join(", ");
            format!("- {{ name: {name}, match: {{ case: {case} }}, key: [{key}], on_store_failure: {policy}, limits: [{limits}] }}\n")
        });
        rules.collect()
    }

    /// Whether requests of `shape` take leases.
    pub(crate) fn takes_leases(&self, shape: usize) -> bool {
        let of_leases = |cell: &usize| matches!(self.cells[*cell].limit, Limit::Concurrency { .. });
        self.shapes[shape].cells.iter().any(of_leases)
    }
}

const NUMBERS: [u64; 6] = [1, 2, 5, 20, 100, 1_000];

fn any_counter(random: &mut Random, taste: &Taste) -> Limit {
    let (limit, window) = (random.pick(&NUMBERS), random.pick(taste.windows));
    let rate = Rate { count: random.pick(&NUMBERS), period: window };
    match random.below(4) {
        0 => Limit::TokenBucket { burst: limit, rate },
        1 => Limit::FixedWindow { limit, window },
        2 => Limit::SlidingWindow { limit, window },
        _ => Limit::SlidingLog { limit, window, min_interval: Duration::ZERO, count_refused: false },
    }
}

fn any_limit(random: &mut Random, taste: &Taste) -> Limit {
    let (limit, window) = (random.pick(&NUMBERS), random.pick(taste.windows));
    match random.below(8) {
        0 => Limit::LeakyBucket { rate: Rate { count: limit, period: window } },
        1 => Limit::SlidingLog {
            limit,
            window,
            min_interval: Duration::from_millis(if random.percent(50) { 0 } else { 50 }),
            count_refused: taste.count_refused && random.percent(50),
        },
        2 | 3 if taste.leases => Limit::Concurrency {
            limit,
            ttl: random.pick(&[Duration::from_secs(2), Duration::from_secs(600)]),
            count_refused: taste.count_refused && random.percent(30),
        },
        _ => any_counter(random, taste),
    }
}
