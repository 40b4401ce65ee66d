//! docs/images/terminal.svg: what README.md shows on a console, line after line, and over again. The answers are what was printed when
//! the picture was made; a test compares them with README.md, where `…` stands for what differs each time.

use std::fmt::Write as _;

use super::console::is_as_shown;

/// The longest row, in characters: what is longer goes on in the next one. And the most lines of one answer.
const WIDTH: usize = 100;
const MOST_LINES: usize = 6;
const LINE_HEIGHT: usize = 20;
/// Seconds until an answer is shown, between two commands, and until all begins again.
const ANSWER: f64 = 0.6;
const PAUSE: f64 = 1.6;
const HOLD: f64 = 6.0;

/// The picture of these commands and what each printed.
pub(super) fn picture(session: &[(String, String)]) -> String {
    let (mut rows, mut times, mut at) = (Vec::new(), Vec::new(), 0.4);
    for (command, printed) in session {
        let answer: Vec<&str> = printed.trim_end().lines().collect();
        let rest = (answer.len() > MOST_LINES).then_some("…");
        times.extend([at, at + ANSWER]);
        rows.extend(wrapped("command", times.len() - 2, &format!("$ {}", on_one_line(command))));
        for line in answer.iter().take(MOST_LINES).copied().chain(rest) {
            rows.extend(wrapped("answer", times.len() - 1, line));
        }
        at += ANSWER + PAUSE;
    }
    let (height, whole) = (56 + rows.len() * LINE_HEIGHT, at + HOLD);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 {height}\" role=\"img\" aria-label=\"A terminal session with tidegate\">\n\
         <style>\n\
         text {{ font: 13px ui-monospace, Menlo, Consolas, monospace; white-space: pre }}\n\
         .command {{ fill: #e6edf3 }} .answer {{ fill: #7ee787 }}\n"
    );
    for (step, at) in times.iter().enumerate() {
        let (before, from) = (at / whole * 100.0, (at + 0.2) / whole * 100.0);
        let _ = writeln!(
            svg,
            "@keyframes s{step} {{ 0%, {before:.1}% {{ opacity: 0 }} {from:.1}%, 98% {{ opacity: 1 }} 100% {{ opacity: 0 }} }}\n\
             .s{step} {{ animation: s{step} {whole:.1}s infinite both }}"
        );
    }
    let _ = writeln!(
        svg,
        "@media (prefers-reduced-motion: reduce) {{ text {{ animation: none }} }}\n\
         </style>\n\
         <rect width=\"860\" height=\"{height}\" rx=\"8\" fill=\"#0d1117\"/>\n\
         <circle cx=\"20\" cy=\"18\" r=\"5\" fill=\"#ff5f56\"/><circle cx=\"38\" cy=\"18\" r=\"5\" fill=\"#ffbd2e\"/><circle cx=\"56\" cy=\"18\" r=\"5\" fill=\"#27c93f\"/>"
    );
    for (place, (class, text)) in rows.iter().enumerate() {
        let y = 50 + place * LINE_HEIGHT;
        let _ = writeln!(svg, "<text x=\"20\" y=\"{y}\" class=\"{class}\">{}</text>", escaped(text));
    }
    svg + "</svg>\n"
}

/// Whether this is a picture of these commands, with answers as they are shown.
pub(super) fn is_of(svg: &str, shown: &[(String, String)]) -> bool {
    let session = session(svg);
    let pairs = || session.iter().zip(shown);
    picture(&session) == svg
        && session.len() == shown.len()
        && pairs().all(|((ours, printed), (theirs, shown))| {
            *ours == on_one_line(theirs) && is_as_shown(printed, shown)
        })
}

/// The commands of a picture, and what each printed.
fn session(svg: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for row in svg.lines().filter_map(|line| line.strip_prefix("<text ")?.strip_suffix("</text>")) {
        let Some((attributes, text)) = row.split_once('>') else { continue };
        let (text, goes_on) = (unescaped(text), attributes.contains(" more "));
        match (attributes.contains("class=\"command "), found.last_mut()) {
            (true, Some((command, _))) if goes_on => *command += &text,
            (true, _) => found.push((text.trim_start_matches("$ ").to_owned(), Vec::new())),
            (false, Some((_, lines))) => match lines.last_mut().filter(|_| goes_on) {
                Some(line) => *line += &text,
                None => lines.push(text),
            },
            (false, None) => {}
        }
    }
    found.into_iter().map(|(command, lines)| (command, lines.join("\n"))).collect()
}

/// The rows of one line, with their classes.
fn wrapped(kind: &str, step: usize, line: &str) -> Vec<(String, String)> {
    let letters: Vec<char> = line.chars().collect();
    let rows = letters.chunks(WIDTH).enumerate().map(|(row, part)| {
        let class = if row == 0 { format!("{kind} s{step}") } else { format!("{kind} more s{step}") };
        (class, part.iter().collect())
    });
    if line.is_empty() { vec![(format!("{kind} s{step}"), String::new())] } else { rows.collect() }
}

fn on_one_line(command: &str) -> String {
    command.replace("\\\n", "").replace('\n', " ")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

#[test]
fn a_picture_has_every_line_whole_and_in_order_and_no_markup_of_theirs() {
    let long = "0123456789".repeat(25);
    let session = |second: &str| vec![("echo '<b>'".to_owned(), format!("<b>\n{long}\n\n{second}"))];
    let svg = picture(&session("retry in 12 s"));
    assert!(svg.contains("$ echo '&lt;b&gt;'</text>") && !svg.contains("<b>"), "{svg}");
    assert!(svg.contains(".s1 { animation: s1 8.6s infinite both }"), "{svg}");
    assert!(is_of(&svg, &session("retry in 12 s")) && is_of(&svg, &session("retry in …")), "{svg}");
    assert!(!is_of(&svg, &session("retry in 13 s")) && !is_of(&svg, &[]), "{svg}");
    assert!(!is_of(&svg.replace("infinite", "1"), &session("retry in …")), "{svg}");
}
