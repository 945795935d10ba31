//! Requirements on a published crate: its data on crates.io, its licenses and its first page in the
//! package, and no dependency on an unpublished crate.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// The categories of crates.io in use here. It refuses a crate with an unknown category.
const CATEGORIES: &[&str] = &[
    "asynchronous",
    "command-line-utilities",
    "database",
    "development-tools::procedural-macro-helpers",
    "development-tools::testing",
    "network-programming",
    "web-programming",
];

const LICENCES: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT"];

/// Folders that are useful only with the whole repository.
const LEFT_OUT: &[&str] = &["tests/", "benches/", "examples/"];

fn workspace() -> Metadata {
    let mut command = MetadataCommand::new();
    command.manifest_path(crate::root().join("Cargo.toml")).no_deps();
    command.exec().expect("cargo metadata describes the workspace")
}

fn is_published(package: &Package) -> bool {
    package.publish.as_ref().is_none_or(|registries| !registries.is_empty())
}

/// Runs the same check on every published crate; reports all problems.
#[track_caller]
fn of_every_published_crate(problems: impl Fn(&Package) -> Vec<String>) {
    let metadata = workspace();
    let published: Vec<&Package> =
        metadata.workspace_packages().into_iter().filter(|package| is_published(package)).collect();
    assert!(published.len() >= 14, "these are not all published crates: {}", published.len());
    let wrong: Vec<String> = published
        .into_iter()
        .flat_map(|package| {
            problems(package).into_iter().map(|problem| format!("{}: {problem}", package.name))
        })
        .collect();
    assert!(wrong.is_empty(), "\n  {}\n", wrong.join("\n  "));
}

/// Libraries for users are published, and nothing else.
#[test]
fn libraries_are_published_and_tests_and_examples_are_not() {
    let metadata = workspace();
    for package in metadata.workspace_packages() {
        let folder = package.manifest_path.strip_prefix(&metadata.workspace_root).expect("it is in here");
        let library = ["outbox", "stores", "transports"].iter().any(|top| folder.starts_with(top));
        assert_eq!(is_published(package), library, "{}, in {folder}", package.name);
    }
}

#[test]
fn a_published_crate_can_be_found() {
    of_every_published_crate(|package| {
        let mut problems = keywords(&package.keywords);
        let length = package.description.as_deref().unwrap_or_default().len();
        if !(40..=200).contains(&length) {
            problems.push(format!("a description of {length} bytes; say in 40 to 200 what it is"));
        }
        if package.categories.is_empty() || package.categories.len() > 5 {
            problems.push("one to five categories are needed".to_owned());
        }
        let unknown = package.categories.iter().filter(|name| !CATEGORIES.contains(&name.as_str()));
        problems.extend(unknown.map(|name| format!("{name} is not in the list of categories")));
        problems
    });
}

/// Returns the problems of keywords: invalid or duplicate ones, and other than five.
fn keywords(keywords: &[String]) -> Vec<String> {
    let taken = |word: &str| {
        word.len() <= 20
            && word.starts_with(|first: char| first.is_ascii_alphanumeric())
            && word.chars().all(|it| it.is_ascii_alphanumeric() || "_-+".contains(it))
    };
    let mut problems = Vec::new();
    if keywords.len() != 5 {
        problems.push(format!("{} keywords, where crates.io takes five", keywords.len()));
    }
    if keywords.iter().collect::<BTreeSet<_>>().len() != keywords.len() {
        problems.push("a keyword is there twice".to_owned());
    }
    problems
        .extend(keywords.iter().filter(|word| !taken(word)).map(|word| format!("{word:?} is no keyword")));
    problems
}

#[test]
fn keywords_that_would_be_refused_are_found() {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    assert_eq!(keywords(&words(&["a", "b-c", "c_d", "4e", "exactly-once"])), Vec::<String>::new());
    for wrong in ["", "two words", "-a", "of-more-than-twenty-1"] {
        assert_eq!(keywords(&words(&["a", "b", "c", "d", wrong])).len(), 1, "{wrong:?}");
    }
    assert_eq!(keywords(&words(&["a", "b", "c", "d", "a"])).len(), 1);
    assert_eq!(keywords(&words(&["a"])).len(), 1);
}

/// docs.rs builds every feature, each item with a badge of its feature.
#[test]
fn docs_rs_shows_every_feature() {
    of_every_published_crate(|package| {
        let docs = &package.metadata["docs"]["rs"];
        let mut problems = Vec::new();
        if docs["all-features"] != true
            || !docs["rustdoc-args"].as_array().is_some_and(|args| args == &["--cfg", "docsrs"])
        {
            problems.push("[package.metadata.docs.rs] is not that of the other crates".to_owned());
        }
        let source = package.targets.iter().find(|target| target.is_lib() || target.is_proc_macro());
        let source = read(source.expect("it is a library").src_path.as_std_path());
        let has_features = package.features.keys().any(|name| name != "default");
        if has_features && !source.contains("#![cfg_attr(docsrs, feature(doc_cfg))]") {
            problems.push("it has features, and no `doc_cfg` to show them".to_owned());
        }
        problems
    });
}

