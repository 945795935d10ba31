//! Rules for the files of the repository, and texts that they must not contain.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The permanent top-level folders: every later addition goes into one of them.
const FOLDERS: &[&str] = &["book", "examples", "outbox", "stores", "tests", "transports"];

/// Folders that builds create.
const BUILT: &[&str] = &["target", "book/book", "tests/drivers/target", "tests/peers/target"];

/// Texts that name one machine or one network: they work nowhere else. Split, so that this file
/// does not contain them.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("/Us", "ers/"), "a path of one machine"),
    (concat!("/tmp/", "bash_"), "a path of one machine"),
    (concat!("index.", "crates.io"), "a host of a package registry"),
    (concat!("static.", "crates.io"), "a host of a package registry"),
    (concat!("registry.", "npmjs"), "a host of a package registry"),
    (concat!("pypi", ".org"), "a host of a package registry"),
    (concat!("files.", "pythonhosted"), "a host of a package registry"),
    (concat!("proxy.", "golang"), "a host of a package registry"),
    (concat!("repo1.", "maven"), "a host of a package registry"),
    (concat!("repo.", "maven"), "a host of a package registry"),
    (concat!("deb.", "debian"), "a host of a package registry"),
    (concat!("security.", "debian"), "a host of a package registry"),
];

/// Returns every file of the repository that people write, from its top; build output and git's
/// files are left out.
pub(crate) fn written_files() -> Vec<PathBuf> {
    fn walk(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) {
        let entries = fs::read_dir(root.join(folder)).expect("the repository can be read");
        for entry in entries {
            let entry = entry.expect("the repository can be read");
            let path = folder.join(entry.file_name());
            let kind = entry.file_type().expect("the repository can be read");
            let skipped = path == Path::new(".git") || BUILT.iter().any(|built| path == Path::new(built));
            if kind.is_dir() && !skipped {
                walk(root, &path, found);
            } else if kind.is_file() && path != Path::new(".git") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&crate::root(), Path::new(""), &mut found);
    found.sort();
    assert!(found.len() > 50, "these are not all files: {}", found.len());
    found
}

#[test]
fn the_folders_at_the_top_are_the_fixed_ones() {
    let entries = fs::read_dir(crate::root()).expect("the repository can be read");
    let folders: BTreeSet<String> = entries
        .filter_map(|entry| entry.ok().filter(|entry| entry.path().is_dir()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.') && !BUILT.contains(&name.as_str()))
        .collect();
    assert_eq!(folders, FOLDERS.iter().map(|name| (*name).to_owned()).collect());
}

#[test]
fn no_file_names_one_machine_or_a_registry() {
    let root = crate::root();
    let mut problems = Vec::new();
    for file in written_files() {
        // A file that is not text (a picture, say) has no words to check.
        let Ok(text) = fs::read_to_string(root.join(&file)) else { continue };
        for (number, line) in text.lines().enumerate() {
            if let Some((word, what)) = forbidden(line) {
                problems.push(format!("{}:{}: {word:?} is {what}", file.display(), number + 1));
            }
        }
    }
    assert!(problems.is_empty(), "\n  {}\n", problems.join("\n  "));
}

fn forbidden(line: &str) -> Option<(&'static str, &'static str)> {
    FORBIDDEN.iter().copied().find(|(word, _)| line.contains(word))
}

#[test]
fn forbidden_words_are_found_within_a_line() {
    assert_eq!(forbidden("the usual place is target/debug, or docs.rs"), None);
    for (word, _) in FORBIDDEN {
        assert_eq!(forbidden(&format!("see {word}x for more")).map(|(found, _)| found), Some(*word));
    }
}

#[test]
fn every_link_to_a_file_leads_to_one() {
    let root = crate::root();
    let mut problems = Vec::new();
    for file in written_files().iter().filter(|file| file.extension().is_some_and(|ending| ending == "md")) {
        let text = fs::read_to_string(root.join(file)).expect("a page is text");
        let folder = file.parent().unwrap_or(Path::new(""));
        for link in links(&text) {
            if !root.join(folder).join(link).exists() {
                problems.push(format!("{}: {link} is not there", file.display()));
            }
        }
    }
    assert!(problems.is_empty(), "\n  {}\n", problems.join("\n  "));
}

/// Returns the links of a Markdown page that lead to files, without the places within them. Code is
/// left out.
pub(crate) fn links(page: &str) -> Vec<&str> {
    let files = targets(page).into_iter().map(|target| target.split('#').next().unwrap_or_default());
    files.filter(|file| !file.is_empty()).collect()
}

/// Returns the links of a Markdown page that lead to no other site, as they are. Code is left out.
pub(crate) fn targets(page: &str) -> Vec<&str> {
    let mut in_code = false;
    let text = page.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    let targets = text.flat_map(|line| line.split("](").skip(1).filter_map(|rest| rest.split(')').next()));
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

#[test]
fn links_are_read_from_pages() {
    let page = "[a](a.md), [b](b/c.md#part) and [here](#part), [web](https://example.com/x.md)\n```\n[code](no.md)\n```\n[d](../d)";
    assert_eq!(links(page), ["a.md", "b/c.md", "../d"]);
    assert_eq!(targets(page), ["a.md", "b/c.md#part", "#part", "../d"]);
}

#[test]
#[cfg(unix)]
fn every_script_can_be_run() {
    use std::os::unix::fs::PermissionsExt;
    let root = crate::root();
    for file in written_files() {
        let path = root.join(&file);
        let script = fs::read(&path).is_ok_and(|bytes| bytes.starts_with(b"#!/"));
        let mode = fs::metadata(&path).expect("a file has its data").permissions().mode();
        assert_eq!(script, mode & 0o111 != 0, "{}: `#!` and the right to be run go together", file.display());
    }
}
