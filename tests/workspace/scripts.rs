//! The scripts `tests/features` and `tests/release`: their checks and their order; and every
//! failure fails the script.
//!
//! They run here with a fake cargo, as in `steps`.

use std::collections::BTreeSet;
use std::fs;

use crate::steps::{Ended, Workspace};

const BASH: &str = "#!/usr/bin/env bash\n";

/// A workspace with two features of `outbox`, one store, and a fake cargo that does this for each
/// checked set.
fn features(cargo: &str) -> Workspace {
    let workspace = Workspace::with(&["tests/features", "tests/steps.bash"]);
    let manifest = "[package]\nname = \"outbox\"\n[features]\ndefault = []\n## Words.\na = []\nb-c = [\n]\n[dependencies]\nx = 1\n";
    workspace.program("outbox/Cargo.toml", manifest);
    for (folder, name) in [("outbox/engine", "engine"), ("stores/one", "one"), ("transports/two", "two")] {
        workspace.program(
            &format!("{folder}/Cargo.toml"),
            &format!("[package]\nname = \"{name}\"\n[features]\nd = []\n"),
        );
    }
    workspace.program("bin/cargo", &format!("{BASH}echo \"$*\" >>\"$FOLDER/checked\"\n{cargo}\n"));
    workspace
}

/// Returns each checked crate and set of features.
fn checked(workspace: &Workspace) -> BTreeSet<String> {
    let checked = fs::read_to_string(workspace.path().join("checked")).expect("cargo was called");
    let sets = checked.lines().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let after =
            |option| words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1)).copied();
        format!("{}:{}", after("-p").unwrap_or("?"), after("--features").unwrap_or("?"))
    });
    sets.collect()
}

#[test]
fn every_crate_and_every_pair_of_features_is_compiled() {
    let alone =
        ["engine:", "engine:d", "one:", "one:d", "two:", "two:d", "outbox:", "outbox:a", "outbox:b-c"];
    let quick = BTreeSet::from(alone.map(str::to_owned));
    let workspace = features("");
    let ended = workspace.run_with("tests/features", &["--quick"]);
    assert!(ended.well, "{}", ended.said);
    assert_eq!(checked(&workspace), quick);

    let mut full = quick;
    full.insert("outbox:a,b-c".to_owned());
    let workspace = features("");
    let ended = workspace.run_with("tests/features", &[]);
    assert!(ended.well, "{}", ended.said);
    assert_eq!(checked(&workspace), full);
}

#[test]
fn a_set_that_does_not_compile_or_warns_fails_and_is_named() {
    for wrong in ["echo 'warning: unused import' >&2", "exit 101"] {
        let workspace = features(&format!("case \"$*\" in *'-p one '*) {wrong} ;; esac"));
        let ended = workspace.run_with("tests/features", &["--quick"]);
        assert!(!ended.well, "{wrong}: {}", ended.said);
        assert!(ended.said.contains("FAILED     one, no feature"), "{wrong}: {}", ended.said);
        assert!(ended.said.contains("FAILED     one, d"), "{wrong}: {}", ended.said);
        assert!(!ended.said.contains("FAILED     two"), "{wrong}: {}", ended.said);
        assert!(checked(&workspace).contains("outbox:a"), "{wrong}: the others are tried");
    }
}

/// A workspace that can be published: `b` needs `a`; `kit` is for the tests of `a`, and is not
/// published.
const CRATES: &str = r#"{"packages": [
  {"id": "b", "name": "b", "version": "0.3.0", "repository": "https://host.example/all", "rust_version": "1.70", "publish": null,
   "dependencies": [{"name": "a", "req": "=0.3.0", "kind": null}, {"name": "serde", "req": "^1", "kind": null}]},
  {"id": "a", "name": "a", "version": "0.3.0", "repository": "https://host.example/all", "rust_version": "1.70", "publish": null,
   "dependencies": [{"name": "outbox", "req": "*", "kind": "dev"}, {"name": "kit", "req": "*", "kind": "dev"}]},
  {"id": "outbox", "name": "outbox", "version": "0.3.0", "repository": "https://host.example/all", "rust_version": "1.70", "publish": null,
   "dependencies": [{"name": "b", "req": "=0.3.0", "kind": null}]},
  {"id": "kit", "name": "kit", "version": "0.3.0", "rust_version": "1.70", "publish": [], "dependencies": []},
  {"id": "serde", "name": "serde", "version": "1.0.0", "rust_version": "1.60", "publish": null, "dependencies": []}],
 "workspace_members": ["a", "b", "outbox", "kit"],
 "resolve": {"nodes": [
  {"id": "b", "deps": [{"pkg": "a", "dep_kinds": [{"kind": null}]}, {"pkg": "serde", "dep_kinds": [{"kind": null}]}]},
  {"id": "a", "deps": []}, {"id": "outbox", "deps": []}, {"id": "kit", "deps": []}, {"id": "serde", "deps": []}]}}"#;