/// Returns true once the changelog has no version that waits for its release.
pub(crate) fn is_released() -> bool {
    !read(&crate::root().join("CHANGELOG.md")).contains("(not published yet)")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn a_readme_says_how_to_depend_on_the_crate_and_leads_to_the_book() {
    of_every_published_crate(|package| {
        let Some(readme) = package.readme() else { return vec!["it has no README.md".to_owned()] };
        let page = read(readme.as_std_path());
        let version = format!("{}.{}", package.version.major, package.version.minor);
        let asked = if is_released() { format!("\"{version}\"") } else { "path = \"../outbox/".to_owned() };
        let depends = page.split("```toml\n").skip(1).any(|block| {
            let block = block.split("```").next().unwrap_or_default();
            block.contains("dependencies]\n") && block.contains(&asked)
        });
        let mut problems = Vec::new();
        if !depends {
            problems.push(format!("its README.md does not show the dependency: {asked}"));
        }
        if !page.contains("/book/src/") {
            problems.push("its README.md has no link to the book".to_owned());
        }
        if page.lines().count() < 30 {
            problems.push("its README.md has less than 30 lines".to_owned());
        }
        problems
    });
}

#[test]
fn a_package_has_the_licences_and_no_tests() {
    let root = crate::root();
    of_every_published_crate(|package| {
        let files = packaged(package);
        let mut problems = Vec::new();
        for licence in LICENCES {
            let here = package.manifest_path.with_file_name(licence);
            if !files.contains(*licence) {
                problems.push(format!("{licence} is not in the package"));
            } else if read(here.as_std_path()) != read(&root.join(licence)) {
                problems.push(format!("{licence} is not the one at the top"));
            }
        }
        if !files.contains("README.md") {
            problems.push("README.md is not in the package".to_owned());
        }
        let left = files.iter().filter(|file| LEFT_OUT.iter().any(|folder| file.starts_with(folder)));
        problems.extend(left.map(|file| format!("{file} is in the package")));
        problems
    });
}

/// Returns the files that cargo would put into the package, from its top.
fn packaged(package: &Package) -> BTreeSet<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["package", "--list", "--allow-dirty", "--offline", "--manifest-path"])
        .arg(&package.manifest_path)
        .output()
        .expect("cargo is there");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: cargo package --list: {said}", package.name);
    String::from_utf8_lossy(&output.stdout).lines().map(|line| line.replace('\\', "/")).collect()
}

/// Cargo leaves a dependency for tests out of a package if it has no version. One with a version
/// must be published before, or no registry takes the crate.
#[test]
fn a_published_crate_needs_only_published_ones() {
    let metadata = workspace();
    let packages = metadata.workspace_packages();
    let ours: Vec<Needs> = packages.iter().map(|package| Needs::of(package)).collect();
    let problems = unpublishable(&ours);
    assert!(problems.is_empty(), "\n  {}\n", problems.join("\n  "));
}

/// A crate of the workspace, and its dependencies.
struct Needs {
    name: String,
    published: bool,
    /// Name, whether it is only for tests, whether it has a version.
    dependencies: Vec<(String, bool, bool)>,
}

impl Needs {
    fn of(package: &Package) -> Self {
        let dependencies = package.dependencies.iter().map(|dependency| {
            let dev = dependency.kind == DependencyKind::Development;
            (dependency.name.clone(), dev, !dependency.req.comparators.is_empty())
        });
        let (name, published) = (package.name.to_string(), is_published(package));
        Self { name, published, dependencies: dependencies.collect() }
    }
}

/// Returns the obstacles to publishing the crates one after the other.
fn unpublishable(crates: &[Needs]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut waiting: Vec<(&str, BTreeSet<&str>)> = Vec::new();
    for from in crates.iter().filter(|it| it.published) {
        let mut before = BTreeSet::new();
        for (to, dev, versioned) in &from.dependencies {
            let Some(needed) = crates.iter().find(|it| it.name == *to) else { continue };
            if !dev && !versioned {
                problems.push(format!("{} needs {to}, and says no version", from.name));
            } else if !versioned {
                // Left out by cargo.
            } else if needed.published {
                before.insert(needed.name.as_str());
            } else {
                problems.push(format!("{} needs {to}, which is not published", from.name));
            }
        }
        waiting.push((&from.name, before));
    }
    // Each round publishes the crates that wait for no other; a round without any is a cycle.
    loop {
        let ready: BTreeSet<&str> =
            waiting.iter().filter(|(_, before)| before.is_empty()).map(|(name, _)| *name).collect();
        if ready.is_empty() {
            break;
        }
        waiting.retain(|(name, _)| !ready.contains(name));
        for (_, before) in &mut waiting {
            before.retain(|name| !ready.contains(name));
        }
    }
    if !problems.is_empty() || waiting.is_empty() {
        return problems;
    }
    let circle: Vec<&str> = waiting.into_iter().map(|(name, _)| name).collect();
    vec![format!("a circle: {}", circle.join(", "))]
}

#[test]
fn what_can_not_be_published_is_found() {
    let krate = |name: &str, published, dependencies: &[(&str, bool, bool)]| Needs {
        name: name.to_owned(),
        published,
        dependencies: dependencies.iter().map(|(to, dev, said)| ((*to).to_owned(), *dev, *said)).collect(),
    };
    let kit = || krate("kit", false, &[("store", false, true)]);
    let with =
        |dependencies: &[(&str, bool, bool)]| unpublishable(&[krate("store", true, dependencies), kit()]);
    assert_eq!(with(&[("kit", true, false), ("serde", false, true)]), Vec::<String>::new());
    assert_eq!(with(&[("kit", true, true)]).len(), 1, "for tests, but with a version");
    assert_eq!(with(&[("kit", false, true)]).len(), 1);
    assert_eq!(with(&[("kit", false, false)]).len(), 1);
    let circle = [krate("a", true, &[("b", true, true)]), krate("b", true, &[("a", false, true)])];
    assert_eq!(unpublishable(&circle), ["a circle: a, b"]);
}
