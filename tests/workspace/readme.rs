//! The README matches the repository: its listing is a program's, its promises are the book's, its
//! pairs are those of the suite `matrix`.

use std::collections::BTreeSet;

use crate::anchors::anchored;

fn read(path: &str) -> String {
    let path = crate::root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the non-empty lines, trimmed.
fn said<'l>(lines: impl IntoIterator<Item = &'l str>) -> Vec<&'l str> {
    lines.into_iter().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn the_first_lines_of_code_are_those_of_the_quick_start() {
    let (page, source) = (read("README.md"), read("examples/quick_start/src/main.rs"));
    let block = |number: usize| {
        let block = page.split("```rust\n").nth(number).and_then(|rest| rest.split("```").next());
        said(block.expect("the README shows code").lines())
    };
    let parts = |names: &[&str]| -> Vec<&str> {
        names.iter().flat_map(|part| said(anchored(&source, part).expect(part))).collect()
    };
    assert_eq!(block(1), parts(&["use", "event"]));
    assert_eq!(block(2), parts(&["handler", "service", "append", "stop"]));
    let code = block(2).iter().filter(|line| !line.starts_with("//") && **line != "}").count();
    assert!(code <= 16, "{code} lines of code");
}

#[test]
fn the_promises_are_those_of_the_book() {
    let promises = |page: &str| -> Vec<String> {
        let numbered = |rest: &str| rest.starts_with(|it: char| it.is_ascii_digit());
        let page = read(page);
        page.lines()
            .filter(|line| line.strip_prefix("| P").is_some_and(numbered))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(promises("README.md").len(), 9);
    assert_eq!(promises("README.md"), promises("book/src/guarantees.md"));
}

/// Returns the cells of a line of a table, trimmed.
fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// Returns the pairs of the table with this head, under the names of the tests of the suite
/// `matrix`.
fn pairs_of_the_table(page: &str, head: &str) -> BTreeSet<String> {
    let name = |cell: &str| cell.to_lowercase();
    let transports: Vec<String> = cells(head).into_iter().skip(1).map(name).collect();
    let rows = page.lines().skip_while(|line| *line != head).skip(2).take_while(|line| line.starts_with('|'));
    let mut pairs = BTreeSet::new();
    for row in rows {
        let row = cells(row);
        let store = name(row[0]).replace("postgresql", "postgres");
        for (transport, state) in transports.iter().zip(&row[1..]) {
            if *state == "tested" {
                pairs.insert(format!("{store}_to_{transport}"));
            }
        }
    }
    pairs
}

/// Returns the tests passed to the macro of the suite.
fn pairs_of_the_suite(source: &str) -> BTreeSet<String> {
    let listed = source.split("\npairs! {\n").nth(1).and_then(|rest| rest.split("\n}").next());
    let listed = listed.expect("the suite lists its pairs").lines();
    listed.filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

#[test]
fn the_pairs_are_those_of_the_suite() {
    let told = pairs_of_the_table(&read("README.md"), "| | memory | RabbitMQ | Kafka | Redis |");
    let tested = pairs_of_the_suite(&read("tests/matrix/mod.rs"));
    assert!(tested.len() >= 12, "these are not all pairs: {tested:?}");
    assert_eq!(told, tested);
}

#[test]
fn a_pair_that_is_told_and_not_tested_is_found() {
    let page = "| | memory | Kafka |\n|---|---|---|\n| SQLite | tested | not yet |\n| PostgreSQL | tested | tested |\n";
    let told = pairs_of_the_table(page, "| | memory | Kafka |");
    let suite = "\npairs! {\n    sqlite_to_memory: a, b;\n    postgres_to_kafka: c, d;\n}\n";
    let missing: Vec<_> = told.difference(&pairs_of_the_suite(suite)).cloned().collect();
    assert_eq!(missing, ["postgres_to_memory"]);
}