const CHANGES: &str = "# Changelog\n\n## Unreleased\n\n## 0.3.0 (2026-01-01)\n\n- **added** all.\n";

/// Inputs of a release check. Each can be made wrong.
struct Release {
    crates: String,
    changes: String,
    readme: &'static str,
    git: &'static str,
    package: &'static str,
}

impl Release {
    fn good() -> Self {
        let (crates, changes) = (CRATES.to_owned(), CHANGES.to_owned());
        Self { crates, changes, readme: "[part](#part)\n", git: "", package: "" }
    }

    /// Runs the script; None on a machine without jq.
    fn run(&self, arguments: &[&str]) -> Option<Ended> {
        let workspace = Workspace::with(&["tests/release", "tests/steps.bash"]);
        // cargo lists other packages only if it is asked for them.
        let without = self.crates.replace("{\"id\": \"serde\", \"name\": \"serde\"", "{\"name\": \"unused\"");
        let without = without.replace("\"rust_version\": \"1.60\", \"publish\": null", "\"publish\": []");
        workspace.program("all", &self.crates);
        workspace.program("ours", &without);
        workspace.program("CHANGELOG.md", &self.changes);
        workspace.program("README.md", self.readme);
        workspace.program("bin/git", &format!("{BASH}{}\n", self.git));
        workspace.program("bin/rustc", &format!("{BASH}echo 'host: here'\n"));
        workspace.program("bin/rustup", BASH);
        let cargo = format!(
            "case \"$*\" in
  metadata*--no-deps*) cat \"$FOLDER/ours\" ;;
  metadata*) cat \"$FOLDER/all\" ;;
  package*) echo Packaging; {} ;;
  *) exit 9 ;;
esac",
            self.package
        );
        workspace.program("bin/cargo", &format!("{BASH}{cargo}\n"));
        let ended = workspace.run_with("tests/release", arguments);
        if ended.said.contains("jq is not there") {
            assert!(!ended.well, "{}", ended.said);
            return None;
        }
        Some(ended)
    }
}

#[test]
fn what_can_be_published_is_told_in_its_order() {
    let Some(order) = Release::good().run(&["--order"]) else { return };
    assert_eq!(order.said, "a\nb\noutbox\n");
    let Some(ended) = Release::good().run(&[]) else { return };
    assert!(ended.well, "{}", ended.said);
    let commands: Vec<&str> =
        ended.said.lines().map(str::trim).filter(|line| line.starts_with("cargo publish")).collect();
    let expected = ["a", "b", "outbox"].map(|name| format!("cargo publish --locked -p {name}"));
    assert_eq!(commands, expected);
}

#[test]
fn what_can_not_be_published_is_told_and_no_command() {
    let changed = |from: &str, to: &str| Release { crates: CRATES.replace(from, to), ..Release::good() };
    let changes = |from: &str, to: &str| Release { changes: CHANGES.replace(from, to), ..Release::good() };
    let cases = [
        (Release { git: "echo ' M README.md'", ..Release::good() }, "FAILED  clean working tree"),
        (Release { package: "exit 101", ..Release::good() }, "FAILED  packages"),
        (
            changed("\"a\", \"version\": \"0.3.0\"", "\"a\", \"version\": \"0.2.9\""),
            "a has version 0.2.9, and others 0.3.0",
        ),
        (changed("\"b\", \"req\": \"=0.3.0\"", "\"b\", \"req\": \"^0.3.0\""), "outbox asks for b ^0.3.0"),
        (
            changed("\"rust_version\": \"1.60\"", "\"rust_version\": \"1.71.1\""),
            "but serde 1.0.0 asks for 1.71.1",
        ),
        (changed("\"outbox\", \"req\": \"*\"", "\"outbox\", \"req\": \"=0.3.0\""), "a circle: "),
        (changes("## 0.3.0", "## 0.2.0"), "no section '## 0.3.0'"),
        (changes("- **added** all.\n", ""), "no section '## 0.3.0'"),
        (changes("## Unreleased\n", "## Unreleased\n\n- **fixed** it.\n"), "lines under 'Unreleased'"),
        (changed("\"repository\": \"https://host.example/all\"", "\"x\": 1"), "a names no repository"),
        (
            Release { readme: "[the book](../book/src/SUMMARY.md)\n", ..Release::good() },
            "README.md:1:[the book](../book/src/SUMMARY.md)",
        ),
    ];
    for (release, words) in cases {
        let Some(ended) = release.run(&[]) else { return };
        assert!(!ended.well, "{words}: {}", ended.said);
        assert!(ended.said.contains(words), "{words}: {}", ended.said);
        assert!(!ended.said.contains("cargo publish"), "{words}: {}", ended.said);
    }
}
