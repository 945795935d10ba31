//! Codes of errors and classes of failures: those in the sources are those of the book's page, each
//! with cause and remedy.

use std::collections::BTreeSet;
use std::path::Path;

use crate::files::written_files;

/// Beginning of every code.
const PREFIX: &str = "OBX-";

/// Returns the codes that stand in quotes in a source.
fn codes(source: &str) -> impl Iterator<Item = String> {
    source.split('"').filter(|text| text.starts_with(PREFIX)).map(str::to_owned)
}

/// Returns the rows of the page that begin with a code, by their cells.
fn rows(page: &str) -> Vec<Vec<String>> {
    let begin = format!("| `{PREFIX}");
    let rows = page.lines().filter(|line| line.starts_with(&begin));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// Calls a function with every source below a folder of the workspace.
pub(crate) fn each_source(folder: &str, found: &mut dyn FnMut(&Path, &str)) {
    for file in written_files().iter().filter(|file| file.starts_with(folder)) {
        if file.extension().is_some_and(|extension| extension == "rs") {
            let source = std::fs::read_to_string(crate::root().join(file)).expect("a source can be read");
            found(file, &source);
        }
    }
}

fn page() -> String {
    let page = crate::root().join("book/src/errors.md");
    std::fs::read_to_string(page).expect("the page can be read")
}

#[test]
fn every_code_of_an_error_has_an_entry_in_the_book_and_every_entry_has_an_error() {
    let mut found = Vec::new();
    for folder in ["outbox/contract/src", "outbox/engine/src"] {
        each_source(folder, &mut |_, source| found.extend(codes(source)));
    }
    let in_sources: BTreeSet<String> = found.iter().cloned().collect();
    assert_eq!(in_sources.len(), found.len(), "two kinds of error share a code: {found:?}");
    assert!(in_sources.len() > 20, "{in_sources:?}");
    let rows = rows(&page());
    for row in &rows {
        assert!(
            row.len() == 4 && row.iter().all(|cell| !cell.is_empty()),
            "code, text, cause, remedy: {row:?}"
        );
    }
    let on_page: BTreeSet<String> = rows.iter().map(|row| row[0].trim_matches('`').to_owned()).collect();
    assert_eq!(on_page.len(), rows.len(), "an entry stands twice");
    assert_eq!(on_page, in_sources);
}

/// Returns the classes of failures that stand in a source, without those of its tests.
fn classes(source: &str) -> impl Iterator<Item = &str> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let made = code.split("Failure::new(").skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
    made.filter_map(|rest| rest.split('"').next())
}

#[test]
fn every_class_of_a_failure_has_an_entry_in_the_book_and_every_entry_is_used() {
    let (page, mut made, mut texts) = (page(), BTreeSet::new(), String::new());
    let section = page.split("\n## ").find(|section| section.starts_with("Failures of messages\n"));
    let rows = section.expect("the page has the section").lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let told: Vec<String> =
        cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    for folder in ["outbox/engine/src", "transports"] {
        each_source(folder, &mut |file, source| {
            if !["tests", "model"].iter().any(|part| file.to_string_lossy().contains(part)) {
                made.extend(classes(source).map(str::to_owned));
                texts += source;
            }
        });
    }
    assert!(made.len() > 20, "{made:?}");
    for class in &made {
        assert!(told.contains(class), "the page does not name the class {class}");
    }
    for class in &told {
        assert!(texts.contains(&format!("\"{class}\"")), "no failure has the class {class}");
    }
}

#[test]
fn codes_are_found_in_sources_and_rows_on_the_page() {
    let source = "match self { A => \"OBX-A-B\", B => \"other\" }";
    assert!(codes(source).eq(["OBX-A-B"]));
    let source =
        "Failure::new(\n  \"too-large\", a); Failure::new(class, b); #[cfg(test)] Failure::new(\"c\")";
    assert!(classes(source).eq(["too-large"]));
    let page = "| code | reads |\n|---|---|\n| `OBX-A-B` | x |\n| y | `OBX-C` |\n";
    assert_eq!(rows(page), [["`OBX-A-B`", "x"]]);
}
