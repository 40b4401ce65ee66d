//! Metrics as values: families of series.

use std::sync::Arc;

/// All metrics at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Families {
    list: Vec<Family>,
    /// Whether labelled counters at 0 are left out.
    leaves_out_zeros: bool,
}

/// A metric and all its series.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Its name, without `_total`, `_info` and so on. One that ends in `_seconds` or `_bytes` has that unit.
    pub name: String,
    /// Its type.
    pub kind: Kind,
    /// Its help text.
    pub help: &'static str,
    /// Its series.
    pub series: Vec<Series>,
    leaves_out_zeros: bool,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

/// One value of a metric, and the labels that tell it from others.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// In the order in which they are written.
    pub labels: Vec<(&'static str, Text)>,
    /// The value.
    pub value: Value,
}

/// The value of a label: from the source code, or shared with the table that has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Text {
    /// From the source code.
    Static(&'static str),
    /// From rules or the configuration.
    Shared(Arc<str>),
}

/// The value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A count.
    Whole(u64),
    /// A measure.
    Real(f64),
    /// How many were how large.
    Histogram(Histogram),
}

/// How many were how large.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// The sum of all.
    pub sum: f64,
    /// The upper bound of each bucket, and how many are in it alone. The last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
    /// An example from some of the buckets, by their index.
    pub exemplars: Vec<(usize, Exemplar)>,
}

/// A request whose trace shows what its bucket is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    /// Its trace.
    pub trace_id: u128,
    /// Its value, in the unit of the histogram.
    pub value: f64,
    /// When it ended, in seconds since 1970.
    pub at_seconds: f64,
}

impl Families {
    /// Leaves out labelled counters at 0, such as those of rules that never decided anything. Saves most of the work if only
    /// sums matter.
    #[must_use]
    pub fn without_zeros() -> Self {
        Families { leaves_out_zeros: true, ..Families::default() }
    }

    /// All families, in the order of their sources.
    #[must_use]
    pub fn all(&self) -> &[Family] {
        &self.list
    }

    /// The same without the series that have this label.
    #[must_use]
    pub fn without(mut self, label: &str) -> Self {
        self.list.iter_mut().for_each(|family| family.series.retain(|series| series.label(label).is_none()));
        self
    }

    /// Adds a counter without labels.
    pub fn counter(&mut self, name: &str, help: &'static str, count: u64) {
        self.counters(name, help).add([], count);
    }

    /// Adds a gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &'static str, value: impl Into<Value>) {
        self.gauges(name, help).add([], value);
    }

    /// Adds counters that differ in one label.
    pub fn counters_by<T: Into<Text>>(
        &mut self,
        label: &'static str,
        (name, help): (&str, &'static str),
        counts: impl IntoIterator<Item = (T, u64)>,
    ) {
        let family = self.counters(name, help);
        counts.into_iter().for_each(|(value, count)| family.add([(label, value.into())], count));
    }

    /// Adds gauges that differ in one label.
    pub fn gauges_by<T: Into<Text>, V: Into<Value>>(
        &mut self,
        label: &'static str,
        (name, help): (&str, &'static str),
        values: impl IntoIterator<Item = (T, V)>,
    ) {
        let family = self.gauges(name, help);
        values.into_iter().for_each(|(value, number)| family.add([(label, value.into())], number));
    }

    /// Adds a fact that is only a label.
    pub fn info(&mut self, name: &str, help: &'static str, label: &'static str, value: impl Into<Text>) {
        self.ours(name, help, Kind::Info).add([(label, value.into())], 1);
    }

    /// Adds a family of counters.
    pub fn counters(&mut self, name: &str, help: &'static str) -> &mut Family {
        self.ours(name, help, Kind::Counter)
    }

    /// Adds a family of gauges.
    pub fn gauges(&mut self, name: &str, help: &'static str) -> &mut Family {
        self.ours(name, help, Kind::Gauge)
    }

    /// Adds a family of histograms.
    pub fn histograms(&mut self, name: &str, help: &'static str) -> &mut Family {
        self.ours(name, help, Kind::Histogram)
    }

    fn ours(&mut self, name: &str, help: &'static str, kind: Kind) -> &mut Family {
        self.declare(format!("tidegate_{name}"), help, kind)
    }

    /// Adds a family whose name has no prefix.
    pub(crate) fn declare(&mut self, name: String, help: &'static str, kind: Kind) -> &mut Family {
        let leaves_out_zeros = self.leaves_out_zeros;
        self.list.push(Family { name, kind, help, series: Vec::new(), leaves_out_zeros });
        self.list.last_mut().expect("one was pushed")
    }

    /// The series of the family of this name, with its prefix; empty if there is none.
    #[must_use]
    pub fn series(&self, name: &str) -> &[Series] {
        self.list.iter().find(|family| family.name == name).map_or(&[], |family| &family.series)
    }

    /// The sum of a counter or gauge over the series with all these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |one: &&Series| labels.iter().all(|(name, value)| one.label(name) == Some(value));
        self.series(name).iter().filter(has).map(Series::number).sum()
    }

    /// The value of a counter or gauge without labels, if it exists.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.series(name).first().map(Series::number)
    }
}

