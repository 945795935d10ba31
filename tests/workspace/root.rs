//! The root of the facade has what a program needs, each name on purpose.

use std::collections::BTreeSet;
use std::fs;

use crate::errors::each_source;

/// The most names at the root, modules aside.
const MOST: usize = 49;

fn facade() -> String {
    let path = crate::root().join("outbox/src/lib.rs");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names that are exported at the root: lines without an indent begin an item.
fn names(facade: &str) -> BTreeSet<String> {
    let items = facade.split("\npub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let names = items.flat_map(|item| {
        let list = item.split_once('{').map_or_else(
            || item.rsplit("::").next().unwrap_or_default(),
            |(_, list)| list.trim_end_matches('}'),
        );
        list.split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>()
    });
    names.filter(|name| !name.is_empty() && !name.starts_with('_')).collect()
}

#[test]
fn the_root_has_few_names_and_each_is_written_out() {
    let facade = facade();
    let globs =
        facade.lines().filter(|line| line.trim_start().starts_with("pub use") && line.contains("::*"));
    assert_eq!(globs.count(), 0, "a name that appears in another crate must not appear here by itself");
    let names = names(&facade);
    assert!(names.len() > 40 && names.len() <= MOST, "{} names: {names:?}", names.len());
    let of_backends = ["Lease", "FetchRequest", "Outcomes", "PublishBatch", "WakeupSignal"];
    assert!(
        of_backends.iter().all(|name| !names.contains(*name)),
        "authors of backends find them in `backend`"
    );
}

#[test]
fn names_are_found_in_lists_and_alone() {
    let facade = "\npub use a::{\n    B, C,\n    d,\n};\npub use e::F;\npub mod g {\n    pub use h::I;\n}\n";
    assert_eq!(names(facade), ["B", "C", "F", "d"].map(str::to_owned).into());
}

/// Names of `backend` for programs that receive by themselves, or wrap a transport.
const OF_BACKENDS: &[&str] = &[
    "Deliveries",
    "Delivery",
    "Outcomes",
    "PublishBatch",
    "Received",
    "Subscription",
    "TransportLayer",
    "trace",
];

/// Returns the names that a source takes of `outbox::backend`.
fn of_backend(source: &str) -> Vec<&str> {
    let found = source.split("outbox::backend::").skip(1);
    found
        .flat_map(|rest| match rest.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap_or_default().split(',').collect::<Vec<_>>(),
            None => rest.split(|letter: char| !letter.is_alphanumeric()).take(1).collect(),
        })
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn programs_and_examples_need_little_of_what_authors_of_backends_need() {
    let mut used = BTreeSet::new();
    for folder in ["outbox/cli/src", "outbox/dashboard/src", "examples"] {
        each_source(folder, &mut |path, source| {
            for name in of_backend(source) {
                assert!(OF_BACKENDS.contains(&name), "{}: find a place for {name}", path.display());
                used.insert(name.to_owned());
            }
        });
    }
    assert_eq!(used, OF_BACKENDS.iter().map(|name| (*name).to_owned()).collect(), "nothing takes these");
}

#[test]
fn names_of_backends_are_found_in_lists_and_alone() {
    let source = "use outbox::backend::{A,\n    B};\nlet c = outbox::backend::c::D;\nuse outbox::admin::E;\n";
    assert_eq!(of_backend(source), ["A", "B", "c"]);
}
