//! ARCHITECTURE.md stays short, names existing tests, and leaves reasons to the decisions, each of
//! which has the required form.

use std::fs;
use std::path::Path;

use crate::book::{assert_each_names_a_test, pages};
use crate::files::{links, written_files};

fn read(path: impl AsRef<Path>) -> String {
    let path = crate::root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A newcomer reads it in ten minutes. Anything longer is a decision, a comment at the code, or a
/// page of a backend.
#[test]
fn the_architecture_is_short() {
    let words = read("ARCHITECTURE.md").split_whitespace().count();
    assert!(words <= 1_500, "{words} words");
}

#[test]
fn the_tests_that_the_invariants_name_are_there() {
    let page = read("ARCHITECTURE.md");
    let rows = page.split("| invariant | promise | test |").nth(1).expect("the page has the table");
    let rows: Vec<&str> = rows.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() >= 15, "these are not all invariants: {}", rows.len());
    assert_each_names_a_test(&rows);
}

#[test]
fn every_decision_has_its_number_its_form_and_its_row() {
    let index = read("book/src/decisions/index.md");
    let listed = links(&index);
    let decisions = pages().into_iter().filter(|page| page.starts_with("decisions"));
    let names = decisions.filter_map(|page| page.file_name().map(|name| name.to_string_lossy().into_owned()));
    let names: Vec<String> = names.filter(|name| name != "index.md").collect();
    assert!(names.len() >= 15, "these are not all decisions: {names:?}");
    for (number, name) in (1..).zip(&names) {
        assert!(name.starts_with(&format!("{number:04}-")), "{name} is the {number}th: numbers have no gaps");
        assert!(listed.contains(&&**name), "{name} has no row in decisions/index.md");
        let problem = form(&read(Path::new("book/src/decisions").join(name)), number);
        assert_eq!(problem, None, "{name}");
    }
    assert_eq!(listed.len(), names.len(), "{listed:?}");
}

/// Returns the problem with the form of a decision.
fn form(page: &str, number: usize) -> Option<String> {
    let headings: Vec<&str> = page.lines().filter(|line| line.starts_with('#')).collect();
    let title = format!("# {number}. ");
    match headings[..] {
        [first, "## Context", "## Decision", "## Cost", "## Wrong if"] if first.starts_with(&title) => None,
        _ => Some(format!("not \"{title}...\" with Context, Decision, Cost and Wrong if: {headings:?}")),
    }
}

#[test]
fn a_decision_without_its_cost_is_found() {
    let whole = "# 3. Title\n## Context\na\n## Decision\nb\n## Cost\nc\n## Wrong if\nd\n";
    assert_eq!(form(whole, 3), None);
    for wrong in [
        whole.replace("## Cost\nc\n", ""),
        whole.replace("# 3.", "# 4."),
        whole.replace("## Wrong", "## Right"),
    ] {
        assert!(form(&wrong, 3).is_some(), "{wrong}");
    }
}

/// Small enough to be edited by hand, readable on a dark page, and shown on a page.
#[test]
fn every_picture_is_small_readable_and_shown() {
    let pictures = written_files().into_iter().filter(|file| file.starts_with("book/src/images"));
    let mut shown: Vec<String> = pages().iter().map(|page| read(Path::new("book/src").join(page))).collect();
    shown.push(read("ARCHITECTURE.md"));
    for picture in pictures {
        let (text, name) = (read(&picture), picture.file_name().unwrap_or_default().to_string_lossy());
        assert!(text.lines().count() < 150, "{name} has {} lines", text.lines().count());
        assert!(text.contains("prefers-color-scheme: dark"), "{name} has no colors for dark pages");
        assert!(text.contains("<title"), "{name} has no title for those who do not see it");
        let is_shown =
            shown.iter().any(|page| links(page).iter().any(|link| link.ends_with(&format!("images/{name}"))));
        assert!(is_shown, "no page shows {name}");
    }
}
