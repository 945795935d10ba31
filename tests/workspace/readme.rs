//! The README shows what is there: its listing is a program's, its promises are the book's.

use crate::anchors::anchored;

fn read(path: &str) -> String {
    let path = outbox_tests::root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines that say something, trimmed.
fn said<'l>(lines: impl IntoIterator<Item = &'l str>) -> Vec<&'l str> {
    lines.into_iter().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn the_fifteen_lines_are_those_of_the_quick_start() {
    let (page, source) = (read("README.md"), read("examples/quick_start.rs"));
    let shown = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let shown = said(shown.expect("the README shows code").lines());
    let parts = ["event", "relay", "append"].map(|part| anchored(&source, part).expect(part));
    assert_eq!(shown, said(parts.concat()));
    let code = shown.iter().filter(|line| !line.starts_with("//")).count();
    assert!(code <= 15, "{code} lines of code");
}

#[test]
fn the_promises_are_those_of_the_book() {
    let promises = |page: &str| -> Vec<String> {
        read(page).lines().filter(|line| line.starts_with("| P")).map(str::to_owned).collect()
    };
    assert_eq!(promises("README.md").len(), 9);
    assert_eq!(promises("README.md"), promises("book/src/promises.md"));
}
