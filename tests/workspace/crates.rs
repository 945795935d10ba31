//! Common properties of every crate of the workspace: the source of its lints, versions and
//! license, and its first page.

use std::path::Path;

use cargo_metadata::{Metadata, MetadataCommand, Package};

fn metadata() -> Metadata {
    let mut command = MetadataCommand::new();
    command.manifest_path(crate::root().join("Cargo.toml")).no_deps();
    command.exec().expect("cargo metadata describes the workspace")
}

/// Runs the same check on every crate of the workspace; reports all problems.
#[track_caller]
fn of_every_crate(problem: impl Fn(&Package) -> Option<String>) {
    let metadata = metadata();
    let packages = metadata.workspace_packages();
    assert!(packages.len() > 5, "these are not all crates: {}", packages.len());
    let problems: Vec<String> = packages
        .into_iter()
        .filter_map(|package| problem(package).map(|problem| format!("{}: {problem}", package.name)))
        .collect();
    assert!(problems.is_empty(), "\n  {}\n", problems.join("\n  "));
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_crate_takes_its_lints_from_the_workspace() {
    of_every_crate(|package| {
        let manifest = read(&package.manifest_path);
        let inherits = section(&manifest, "lints").any(|line| line.replace(' ', "") == "workspace=true");
        (!inherits).then(|| "add `[lints]` with `workspace = true`".to_owned())
    });
}

#[test]
fn every_dependency_takes_its_version_from_the_workspace() {
    of_every_crate(|package| {
        let manifest = read(&package.manifest_path);
        own_version(&manifest)
            .map(|line| format!("`{line}`: put the version into the workspace's Cargo.toml"))
    });
}

#[test]
fn every_crate_has_the_edition_and_the_licences_of_the_workspace() {
    of_every_crate(|package| {
        let (edition, license) = (package.edition.as_str(), package.license.as_deref());
        (edition != "2024" || license != Some("MIT OR Apache-2.0"))
            .then(|| format!("edition {edition}, license {license:?}; take both from the workspace"))
    });
    for (file, starts) in [("LICENSE-MIT", "MIT License"), ("LICENSE-APACHE", "Apache License")] {
        let text = read(crate::root().join(file));
        assert!(text.trim_start().starts_with(starts) && text.len() > 1_000, "{file} is not the full text");
    }
}

#[test]
fn every_published_crate_says_what_it_is_and_has_its_readme_as_first_page() {
    of_every_crate(|package| {
        let published = package.publish.is_none();
        let library = package.targets.iter().find(|target| target.is_lib() || target.is_proc_macro());
        let includes_readme =
            |source: &Path| read(source).contains(r#"#![doc = include_str!("../README.md")]"#);
        if package.description.is_none() {
            Some("it has no description".to_owned())
        } else if published && package.readme.is_none() {
            Some("it has no README.md".to_owned())
        } else if published && library.is_some_and(|library| !includes_readme(library.src_path.as_std_path()))
        {
            Some("its documentation does not begin with its README.md".to_owned())
        } else {
            None
        }
    });
}

/// Returns the lines of a section of a manifest, without blank ones and comments.
fn section<'m>(manifest: &'m str, name: &str) -> impl Iterator<Item = &'m str> {
    let header = format!("[{name}]");
    let lines = manifest.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines
        .skip_while(move |line| *line != header)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.is_empty())
}

/// Returns the first dependency with its own version or path.
fn own_version(manifest: &str) -> Option<&str> {
    let dependencies = ["dependencies", "dev-dependencies", "build-dependencies"];
    let own = |line: &&str| !line.replace(' ', "").contains("workspace=true");
    dependencies.into_iter().find_map(|name| section(manifest, name).find(own))
}

#[test]
fn a_version_of_its_own_is_found_in_every_section() {
    let right = "[package]\nversion = \"1\"\n[dependencies]\n# a comment\nserde.workspace = true\ntokio = { workspace = true, features = [\"rt\"] }\n";
    assert_eq!(own_version(right), None);
    for wrong in ["serde = \"1\"", "serde = { version = \"1\" }", "outbox = { path = \"../outbox\" }"] {
        for name in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let manifest = right.replace("[package]", &format!("[{name}]\n{wrong}\n[package]"));
            assert_eq!(own_version(&manifest), Some(wrong), "{manifest}");
        }
    }
}
