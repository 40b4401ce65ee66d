//! docs/images/terminal.svg: what README.md shows on a console, line after line. The text is what a test ran and compared, so the
//! picture shows nothing else.

use std::fmt::Write as _;

use super::console::commands;

/// The longest line shown, in characters, and the most lines of one answer.
const WIDTH: usize = 100;
const MOST_LINES: usize = 4;
const LINE_HEIGHT: usize = 20;
/// Seconds until an answer is shown, and between two commands.
const ANSWER: f64 = 0.6;
const PAUSE: f64 = 1.6;

/// The picture of these blocks.
pub(super) fn picture(blocks: &[String]) -> String {
    let (mut rows, mut at) = (Vec::new(), 0.4);
    for (command, printed) in blocks.iter().flat_map(|block| commands(block)) {
        rows.push((at, "command", format!("$ {}", command.replace('\n', " "))));
        at += ANSWER;
        for line in printed.lines().take(MOST_LINES) {
            rows.push((at, "answer", line.to_owned()));
        }
        at += PAUSE;
    }
    let height = 56 + rows.len() * LINE_HEIGHT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 {height}\" role=\"img\" aria-label=\"A terminal session with tidegate\">\n\
         <style>\n\
         text {{ font: 13px ui-monospace, Menlo, Consolas, monospace; white-space: pre; animation: appear .2s both }}\n\
         .command {{ fill: #e6edf3 }} .answer {{ fill: #7ee787 }}\n\
         @keyframes appear {{ from {{ opacity: 0 }} to {{ opacity: 1 }} }}\n\
         @media (prefers-reduced-motion: reduce) {{ text {{ animation: none }} }}\n\
         </style>\n\
         <rect width=\"860\" height=\"{height}\" rx=\"8\" fill=\"#0d1117\"/>\n\
         <circle cx=\"20\" cy=\"18\" r=\"5\" fill=\"#ff5f56\"/><circle cx=\"38\" cy=\"18\" r=\"5\" fill=\"#ffbd2e\"/><circle cx=\"56\" cy=\"18\" r=\"5\" fill=\"#27c93f\"/>\n"
    );
    for (place, (at, class, line)) in rows.iter().enumerate() {
        let y = 50 + place * LINE_HEIGHT;
        let text = escaped(&shortened(line));
        let _ = writeln!(
            svg,
            "<text x=\"20\" y=\"{y}\" class=\"{class}\" style=\"animation-delay:{at:.1}s\">{text}</text>"
        );
    }
    svg + "</svg>\n"
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[test]
fn a_picture_has_every_line_in_order_and_no_markup_of_theirs() {
    let svg = picture(&["$ echo '<b>'\n<b>\n".to_owned()]);
    assert!(svg.contains("$ echo '&lt;b&gt;'</text>") && !svg.contains("<b>"), "{svg}");
    let delays: Vec<&str> = svg.split("animation-delay:").skip(1).map(|rest| &rest[..3]).collect();
    assert_eq!(delays, ["0.4", "1.0"]);
}
