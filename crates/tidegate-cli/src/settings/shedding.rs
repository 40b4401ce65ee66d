//! The `shedding:` section: its shape, its validation, and the resulting settings.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tidegate_core::Micros;
use tidegate_limiter::{Capacity, Classes, Gradient2Config, LevelConfig, Percent, ShedderConfig, Thresholds};

use super::values::{Count, Span};
use crate::failure::Failure;

/// Load shedding; off by default
///
/// Utilization is counted by the proxy, with `workers` or `adaptive`, or reported by posts to /v1/utilization.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Shedding {
    /// How many requests of this node the service can handle at once
    workers: Option<Count>,
    /// Instead of `workers`: estimate it from response times
    adaptive: Option<Adaptive>,
    /// Utilization above which a class is shed at once; P0 is never shed
    thresholds: ClassThresholds,
    /// Utilization in percent below which shedding decreases: 70 by default
    calm_below: Option<Count>,
    /// Utilization in percent above which shedding increases, P3 first: 80 by default
    busy_above: Option<Count>,
    /// Time from shedding nothing to shedding everything but P0, with all workers busy: 2m by default
    full_after: Option<Span>,
    /// Priorities of requests without a rule that sets one
    classes: DefaultClasses,
    /// The `Retry-After` of a shed request: 1s by default
    retry_after: Option<Span>,
    /// How long a report to /v1/utilization is valid: 10s by default
    report_lasts: Option<Span>,
}

/// Estimates how many requests a service can handle at once
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Adaptive {
    /// The first estimate: 20 by default
    initial: Option<Count>,
    /// The least: 4 by default
    min: Option<Count>,
    /// The most: 1000 by default
    max: Option<Count>,
}

/// Percentages of busy workers
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ClassThresholds {
    /// 90 by default
    #[serde(rename = "P1")]
    p1: Option<Count>,
    /// 80 by default
    #[serde(rename = "P2")]
    p2: Option<Count>,
    /// 70 by default
    #[serde(rename = "P3")]
    p3: Option<Count>,
}

/// Priorities of requests without a rule that sets one: critical paths P0, background paths and tests P3, writes P1, reads P2
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct DefaultClasses {
    /// Paths that are P0, each with everything below it
    critical: Vec<String>,
    /// Paths that are P3, each with everything below it
    background: Vec<String>,
    /// Attributes whose value marks a test, which is P3: mode: test by default
    test: Option<BTreeMap<String, String>>,
    /// The priority of writes: P1 by default
    writes: Option<Priority>,
    /// The priority of reads: P2 by default
    reads: Option<Priority>,
}

/// How critical traffic is
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
enum Priority {
    P0,
    P1,
    P2,
    P3,
}

impl From<Priority> for tidegate_rules::Priority {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::P0 => tidegate_rules::Priority::P0,
            Priority::P1 => tidegate_rules::Priority::P1,
            Priority::P2 => tidegate_rules::Priority::P2,
            Priority::P3 => tidegate_rules::Priority::P3,
        }
    }
}

impl Shedding {
    /// The resulting settings, or what is invalid.
    pub(crate) fn settings(&self) -> Result<ShedderConfig, Failure> {
        let mut config = ShedderConfig::new(self.capacity()?);
        let percentages = [70, 80].map(|percent| Percent::new(percent).expect("not above 100"));
        let calm_below = percent("calm_below", self.calm_below, percentages[0])?;
        let busy_above = percent("busy_above", self.busy_above, percentages[1])?;
        let full_after = self.full_after.map_or(Micros::from_secs(120), micros);
        config.thresholds = self.thresholds.settings(config.thresholds)?;
        config.level = LevelConfig::new(calm_below, busy_above, full_after)
            .map_err(|error| Failure::new(format!("shedding: {error}")))?;
        config.classes = self.classes.settings(config.classes)?;
        config.retry_after = self.retry_after.map_or(config.retry_after, micros);
        config.report_lasts = self.report_lasts.map_or(config.report_lasts, micros);
        Ok(config)
    }

    fn capacity(&self) -> Result<Capacity, Failure> {
        match (self.workers, &self.adaptive) {
            (Some(_), Some(_)) => {
                Err(wrong("workers", "they are given, and yet `adaptive` is to find out how many there are")
                    .hint("remove one of the two"))
            }
            (Some(Count(workers)), None) => Ok(Capacity::Workers(workers)),
            (None, Some(adaptive)) => adaptive.settings().map(Capacity::Adaptive),
            (None, None) => Ok(Capacity::Reported),
        }
    }
}

impl Adaptive {
    fn settings(&self) -> Result<Gradient2Config, Failure> {
        let mut config = Gradient2Config::default();
        let number = |given: Option<Count>, default: usize| given.map_or(default, |Count(count)| count.get());
        let (min, max) = (number(self.min, config.min), number(self.max, config.max));
        if min > max {
            return Err(wrong("adaptive", format!("min {min} is above max {max}")).hint("exchange the two"));
        }
        (config.initial, config.min, config.max) = (number(self.initial, config.initial), min, max);
        Ok(config)
    }
}

