//! Listings that stand in a page, so that it can be read without mdBook, are those of the examples.
//!
//! A comment names the source, and the block of code behind it is the part of it:
//!
//! ````text
//! <!-- listing: ../../examples/inbox/src/main.rs:handler -->
//! ```rust,ignore
//! async fn reserve_stock(…
//! ````
//!
//! With `OUTBOX_WRITE_LISTINGS` set, the test writes them into the pages.

use std::path::Path;

use crate::book::pages;

const MARK: &str = "<!-- listing: ";

/// Returns the page with each listing as its source has it.
fn with_listings(page: &str, listing: impl Fn(&str, &str) -> String) -> String {
    let mut written = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        written += &format!("{line}\n");
        let Some(link) = line.strip_prefix(MARK).and_then(|rest| rest.strip_suffix(" -->")) else { continue };
        let (file, anchor) = link.rsplit_once(':').unwrap_or_else(|| panic!("{line}: name a part"));
        let fence = lines.next().filter(|fence| fence.starts_with("```"));
        let fence = fence.unwrap_or_else(|| panic!("{line}: a block of code follows"));
        lines.by_ref().find(|line| *line == "```").unwrap_or_else(|| panic!("{line}: the block ends"));
        written += &format!("{fence}\n{}```\n", listing(file, anchor));
    }
    written
}

/// Returns a part of a source, without the indentation that all of its lines have.
fn part(source: &str, anchor: &str) -> Option<String> {
    let is = |line: &str, mark: &str| line.trim() == format!("// {mark}: {anchor}");
    let lines = source.lines().skip_while(|line| !is(line, "ANCHOR")).skip(1);
    let lines: Vec<&str> = lines.take_while(|line| !is(line, "ANCHOR_END")).collect();
    let indented = lines.iter().filter(|line| !line.is_empty());
    let indent = indented.map(|line| line.len() - line.trim_start().len()).min()?;
    Some(lines.iter().map(|line| format!("{}\n", line.get(indent..).unwrap_or_default())).collect())
}

#[test]
fn every_listing_that_stands_in_a_page_is_that_of_its_source() {
    let mut problems = Vec::new();
    for page in pages() {
        let path = crate::root().join("book/src").join(&page);
        let text = std::fs::read_to_string(&path).expect("a page can be read");
        let folder = path.parent().expect("a page is in a folder");
        let written = with_listings(&text, |file, anchor| {
            let source = std::fs::read_to_string(folder.join(Path::new(file)));
            let part = source.ok().and_then(|source| part(&source, anchor));
            part.unwrap_or_else(|| panic!("{}: no {anchor} in {file}", page.display()))
        });
        if written == text {
            continue;
        }
        if std::env::var_os("OUTBOX_WRITE_LISTINGS").is_some() {
            std::fs::write(&path, written).expect("a page can be written");
        } else {
            let differing = text.lines().zip(written.lines()).find(|(one, other)| one != other);
            problems.push(format!("{}: {differing:?}", page.display()));
        }
    }
    let remedy = "OUTBOX_WRITE_LISTINGS=1 cargo test -p outbox-workspace listings";
    assert!(problems.is_empty(), "write them with `{remedy}`:\n  {}\n", problems.join("\n  "));
}

#[test]
fn a_listing_takes_the_place_of_what_stands_in_its_block() {
    let source =
        "fn main() {\n    // ANCHOR: part\n    if a {\n        b();\n\n    }\n    // ANCHOR_END: part\n}\n";
    assert_eq!(part(source, "part").as_deref(), Some("if a {\n    b();\n\n}\n"));
    assert_eq!(part(source, "other"), None);
    let page = "Words.\n\n<!-- listing: a.rs:part -->\n```rust\nold();\n```\n\n```text\nkept\n```\n";
    let written = with_listings(page, |file, anchor| format!("{file} {anchor}\n"));
    assert_eq!(written, page.replace("old();", "a.rs part"));
}
