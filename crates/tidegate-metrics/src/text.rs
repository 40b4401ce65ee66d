//! Families as text, in Prometheus' older format and in OpenMetrics.
//!
//! Samples are the same in both, but for exemplars. Metadata lines differ: in the older format a counter is declared with its
//! `_total`, an info is a gauge, and there are no `# UNIT` and `# EOF` lines.

use std::fmt::Write as _;

use crate::family::{Exemplar, Families, Family, Histogram, Kind, Series, Text, Value};

/// The text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' own, version 0.0.4, which every scraper reads.
    Classic,
    /// OpenMetrics 1.0, for scrapers that accept it.
    OpenMetrics,
}

impl Format {
    /// The format that an `Accept` header asks for.
    #[must_use]
    pub fn accepted(accept: &str) -> Format {
        let asked =
            accept.split(',').any(|range| range.trim_start().starts_with("application/openmetrics-text"));
        if asked { Format::OpenMetrics } else { Format::Classic }
    }

    /// Its `Content-Type`.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

impl Families {
    /// The metrics as text.
    #[must_use]
    pub fn text(&self, format: Format) -> String {
        let mut writer = Writer { text: String::new(), format };
        self.all().iter().for_each(|family| writer.family(family));
        if format == Format::OpenMetrics {
            writer.text.push_str("# EOF\n");
        }
        writer.text
    }
}

struct Writer {
    text: String,
    format: Format,
}

impl Writer {
    fn family(&mut self, family: &Family) {
        let sample = family.sample_name();
        let (name, kind) = match (self.format, family.kind) {
            (Format::OpenMetrics, kind) => (family.name.as_str(), kind.name()),
            (Format::Classic, Kind::Info) => (sample.as_str(), "gauge"),
            (Format::Classic, kind) => (sample.as_str(), kind.name()),
        };
        self.push(&["# HELP ", name, " ", family.help, "\n# TYPE ", name, " ", kind, "\n"]);
        if let (Format::OpenMetrics, Some(unit)) = (self.format, family.unit()) {
            self.push(&["# UNIT ", name, " ", unit, "\n"]);
        }
        for series in &family.series {
            match &series.value {
                Value::Histogram(histogram) => self.histogram(&sample, series, histogram),
                value => self.sample(&sample, "", None, series, value),
            }
        }
    }

    fn histogram(&mut self, name: &str, series: &Series, histogram: &Histogram) {
        self.sample(name, "_sum", None, series, &Value::Real(histogram.sum));
        self.sample(name, "_count", None, series, &Value::Whole(histogram.count()));
        let mut below = 0;
        for (index, (bound, count)) in histogram.buckets.iter().enumerate() {
            below += count;
            self.sample(name, "_bucket", Some(*bound), series, &Value::Whole(below));
            let exemplar = histogram.exemplars.iter().find(|(of, _)| *of == index);
            if let (Format::OpenMetrics, Some((_, exemplar))) = (self.format, exemplar) {
                self.exemplar(exemplar);
            }
        }
    }

    fn sample(&mut self, name: &str, suffix: &str, bound: Option<f64>, series: &Series, value: &Value) {
        self.push(&[name, suffix]);
        let bound = bound.map(|bound| ("le", Text::from(number(bound))));
        let mut before = "{";
        for (label, value) in bound.iter().chain(&series.labels) {
            self.push(&[before, label, "=\""]);
            self.escaped(value.as_str());
            self.text.push('"');
            before = ",";
        }
        self.text.push_str(if before == "{" { " " } else { "} " });
        match value {
            Value::Whole(count) => drop(writeln!(self.text, "{count}")),
            Value::Real(value) => self.push(&[&number(*value), "\n"]),
            Value::Histogram(_) => unreachable!("a histogram is written as its parts"),
        }
    }

    /// Appends to the line that was just written.
    fn exemplar(&mut self, Exemplar { trace_id, value, at_seconds }: &Exemplar) {
        self.text.pop();
        let _ = writeln!(self.text, " # {{trace_id=\"{trace_id:032x}\"}} {value} {at_seconds:.3}");
    }

    fn escaped(&mut self, value: &str) {
        for letter in value.chars() {
            match letter {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                other => self.text.push(other),
            }
        }
    }

    fn push(&mut self, parts: &[&str]) {
        parts.iter().for_each(|part| self.text.push_str(part));
    }
}

/// Always with a dot, so that `1.0` is one series whoever writes it.
fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        value if value.fract() == 0.0 => format!("{value:.1}"),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Families {
        let mut families = Families::default();
        families.counters_by("a", ("hits", "How many."), [("x,\"y\"}\n\\", 3)]);
        families.gauge("took_seconds", "Long.", 1.5);
        families.info("build", "What.", "version", "1");
        let exemplar = Exemplar { trace_id: 0xab, value: 0.3, at_seconds: 9.0 };
        let buckets = vec![(0.000_005, 1), (1.0, 2), (f64::INFINITY, 0)];
        let took = Histogram { sum: 0.7, buckets, exemplars: vec![(1, exemplar)] };
        families.histograms("answer_seconds", "Times.").add([("by", Text::Static("grpc"))], took);
        families
    }

    #[test]
    fn open_metrics_is_as_its_specification_has_it() {
        let text = r##"# HELP tidegate_hits How many.
# TYPE tidegate_hits counter
tidegate_hits_total{a="x,\"y\"}\n\\"} 3
# HELP tidegate_took_seconds Long.
# TYPE tidegate_took_seconds gauge
# UNIT tidegate_took_seconds seconds
tidegate_took_seconds 1.5
# HELP tidegate_build What.
# TYPE tidegate_build info
tidegate_build_info{version="1"} 1
# HELP tidegate_answer_seconds Times.
# TYPE tidegate_answer_seconds histogram
# UNIT tidegate_answer_seconds seconds
tidegate_answer_seconds_sum{by="grpc"} 0.7
tidegate_answer_seconds_count{by="grpc"} 3
tidegate_answer_seconds_bucket{le="0.000005",by="grpc"} 1
tidegate_answer_seconds_bucket{le="1.0",by="grpc"} 3 # {trace_id="000000000000000000000000000000ab"} 0.3 9.000
tidegate_answer_seconds_bucket{le="+Inf",by="grpc"} 3
# EOF
"##;
        assert_eq!(example().text(Format::OpenMetrics), text);
    }

    #[test]
    fn classic_declares_by_sample_names_and_has_no_units() {
        let text = r##"# HELP tidegate_hits_total How many.
# TYPE tidegate_hits_total counter
tidegate_hits_total{a="x,\"y\"}\n\\"} 3
# HELP tidegate_took_seconds Long.
# TYPE tidegate_took_seconds gauge
tidegate_took_seconds 1.5
# HELP tidegate_build_info What.
# TYPE tidegate_build_info gauge
tidegate_build_info{version="1"} 1
"##;
        let written = example().text(Format::Classic);
        assert!(written.starts_with(text), "{written}");
        assert!(!written.contains("trace_id") && !written.contains("# EOF"), "{written}");
    }
}