impl ClassThresholds {
    fn settings(&self, default: Thresholds) -> Result<Thresholds, Failure> {
        let mut thresholds = default;
        thresholds.p1 = percent("thresholds.P1", self.p1, default.p1)?;
        thresholds.p2 = percent("thresholds.P2", self.p2, default.p2)?;
        thresholds.p3 = percent("thresholds.P3", self.p3, default.p3)?;
        let Thresholds { p1, p2, p3, .. } = thresholds;
        if p3 > p2 || p2 > p1 {
            let found =
                format!("P3 {p3}, P2 {p2}, P1 {p1}: a class would be shed before one that matters less");
            return Err(wrong("thresholds", found).hint("P3 first, then P2, then P1: such as 70, 80, 90"));
        }
        Ok(thresholds)
    }
}

impl DefaultClasses {
    fn settings(&self, default: Classes) -> Result<Classes, Failure> {
        for path in self.critical.iter().chain(&self.background) {
            if !path.starts_with('/') || path.contains(['*', '?', '#']) {
                return Err(wrong("classes", format!("`{path}` is no path"))
                    .hint("it begins with a slash, and stands for everything below it"));
            }
        }
        Ok(Classes {
            critical: self.critical.clone(),
            background: self.background.clone(),
            test: self.test.as_ref().map_or(default.test, |test| test.clone().into_iter().collect()),
            writes: self.writes.map_or(default.writes, Into::into),
            reads: self.reads.map_or(default.reads, Into::into),
        })
    }
}

fn percent(field: &str, given: Option<Count>, default: Percent) -> Result<Percent, Failure> {
    let Some(Count(number)) = given else { return Ok(default) };
    let percent = u8::try_from(number.get()).ok().and_then(Percent::new);
    percent.ok_or_else(|| wrong(field, format!("{number} is no percentage")).hint("write 1 to 100"))
}

fn micros(Span(span): Span) -> Micros {
    span.into()
}

fn wrong(field: &str, why: impl std::fmt::Display) -> Failure {
    Failure::new(format!("shedding.{field}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Shedding {
        serde_saphyr::from_str(text).unwrap()
    }

    #[test]
    fn every_section_in_the_guide_makes_sense() {
        let guide = include_str!("../../../../docs/guides/shedding.md");
        let blocks = guide.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let sections: Vec<&str> = blocks.filter(|block| block.starts_with("shedding:")).collect();
        assert!(sections.len() >= 3, "only {} found", sections.len());
        for section in sections {
            let config: super::super::Config = serde_saphyr::from_str(section).unwrap();
            config.shedding.expect("it begins with it").settings().unwrap_or_else(|_| panic!("{section}"));
        }
    }

    #[test]
    fn nothing_said_is_what_stripe_found_to_work() {
        let settings = Shedding::default().settings().unwrap();
        assert_eq!((settings.thresholds, settings.level), (Thresholds::default(), LevelConfig::default()));
        assert_eq!((settings.capacity, settings.classes), (Capacity::Reported, Classes::default()));
    }

    #[test]
    fn what_is_said_is_what_is_done() {
        let settings = read(
            "{ workers: 20, thresholds: { P1: 95, P3: 50 }, full_after: 10s, retry_after: 3s,
               classes: { critical: [/pay], test: { tier: sandbox }, reads: P3 } }",
        )
        .settings()
        .unwrap();
        assert_eq!(settings.capacity, Capacity::Workers(20.try_into().unwrap()));
        let Thresholds { p1, p2, p3, .. } = settings.thresholds;
        assert_eq!([p1.get(), p2.get(), p3.get()], [95, 80, 50]);
        assert_eq!(settings.retry_after, Micros::from_secs(3));
        let class = |entries: &[(&str, &[u8])]| settings.classes.class_of(entries);
        assert_eq!(class(&[("path", b"/pay/1")]), tidegate_rules::Priority::P0);
        assert_eq!(class(&[("method", b"POST"), ("tier", b"sandbox")]), tidegate_rules::Priority::P3);
        assert_eq!(class(&[("method", b"GET")]), tidegate_rules::Priority::P3);
    }

    #[test]
    fn what_makes_no_sense_is_named_with_a_way_out() {
        for (text, says) in [
            ("{ workers: 2, adaptive: {} }", "shedding.workers"),
            ("{ adaptive: { min: 9, max: 3 } }", "min 9 is above max 3"),
            ("{ thresholds: { P3: 85 } }", "a class would be shed before one that matters less"),
            ("{ thresholds: { P1: 101 } }", "101 is no percentage"),
            ("{ calm_below: 90 }", "calm_below must not be above busy_above"),
            ("{ busy_above: 100 }", "busy_above must be below 100 %"),
            ("{ classes: { critical: [pay] } }", "`pay` is no path"),
        ] {
            let failure = format!("{:?}", read(text).settings().unwrap_err());
            assert!(failure.contains(says), "{text}: {failure}");
        }
    }
}
