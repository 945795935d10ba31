//! The book matches the code: its listings exist, and its tables name existing items.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use outbox_contract::metric;

use crate::files::{links, targets, written_files};

fn read(path: impl AsRef<Path>) -> String {
    let path = crate::root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Readers on a code host see the pages as they are.
#[test]
fn no_page_needs_mdbook_to_be_whole() {
    for page in pages() {
        let text = read(Path::new("book/src").join(&page));
        assert!(!text.contains("{{#"), "{}: write the listing into the page", page.display());
    }
}

/// Returns the pages of the book, from its folder of sources.
pub(crate) fn pages() -> BTreeSet<PathBuf> {
    let files = written_files().into_iter();
    let pages = files.filter_map(|file| file.strip_prefix("book/src").map(Path::to_owned).ok());
    let pages: BTreeSet<PathBuf> = pages.filter(|page| page.extension() == Some("md".as_ref())).collect();
    assert!(pages.len() > 10, "these are not all pages: {pages:?}");
    pages
}

#[test]
fn the_summary_lists_every_page_once_and_no_other() {
    let summary = read("book/src/SUMMARY.md");
    let mut listed: Vec<PathBuf> = links(&summary).into_iter().map(PathBuf::from).collect();
    listed.push("SUMMARY.md".into());
    listed.sort();
    assert_eq!(listed, pages().into_iter().collect::<Vec<_>>());
}

/// The site of the book has nothing else of the repository.
#[test]
fn every_link_of_the_book_leads_to_a_part_of_the_book() {
    let text = |page: PathBuf| (page.clone(), read(Path::new("book/src").join(page)));
    let pages: BTreeMap<PathBuf, String> = pages().into_iter().map(text).collect();
    let mut problems = Vec::new();
    for (page, text) in &pages {
        for target in targets(text) {
            let (file, part) = target.split_once('#').unwrap_or((target, ""));
            let leads_to = if file.is_empty() { Some(page.clone()) } else { led_to(page, file) };
            let is_there = leads_to.is_some_and(|to| match pages.get(&to) {
                Some(text) => part.is_empty() || headings(text).contains(part),
                None => to.starts_with("images") && part.is_empty(),
            });
            if !is_there {
                problems.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(problems.is_empty(), "no page or heading of the book:\n  {}\n", problems.join("\n  "));
}

/// Returns the file to which a link of a page leads. None: one outside of the book.
fn led_to(page: &Path, link: &str) -> Option<PathBuf> {
    let mut to = page.parent()?.to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => to.pop().then_some(())?,
            Component::Normal(part) => to.push(part),
            _ => return None,
        }
    }
    Some(to)
}

/// Returns the names by which the headings of a page are linked to.
fn headings(page: &str) -> BTreeSet<String> {
    let mut in_code = false;
    let lines = page.lines().filter(|line| {
        in_code ^= line.trim_start().starts_with("```");
        !in_code && line.starts_with('#')
    });
    let kept = |letter: char| match letter {
        ' ' => Some('-'),
        letter if letter.is_alphanumeric() || "-_".contains(letter) => Some(letter),
        _ => None,
    };
    let name = |line: &str| {
        line.trim_start_matches('#').trim().to_lowercase().chars().filter_map(kept).collect::<String>()
    };
    lines.map(name).collect()
}

#[test]
fn links_are_followed_within_the_book() {
    let to = |page: &str, link: &str| led_to(Path::new(page), link);
    assert_eq!(to("a.md", "b.md"), Some("b.md".into()));
    assert_eq!(to("decisions/0001-a.md", "../b.md"), Some("b.md".into()));
    assert_eq!(to("a.md", "decisions/index.md"), Some("decisions/index.md".into()));
    assert_eq!(to("a.md", "../../stores/README.md"), None);
    let page = "# `a` and B's\n```sh\n# no heading\n```\n## C, or D\n";
    assert_eq!(headings(page), ["a-and-bs", "c-or-d"].map(str::to_owned).into());
}

#[test]
fn the_table_of_metrics_is_the_one_in_the_code() {
    let table: Vec<String> = read("book/src/metrics.md")
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(str::to_owned)
        .collect();
    let metrics = metric::ALL.iter().map(|metric| {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let kind = format!("{:?}", metric.kind).to_lowercase();
        format!("| `{}` | {kind} | {} | {} | {} |", metric.name, metric.unit, labels.join(", "), metric.help)
    });
    assert_eq!(table, metrics.collect::<Vec<_>>());
}

#[test]
fn the_table_of_reasons_of_health_is_the_one_in_the_code() {
    let page = read("book/src/monitoring.md");
    let table = page.split("| code | meaning |\n|---|---|\n").nth(1).unwrap_or_default();
    let table: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    let code = read("outbox/engine/src/health/reason.rs");
    let kinds = code.lines().filter_map(|line| {
        let (code, meaning) = line.trim().strip_suffix("\";")?.split_once(" = \"")?.1.split_once("\", \"")?;
        Some(format!("| `{code}` | {meaning} |"))
    });
    assert_eq!(table, kinds.collect::<Vec<_>>());
}

#[test]
fn the_tables_of_settings_name_every_setting_and_no_other() {
    let pages = read("book/src/configuration.md");
    let settings = [
        ("outbox/engine/src/relay/config.rs", "RelayConfig", "The relay\n"),
        ("outbox/engine/src/inbox/config.rs", "InboxConfig", "The inbox\n"),
        ("outbox/contract/src/retry.rs", "RetryPolicy", "Retry policy\n"),
        ("stores/sqlite/src/config.rs", "SqliteOptions", "The store in SQLite\n"),
    ];
    let mut known = BTreeSet::new();
    for (file, name, heading) in settings {
        let fields = fields(&read(file), name);
        assert!(!fields.is_empty(), "{name} is not in {file}");
        let section = pages.split("\n## ").find(|section| section.starts_with(heading));
        let section = section.unwrap_or_else(|| panic!("the book has no section {heading:?}"));
        for field in &fields {
            assert!(section.contains(&format!("\n| `{field}` |")), "the book does not name {name}::{field}");
        }
        known.extend(fields);
    }
    known.extend(methods(&read("transports/memory/src/config.rs")));
    let tables = pages
        .split("| setting")
        .skip(1)
        .flat_map(|rest| rest.lines().skip(2).take_while(|line| line.starts_with('|')));
    for row in tables {
        let name = row.split('`').nth(1).unwrap_or_default();
        assert!(known.contains(name), "the book names a setting that is not there: {row}");
    }
}

#[test]
fn the_page_of_each_backend_names_every_setting_and_no_other() {
    let options = |store: &str, name: &str| fields(&read(format!("stores/{store}/src/config.rs")), name);
    let builder = |transport: &str, file: &str| methods(&read(format!("transports/{transport}/src/{file}")));
    let pages = [
        ("postgres", options("postgres", "PostgresOptions")),
        ("mysql", options("mysql", "MySqlOptions")),
        ("mongodb", options("mongodb", "MongoDbOptions")),
        ("kafka", builder("kafka", "builder.rs")),
        ("rabbitmq", builder("rabbitmq", "builder.rs")),
        ("redis", builder("redis", "config.rs")),
    ];
    for (page, settings) in pages {
        let expected: BTreeSet<String> = settings.into_iter().filter(|name| name != "build").collect();
        let text = read(format!("book/src/{page}.md"));
        let is_table =
            |section: &&str| ["Configuration\n", "Settings\n"].iter().any(|it| section.starts_with(it));
        let section = text.split("\n## ").find(is_table).unwrap_or_else(|| panic!("{page} has no settings"));
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
        let told = rows.flat_map(|cell| cell.split('`').step_by(2)).filter(|name| !name.is_empty());
        assert_eq!(told.map(str::to_owned).collect::<BTreeSet<_>>(), expected, "{page}.md");
    }
}

/// A guarantee is only as good as its test.
#[test]
fn the_tests_that_the_promises_name_are_there() {
    let page = read("book/src/evidence.md");
    let rows = page.split("the test that fails without |").nth(1).expect("the page has the table");
    let rows: Vec<&str> = rows.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), 8, "a row for each backend");
    assert_each_names_a_test(&rows);
}

