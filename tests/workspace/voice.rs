//! Style of texts, as far as it can be counted.

use crate::files::written_files;

/// Maximum length of a line of prose.
const WIDTH: usize = 110;

/// Calls a function with each written file of an ending.
fn each_file(ending: &str, mut found: impl FnMut(&str, &str)) {
    for file in written_files() {
        if file.extension().is_some_and(|extension| extension == ending) {
            let text = std::fs::read_to_string(crate::root().join(&file)).expect("the file is text");
            found(&file.to_string_lossy(), &text);
        }
    }
}

/// Returns the doc comments that begin with a free relative in place of a noun or a verb.
fn relatives(source: &str) -> Vec<&str> {
    let is_doc = |line: &str| line.starts_with("///") || line.starts_with("//!");
    let (mut found, mut before) = (Vec::new(), "");
    for line in source.lines().map(str::trim) {
        let word = line.get(3..).unwrap_or_default().split_whitespace().next();
        if is_doc(line) && !is_doc(before) && matches!(word, Some("What" | "How" | "Whether")) {
            found.push(line);
        }
        before = line;
    }
    found
}

/// Returns the lines of prose that are too long: those of tables and of code can't be broken.
fn long(page: &str) -> Vec<&str> {
    let mut in_code = false;
    let is_prose = |line: &&str| {
        in_code ^= line.trim_start().starts_with("```");
        !in_code && !["|", "!["].iter().any(|start| line.trim_start().starts_with(start))
    };
    let prose: Vec<&str> = page.lines().filter(is_prose).collect();
    prose.into_iter().filter(|line| line.chars().count() > WIDTH && line.trim().contains(' ')).collect()
}

#[test]
fn doc_comments_begin_with_a_noun_or_a_verb() {
    let mut problems = Vec::new();
    each_file("rs", |file, source| {
        problems.extend(relatives(source).iter().map(|line| format!("{file}: {line}")));
    });
    assert!(problems.is_empty(), "\n  {}\n", problems.join("\n  "));
}

#[test]
fn prose_is_at_most_110_columns_wide() {
    let mut problems = Vec::new();
    each_file("md", |file, page| {
        problems.extend(long(page).iter().map(|line| format!("{file}: {line}")));
    });
    assert!(problems.is_empty(), "\n  {}\n", problems.join("\n  "));
}

#[test]
fn relatives_and_long_lines_are_found() {
    let source = "/// What waits.\nfn a() {}\n/// The number.\n/// How many: see b.\nfn b() {}\n";
    assert_eq!(relatives(source), ["/// What waits."]);
    let words = "word ".repeat(30);
    assert_eq!(long(&format!("{words}\n| {words} |\n```\n{words}\n```\nshort")), [words.as_str()]);
}
