//! The tables of docs/ARCHITECTURE.md that lead a reader to the code: the path of one request, and where things are decided.
//! What they name exists, and the path is no longer than it should be.

use std::fs;

use crate::{expect_none, root};

const GUIDE: &str = "docs/ARCHITECTURE.md";
const MOST_FILES: usize = 25;
const MOST_SHAPES: usize = 10;

/// One step of the path: a file, the function in it, and the shapes that are defined there.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    file: String,
    function: String,
    shapes: Vec<String>,
}

#[test]
fn path_of_one_request_is_short_and_exists() {
    let steps = steps(&section("## The path of one request"));
    let mut problems: Vec<String> = steps.iter().flat_map(problems_of).collect();
    let mut files: Vec<&str> = steps.iter().map(|step| step.file.as_str()).collect();
    let shapes: Vec<&str> = steps.iter().flat_map(|step| &step.shapes).map(String::as_str).collect();
    files.dedup();
    println!("{} files:\n{}\n{} shapes: {}", files.len(), files.join("\n"), shapes.len(), shapes.join(", "));
    assert!(files.len() > 10 && shapes.len() > 5, "the table has moved, or its form has changed");
    for (what, count, most) in [("files", files.len(), MOST_FILES), ("shapes", shapes.len(), MOST_SHAPES)] {
        if count > most {
            problems.push(format!("the path has {count} {what}, and at most {most} fit into a head"));
        }
    }
    expect_none(&problems, "correct the table in docs/ARCHITECTURE.md, or make the path shorter");
}

#[test]
fn places_where_things_are_decided_exist() {
    let section = section("## Where it is decided");
    let rows: Vec<Vec<&str>> = section.lines().map(ticked).filter(|ticked| ticked.len() == 2).collect();
    assert!(rows.len() > 8, "the table has moved, or its form has changed");
    let problem = |row: &Vec<&str>| match text(row[0]) {
        Ok(text) if text.contains(row[1]) => None,
        Ok(_) => Some(format!("{} has no `{}`", row[0], row[1])),
        Err(problem) => Some(problem),
    };
    let problems: Vec<String> = rows.iter().filter_map(problem).collect();
    expect_none(&problems, "correct the table in docs/ARCHITECTURE.md");
}

fn section(title: &str) -> String {
    let guide = fs::read_to_string(root().join(GUIDE)).expect("the guide exists");
    let (_, rest) = guide.split_once(title).expect("the guide has this section");
    rest.split("\n## ").next().unwrap_or_default().to_owned()
}

/// What a line has between backticks.
fn ticked(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

fn steps(section: &str) -> Vec<Step> {
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let step = |row: &str| {
        let columns: Vec<&str> = row.split('|').collect();
        let one = |column: usize| ticked(columns[column]).first().map(|text| (*text).to_owned());
        let shapes = ticked(columns[4]).into_iter().map(str::to_owned).collect();
        Some(Step { file: one(1)?, function: one(2)?, shapes })
    };
    rows.filter_map(step).collect()
}

fn problems_of(Step { file, function, shapes }: &Step) -> Vec<String> {
    let text = match text(file) {
        Ok(text) => text,
        Err(problem) => return vec![problem],
    };
    let has_function = match file.ends_with(".lua") {
        true => text.contains(function.as_str()),
        false => ["(", "<"].iter().any(|next| text.contains(&format!("fn {function}{next}"))),
    };
    let missing = shapes.iter().filter(|shape| {
        let defines = |keyword| {
            text.contains(&format!("{keyword} {shape} {{")) || text.contains(&format!("{keyword} {shape}<"))
        };
        !(defines("struct") || defines("enum"))
    });
    let missing = missing.map(|shape| format!("{file} does not define `{shape}`"));
    missing.chain((!has_function).then(|| format!("{file} has no `{function}`"))).collect()
}

fn text(path: &str) -> Result<String, String> {
    fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))
}

#[test]
fn rows_of_the_path_are_read() {
    let row = "| `a/b.rs` | `run` | does `this` | `One`, `Two` |\n| plain | text |\n";
    let expected = Step {
        file: "a/b.rs".to_owned(),
        function: "run".to_owned(),
        shapes: vec!["One".to_owned(), "Two".to_owned()],
    };
    assert_eq!(steps(row), [expected]);
}
