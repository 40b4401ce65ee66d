//! Parses OpenMetrics text: the one form in which all metrics are available at once.
//!
//! It reads what our own exposition writes. Unknown lines are skipped.

/// All metrics at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    /// In the order of the text.
    pub families: Vec<Family>,
}

/// A metric and all its series.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// As declared: without `_total`, `_bucket` and so on.
    pub name: String,
    /// Its type.
    pub kind: MetricKind,
    /// Its help text.
    pub help: String,
    /// Its series.
    pub samples: Vec<Sample>,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

/// One number.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The part of the name after the family's: `_total`, `_bucket`, `_sum`, `_count`, or nothing.
    pub suffix: String,
    /// Its labels, in the order of the text.
    pub labels: Vec<(String, String)>,
    /// Its value.
    pub value: f64,
}

impl Scrape {
    /// Parses a text.
    #[must_use]
    pub fn parse(text: &str) -> Scrape {
        Scrape::parse_where(text, |_, _| true)
    }

    /// Parses a text without labelled counters at 0, such as those of rules that never decided anything. Saves most of the
    /// work if only sums matter.
    #[must_use]
    pub fn parse_counted(text: &str) -> Scrape {
        Scrape::parse_where(text, |kind, line| kind != MetricKind::Counter || !line.ends_with("} 0"))
    }

    fn parse_where(text: &str, wanted: impl Fn(MetricKind, &str) -> bool) -> Scrape {
        let mut families: Vec<Family> = Vec::new();
        let mut help = "";
        for line in text.lines() {
            match line.strip_prefix("# ").map(|rest| rest.splitn(3, ' ').collect::<Vec<_>>()).as_deref() {
                Some(["HELP", _, words]) => help = words,
                Some(["TYPE", name, kind]) => {
                    let kind = match *kind {
                        "counter" => MetricKind::Counter,
                        "histogram" => MetricKind::Histogram,
                        "info" => MetricKind::Info,
                        _ => MetricKind::Gauge,
                    };
                    let (name, help) = ((*name).to_owned(), std::mem::take(&mut help).to_owned());
                    families.push(Family { name, kind, help, samples: Vec::new() });
                }
                Some(_) => {}
                None => {
                    let Some(family) = families.last_mut() else { continue };
                    if wanted(family.kind, line) {
                        family.samples.extend(sample(line, &family.name));
                    }
                }
            }
        }
        Scrape { families }
    }

    /// The same without the series that have this label.
    #[must_use]
    pub fn without(mut self, label: &str) -> Scrape {
        for family in &mut self.families {
            family.samples.retain(|sample| sample.label(label).is_none());
        }
        self
    }

    /// The family of this name.
    #[must_use]
    pub fn family(&self, name: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.name == name)
    }

    /// The series of the family of this name; empty if there is none.
    #[must_use]
    pub fn samples(&self, name: &str) -> &[Sample] {
        self.family(name).map_or(&[], |family| &family.samples)
    }

    /// The sum of a counter or gauge over the series with all these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.samples(name).iter().filter(|sample| sample.has(labels)).map(|sample| sample.value).sum()
    }

    /// The value of a counter or gauge without labels, if it exists.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.family(name)?.samples.first().map(|sample| sample.value)
    }
}

impl Sample {
    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }

    fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.label(name) == Some(value))
    }
}

/// `name{label="value"} 1 # {…} …`
fn sample(line: &str, family: &str) -> Option<Sample> {
    let rest = line.strip_prefix(family)?;
    let end = rest.find(['{', ' '])?;
    let (suffix, rest) = rest.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => labels(inside)?,
        None => (Vec::new(), rest),
    };
    let value = rest.trim_start().split(' ').next()?.parse().ok()?;
    Some(Sample { suffix: suffix.to_owned(), labels, value })
}

/// The labels up to the closing brace, and the rest.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut found = Vec::new();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((found, after));
        }
        let (name, after) = rest.trim_start_matches(',').split_once("=\"")?;
        let mut value = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next()? {
                (at, '"') => break at + 1,
                (_, '\\') => match letters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        found.push((name.to_owned(), value));
        rest = &after[end..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line_is_read_back() {
        let text = "# HELP t_hits How many.\n# TYPE t_hits counter\nt_hits_total{a=\"x,\\\"y\\\"}\",b=\"2\"} 3\n\
                    # HELP t_took_seconds Long.\n# TYPE t_took_seconds histogram\n# UNIT t_took_seconds seconds\n\
                    t_took_seconds_sum 1.5\nt_took_seconds_count 2\n\
                    t_took_seconds_bucket{le=\"+Inf\"} 2 # {trace_id=\"ab\"} 0.1 9\n# EOF\n";
        let scrape = Scrape::parse(text);
        assert_eq!(scrape.families.len(), 2);
        let hits = &scrape.families[0];
        assert_eq!((hits.kind, hits.help.as_str()), (MetricKind::Counter, "How many."));
        assert_eq!(hits.samples[0].label("a"), Some("x,\"y\"}"));
        assert_eq!(scrape.sum("t_hits", &[("b", "2")]), 3.0);
        assert_eq!(scrape.sum("t_hits", &[("b", "3")]), 0.0);
        let took: Vec<(&str, f64)> =
            scrape.families[1].samples.iter().map(|s| (&*s.suffix, s.value)).collect();
        assert_eq!(took, [("_sum", 1.5), ("_count", 2.0), ("_bucket", 2.0)]);
    }

    #[test]
    fn counters_that_never_counted_can_be_left_out_and_nothing_else() {
        let text = "# TYPE a counter\na_total{b=\"c\"} 0\na_total{b=\"d\"} 10\n# TYPE e counter\ne_total 0\n\
                    # TYPE f gauge\nf{b=\"c\"} 0\n";
        let scrape = Scrape::parse_counted(text);
        let kept: Vec<usize> = scrape.families.iter().map(|family| family.samples.len()).collect();
        assert_eq!(kept, [1, 1, 1]);
        assert_eq!(scrape.sum("a", &[]), Scrape::parse(text).sum("a", &[]));
    }

    #[test]
    fn half_a_line_is_left_out() {
        let scrape = Scrape::parse("# TYPE a gauge\na{b=\"c 1\na{b\na\na x\na 1\nb 2\n");
        assert_eq!(scrape.families[0].samples.len(), 1);
    }
}
