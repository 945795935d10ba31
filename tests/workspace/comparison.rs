//! Lines and types that a user names, as the book's introduction counts them.

use std::collections::BTreeSet;

/// Parts of a line that names something of the library.
const NAMED: [&str; 16] = [
    "DomainEvent",
    "#[event(",
    "HandlerContext",
    "HandlerError",
    "Store",
    "Transport",
    "Service::",
    "Outbox<",
    ".inbox(",
    ".migrate()",
    ".start()",
    ".outbox()",
    ".append(",
    ".run_until(",
    ".shutdown(",
    "context.tx()",
];

/// Returns the number of lines that name something of the library, and of the types among them.
/// Imports and comments do not count.
fn counted(source: &str) -> (usize, usize) {
    let lines = source.lines().map(str::trim);
    let lines = lines.filter(|line| !line.starts_with("use ") && !line.starts_with("//"));
    let named: Vec<&str> = lines.filter(|line| NAMED.iter().any(|name| line.contains(name))).collect();
    let words = named.iter().flat_map(|line| line.split(|letter: char| !letter.is_alphanumeric()));
    let is_type = |word: &&str| {
        ["DomainEvent", "HandlerContext", "HandlerError", "Service", "Outbox"].contains(word)
            || word.ends_with("Store")
            || word.ends_with("Transport")
    };
    (named.len(), words.filter(is_type).collect::<BTreeSet<&str>>().len())
}

#[test]
fn the_introduction_counts_the_lines_of_the_examples() {
    let read = |path: &str| std::fs::read_to_string(crate::root().join(path)).expect("the file is there");
    let examples: [&[&str]; 3] = [
        &["shop_and_billing/src/lib.rs", "shop_and_billing/src/bin/shop.rs"],
        &["shop_and_billing/src/lib.rs", "shop_and_billing/src/bin/billing.rs"],
        &["quick_start/src/main.rs"],
    ];
    let cells = examples.map(|files| {
        let sources = files.iter().map(|file| read(&format!("examples/{file}")));
        let (lines, types) = counted(&sources.collect::<String>());
        format!("{lines} lines, {types} types")
    });
    let row = format!("| this library | {} |", cells.join(" | "));
    assert!(read("book/src/introduction.md").contains(&row), "the book counts otherwise than: {row}");
}

#[test]
fn lines_that_name_something_of_the_library_are_counted() {
    let source = "use outbox::Outbox;\n// Service::new()\nlet store = PgStore::new(pool);\nstore.migrate().await?;\nf(a);\n";
    assert_eq!(counted(source), (2, 1));
}
