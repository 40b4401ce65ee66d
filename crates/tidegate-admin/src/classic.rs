//! Converts OpenMetrics text to Prometheus' older text format, for scrapers that do not accept OpenMetrics.
//!
//! Samples are the same in both. Metadata lines differ: a counter is declared with its `_total`, an info is a gauge, and
//! there are no `# UNIT` and `# EOF` lines.

/// `text` in the older format.
pub(crate) fn from_open_metrics(text: &str) -> String {
    let mut classic = String::with_capacity(text.len() + text.len() / 16);
    let mut help = None;
    for line in text.lines() {
        match line.strip_prefix("# ").and_then(|rest| rest.split_once(' ')) {
            // The name in the HELP line depends on the type, which comes next.
            Some(("HELP", rest)) => help = rest.split_once(' '),
            Some(("TYPE", rest)) => {
                let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    other => ("", other),
                };
                if let Some((_, help)) = help.take().filter(|(helped, _)| *helped == name) {
                    push(&mut classic, &["# HELP ", name, suffix, " ", help, "\n"]);
                }
                push(&mut classic, &["# TYPE ", name, suffix, " ", kind, "\n"]);
            }
            // `# UNIT` and `# EOF`.
            Some(_) => {}
            None if line.starts_with('#') => {}
            None => push(&mut classic, &[line, "\n"]),
        }
    }
    classic
}

fn push(text: &mut String, parts: &[&str]) {
    parts.iter().for_each(|part| text.push_str(part));
}

#[cfg(test)]
mod tests {
    use super::from_open_metrics;

    #[test]
    fn a_counter_is_declared_by_the_name_of_its_samples() {
        let text = "# HELP hits How many.\n# TYPE hits counter\nhits_total{a=\"# TYPE b\"} 3\n# EOF\n";
        let classic =
            "# HELP hits_total How many.\n# TYPE hits_total counter\nhits_total{a=\"# TYPE b\"} 3\n";
        assert_eq!(from_open_metrics(text), classic);
    }

    #[test]
    fn units_are_left_out_and_an_info_is_a_gauge() {
        let text = "# HELP took_seconds Long.\n# TYPE took_seconds gauge\n# UNIT took_seconds seconds\ntook_seconds 1.5\n\
                    # HELP build What.\n# TYPE build info\nbuild_info{version=\"1\"} 1\n# EOF\n";
        let classic = "# HELP took_seconds Long.\n# TYPE took_seconds gauge\ntook_seconds 1.5\n\
                       # HELP build_info What.\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n";
        assert_eq!(from_open_metrics(text), classic);
    }
}