impl Family {
    /// Adds a series.
    pub fn add<const N: usize>(&mut self, labels: [(&'static str, Text); N], value: impl Into<Value>) {
        let value = value.into();
        let is_nothing = N > 0 && self.kind == Kind::Counter && value == Value::Whole(0);
        if !(self.leaves_out_zeros && is_nothing) {
            self.series.push(Series { labels: labels.into(), value });
        }
    }

    /// The name that queries use for a counter, a gauge or an info.
    #[must_use]
    pub fn sample_name(&self) -> String {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        format!("{}{suffix}", self.name)
    }

    /// Its unit, by its name.
    #[must_use]
    pub fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes"].into_iter().find(|unit| self.name.rsplit('_').next() == Some(unit))
    }
}

impl Kind {
    /// Its name in OpenMetrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        }
    }
}

impl Series {
    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value.as_str())
    }

    /// The value of a counter or gauge.
    #[must_use]
    pub fn number(&self) -> f64 {
        match &self.value {
            Value::Whole(count) => *count as f64,
            Value::Real(number) => *number,
            Value::Histogram(histogram) => histogram.sum,
        }
    }

    /// The histogram, if it is one.
    #[must_use]
    pub fn histogram(&self) -> Option<&Histogram> {
        match &self.value {
            Value::Histogram(histogram) => Some(histogram),
            Value::Whole(_) | Value::Real(_) => None,
        }
    }
}

impl Histogram {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

impl Text {
    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Text::Static(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl From<&'static str> for Text {
    fn from(text: &'static str) -> Self {
        Text::Static(text)
    }
}

impl From<&Arc<str>> for Text {
    fn from(text: &Arc<str>) -> Self {
        Text::Shared(text.clone())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Text::Shared(text.into())
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Value::Whole(count)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Value::Real(number)
    }
}

impl From<Histogram> for Value {
    fn from(histogram: Histogram) -> Self {
        Value::Histogram(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(mut families: Families) -> Families {
        families.counters_by("b", ("a", ""), [("c", 0), ("d", 10)]);
        families.counter("e", "", 0);
        families.gauges_by("b", ("f", ""), [("c", 0u64)]);
        families
    }

    #[test]
    fn without_zeros_only_labelled_counters_at_zero_are_left_out() {
        let (all, some) = (described(Families::default()), described(Families::without_zeros()));
        let kept: Vec<usize> = some.all().iter().map(|family| family.series.len()).collect();
        assert_eq!(kept, [1, 1, 1]);
        assert_eq!(some.sum("tidegate_a", &[]), all.sum("tidegate_a", &[]));
    }

    #[test]
    fn sum_takes_the_series_with_all_labels() {
        let families = described(Families::default());
        assert_eq!(families.sum("tidegate_a", &[("b", "d")]), 10.0);
        assert_eq!(families.sum("tidegate_a", &[("b", "x")]), 0.0);
        assert_eq!((families.get("tidegate_e"), families.get("tidegate_x")), (Some(0.0), None));
    }
}
