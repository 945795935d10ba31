//! The versions in the book are those of `Cargo.toml`.

use crate::files::written_files;
use crate::publish::is_released;

fn read(path: &str) -> String {
    let path = crate::root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the version of a name in a `Cargo.toml`, plain or in a table.
fn version<'t>(toml: &'t str, name: &str) -> Option<&'t str> {
    let rest = toml.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))?;
    let rest = rest.split_once("version = ").map_or(rest, |(_, version)| version);
    rest.split('"').nth(1)
}

/// Returns the part of a version that cargo's compatibility depends on: `0.9` of `0.9.1`, `3` of
/// `3.9`.
fn compatible(version: &str) -> String {
    let numbers = if version.starts_with("0.") { 2 } else { 1 };
    version.split('.').take(numbers).collect::<Vec<_>>().join(".")
}

#[test]
fn the_table_of_versions_is_that_of_the_manifest() {
    let (page, toml) = (read("book/src/dependencies.md"), read("Cargo.toml"));
    let rust = version(&toml, "rust-version").expect("a version of Rust");
    for text in [&page, &read("README.md")] {
        assert!(text.contains(&format!("Rust {rust} or later")), "Rust {rust} is not named");
    }
    let table = page.split("| crate | works with |").nth(1).expect("the page has the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut seen = 0;
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        for name in cells[1].split(", ").filter_map(|name| name.strip_prefix('`')?.strip_suffix('`')) {
            let expected = version(&toml, name).unwrap_or_else(|| panic!("{name} is not in Cargo.toml"));
            let told = cells[2].split(' ').next().unwrap_or_default();
            assert_eq!(told, compatible(expected), "{row}");
            seen += 1;
        }
    }
    assert!(seen >= 7, "{seen} crates are told");
}

#[test]
fn versions_are_read_and_compared_as_cargo_does() {
    let toml = "plain = \"1.54\"\nwith = { version = \"0.33\", features = [\"trace\"] }\n";
    assert_eq!((version(toml, "plain"), version(toml, "with")), (Some("1.54"), Some("0.33")));
    assert_eq!((compatible("1.54"), compatible("0.33.1")), ("1".to_owned(), "0.33".to_owned()));
}

/// Readers of the tutorial run the broker that the tests run.
#[test]
fn the_servers_of_the_tutorial_are_those_of_the_tests() {
    let compose = read("examples/service/compose.yaml");
    let images: Vec<&str> = compose.lines().filter_map(|line| line.trim().strip_prefix("image: ")).collect();
    assert!(images.len() >= 2, "{images:?}");
    let tested = ["tests/servers/src/kafka/node.rs", "tests/servers/src/postgres.rs"].map(read).concat();
    for image in images {
        assert!(tested.contains(&format!("\"{image}\"")), "the tests do not run {image}");
    }
}

/// A name that is not ours yet may be a stranger's, and a path of a clone is no advice afterwards.
#[test]
fn pages_take_crates_from_a_clone_until_the_release() {
    let is_released = is_released();
    let is_wrong = |line: &str| if is_released { line.contains("released yet") } else { takes_ours(line) };
    let mut problems = Vec::new();
    for page in written_files().iter().filter(|file| file.extension().is_some_and(|it| it == "md")) {
        let text = read(&page.to_string_lossy());
        let wrong = text.lines().filter(|line| is_wrong(line));
        problems.extend(wrong.map(|line| format!("{}: {line}", page.display())));
    }
    assert!(problems.is_empty(), "\n  {}\n", problems.join("\n  "));
}

/// Tells whether a line takes a crate of the workspace from the registry.
fn takes_ours(line: &str) -> bool {
    let line = line.trim_start_matches(['>', ' ']);
    let is_dependency = line.starts_with("outbox")
        && line.split_once(" = ").is_some_and(|(name, from)| {
            let is_name = name.chars().all(|it| it.is_ascii_lowercase() || it == '-');
            is_name && (from.starts_with('"') || from.contains("version = "))
        });
    is_dependency || line.contains("cargo install outbox")
}

#[test]
fn lines_that_take_a_crate_from_the_registry_are_recognized() {
    for line in ["outbox = \"0.1\"", "outbox-cli = { version = \"0.1\" }", "run `cargo install outbox-cli`"] {
        assert!(takes_ours(line), "{line}");
    }
    for line in ["outbox = { path = \"../outbox/outbox\" }", "sqlx = \"0.9\"", "outbox stores = \"x\""] {
        assert!(!takes_ours(line), "{line}");
    }
}
