//! Codes of errors: those in the sources are those of the book's page, each with cause and remedy.

use std::collections::BTreeSet;
use std::path::Path;

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

fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a folder can be read").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = std::fs::read_to_string(&path).expect("a source can be read");
            found.extend(codes(&source));
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
        sources(&crate::root().join(folder), &mut found);
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

#[test]
fn codes_are_found_in_sources_and_rows_on_the_page() {
    let source = "match self { A => \"OBX-A-B\", B => \"other\" }";
    assert!(codes(source).eq(["OBX-A-B"]));
    let page = "| code | reads |\n|---|---|\n| `OBX-A-B` | x |\n| y | `OBX-C` |\n";
    assert_eq!(rows(page), [["`OBX-A-B`", "x"]]);
}
