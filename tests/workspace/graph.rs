//! Dependencies of the crates of the workspace, inside and outside of it.
//!
//! A graph is plain data, so that the checker in `arrows` can be tested on synthetic ones. The real
//! one comes from `cargo metadata`, with every feature switched on.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, Package};

/// The workspace, and its outside packages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    /// The crates of the workspace.
    pub(crate) crates: Vec<Crate>,
    /// Dependencies of each package, inside or outside: by name, versions taken together.
    pub(crate) built_from: BTreeMap<String, BTreeSet<String>>,
}

/// A crate of the workspace.
#[derive(Clone, Debug)]
pub(crate) struct Crate {
    /// Its name.
    pub(crate) name: String,
    /// Its folder, from the top of the repository, such as `stores/sqlite`.
    pub(crate) folder: String,
    /// Dependencies named in its manifest, inside or outside of the workspace.
    pub(crate) dependencies: Vec<Dependency>,
    /// Features and dependencies that its feature `default` switches on, directly or through other
    /// features.
    pub(crate) on_by_default: BTreeSet<String>,
}

/// A dependency as a manifest names it.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    /// The package.
    pub(crate) name: String,
    /// True if it is for tests, benchmarks and examples only.
    pub(crate) dev: bool,
    /// True if a feature has to ask for it.
    pub(crate) optional: bool,
    /// The features requested of it.
    pub(crate) features: Vec<String>,
}

impl Graph {
    /// Returns the graph of this repository.
    pub(crate) fn of_this_repository() -> Self {
        let metadata = MetadataCommand::new()
            .manifest_path(crate::root().join("Cargo.toml"))
            .features(CargoOpt::AllFeatures)
            // Packages that only other platforms need may not have been downloaded.
            .other_options(["--filter-platform".to_owned(), "host-tuple".to_owned()])
            .exec()
            .expect("cargo metadata describes the workspace");
        Self::from_metadata(&metadata)
    }

    fn from_metadata(metadata: &Metadata) -> Self {
        let crates = metadata
            .workspace_packages()
            .into_iter()
            .map(|package| Crate::from_package(package, &metadata.workspace_root))
            .collect();

        let names: BTreeMap<_, _> =
            metadata.packages.iter().map(|package| (&package.id, package.name.to_string())).collect();
        let mut built_from: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in &metadata.resolve.as_ref().expect("cargo metadata resolves dependencies").nodes {
            let needs = built_from.entry(names[&node.id].clone()).or_default();
            for dependency in &node.deps {
                if dependency.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development) {
                    needs.insert(names[&dependency.pkg].clone());
                }
            }
        }
        Self { crates, built_from }
    }

    /// Returns every dependency of a package, at any depth.
    pub(crate) fn reach(&self, package: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut next = vec![package];
        while let Some(package) = next.pop() {
            for needed in self.built_from.get(package).into_iter().flatten() {
                if reached.insert(needed.as_str()) {
                    next.push(needed);
                }
            }
        }
        reached
    }
}

impl Crate {
    fn from_package(package: &Package, root: &cargo_metadata::camino::Utf8Path) -> Self {
        let folder = package.manifest_path.parent().and_then(|folder| folder.strip_prefix(root).ok());
        let dependencies = package.dependencies.iter().map(|dependency| Dependency {
            name: dependency.name.clone(),
            dev: dependency.kind == DependencyKind::Development,
            optional: dependency.optional,
            features: dependency.features.clone(),
        });
        Self {
            name: package.name.to_string(),
            folder: folder.expect("a crate of the workspace is inside of it").to_string(),
            dependencies: dependencies.collect(),
            on_by_default: switched_on(&package.features, "default"),
        }
    }
}

/// Returns everything that a feature switches on in its own crate: other features, and optional
/// dependencies as `dep:name`.
fn switched_on(features: &BTreeMap<String, Vec<String>>, feature: &str) -> BTreeSet<String> {
    let mut on = BTreeSet::new();
    let mut next = vec![feature.to_owned()];
    while let Some(feature) = next.pop() {
        for switched in features.get(&feature).into_iter().flatten() {
            // `name/feature` switches the optional dependency on too; `name?/feature` does not.
            let switched = match switched.split_once('/') {
                Some((name, _)) if name.ends_with('?') => continue,
                Some((name, _)) => format!("dep:{name}"),
                None => switched.clone(),
            };
            if on.insert(switched.clone()) {
                next.push(switched);
            }
        }
    }
    on
}

#[test]
fn features_switch_on_what_they_name_at_any_depth() {
    let features = BTreeMap::from([
        ("default".to_owned(), vec!["a".to_owned(), "weak?/x".to_owned()]),
        ("a".to_owned(), vec!["b".to_owned(), "strong/x".to_owned()]),
        ("b".to_owned(), vec!["dep:c".to_owned(), "a".to_owned()]),
        ("unused".to_owned(), vec!["dep:d".to_owned()]),
    ]);
    let on = switched_on(&features, "default");
    assert_eq!(on, ["a", "b", "dep:c", "dep:strong"].map(str::to_owned).into());
}

#[test]
fn reach_goes_to_any_depth_and_survives_circles() {
    let edge = |from: &str, to: &[&str]| (from.to_owned(), to.iter().map(|to| (*to).to_owned()).collect());
    let graph = Graph {
        crates: Vec::new(),
        built_from: [edge("a", &["b"]), edge("b", &["c"]), edge("c", &["a"]), edge("d", &["e"])].into(),
    };
    assert_eq!(graph.reach("a"), ["a", "b", "c"].into());
}