/// Every operation of `Admin` and `AdminExt` has a row with its property, and every database a test
/// of all of them.
#[test]
fn the_table_of_operations_is_whole_and_its_tests_are_there() {
    let page = read("book/src/admin.md");
    let table = |head: &str| -> Vec<String> {
        let rows = page.split(head).nth(1).unwrap_or_else(|| panic!("the page has no table {head:?}"));
        rows.lines().skip(2).take_while(|line| line.starts_with('|')).map(str::to_owned).collect()
    };
    let (operations, databases) =
        (table("| property of every store |"), table("| all operations of | test |"));
    assert_eq!(databases.len(), 2 * 4 + 1, "two rows for each database, and one for the browser");
    for rows in [&operations, &databases] {
        assert_each_names_a_test(&rows.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let named: String = operations.iter().filter_map(|row| row.split('|').nth(1)).collect();
    let named: BTreeSet<&str> = named.split('`').skip(1).step_by(2).collect();
    let source = read("outbox/contract/src/admin.rs") + &read("outbox/contract/src/admin/ext.rs");
    let methods = source.lines().filter_map(|line| line.strip_prefix("    async fn ")?.split('(').next());
    // What others of them are made of, and what is looked at before a relay starts.
    let internal = ["browse", "steer", "append_again", "set_paused", "identity", "misplaced"];
    let methods: BTreeSet<&str> = methods.filter(|method| !internal.contains(method)).collect();
    assert!(methods.len() > 15, "these are not all operations: {methods:?}");
    assert_eq!(named, methods);
}

/// A cure that has no test may be lost.
#[test]
fn the_tests_of_what_people_reported_are_there() {
    let page = read("book/src/reports.md");
    let sections = page.split("| reported | now | tests | elsewhere |\n").skip(1);
    let rows: Vec<&str> =
        sections.flat_map(|rest| rest.lines().skip(1).take_while(|line| line.starts_with('|'))).collect();
    assert!(rows.len() >= 20, "these are not all reports: {}", rows.len());
    let mut names = Vec::new();
    for row in rows {
        let tests = row.splitn(4, " | ").skip(2).flat_map(|cells| cells.split('`').skip(1).step_by(2));
        let before = names.len();
        names.extend(tests);
        assert!(names.len() > before, "no test: {row}");
    }
    names.push("every_step_of_a_message_is_one_statement");
    assert_are_tests(&names);
}

/// The last thing in code that each row of a table names is a test, or a property of a suite.
#[track_caller]
pub(crate) fn assert_each_names_a_test(rows: &[&str]) {
    let name =
        |row: &str| row.trim_end_matches([' ', '|', '`']).rsplit('`').next().unwrap_or_default().to_owned();
    let names: Vec<String> = rows.iter().map(|row| name(row)).collect();
    assert_are_tests(&names.iter().map(String::as_str).collect::<Vec<_>>());
}

#[track_caller]
fn assert_are_tests(names: &[&str]) {
    let sources: Vec<String> = written_files()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(read)
        .collect();
    for name in names {
        let functions = [format!("fn {name}("), format!("fn {name}<")];
        let is_there =
            sources.iter().any(|source| functions.iter().any(|function| source.contains(function)));
        assert!(is_there, "no test is called {name}");
    }
}

/// Returns the public fields of a struct.
fn fields(source: &str, name: &str) -> Vec<String> {
    let body = source.split(&format!("pub struct {name} {{\n")).nth(1).unwrap_or_default();
    let lines = body.lines().take_while(|line| *line != "}");
    let fields = lines.filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'));
    fields.map(|(field, _)| field.to_owned()).collect()
}

/// Returns the public methods of a builder.
fn methods(source: &str) -> Vec<String> {
    let names =
        source.lines().filter_map(|line| line.trim().strip_prefix("pub fn ")?.split(['(', '<']).next());
    names.map(str::to_owned).collect()
}

#[test]
fn fields_and_methods_are_read_from_sources() {
    let source = "/// Words.\npub struct A {\n    /// First.\n    pub one: u32,\n    two: u32,\n    pub three: Vec<u8>,\n}\nimpl A {\n    pub fn set<T: Into<A>>(self, x: T) {}\n    fn own() {}\n}\n";
    assert_eq!(fields(source, "A"), ["one", "three"]);
    assert!(fields(source, "B").is_empty());
    assert_eq!(methods(source), ["set"]);
}
