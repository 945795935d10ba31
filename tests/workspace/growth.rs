//! Types of the contract can grow without breaking who implements or calls it.

use std::collections::BTreeMap;

use crate::errors::each_source;

/// Types that are whole, each with its reason. A struct is in question if all of its fields are
/// public, and an enum always.
#[rustfmt::skip]
const WHOLE: &[(&str, &[&str])] = &[
    ("names of things", &[
        "Bucket", "Epoch", "KeyId", "Lease", "Origin", "Position", "RowId", "Stripe", "StripeId", "Tag", "Unit",
    ]),
    ("rows of the tables: a store that leaves out a column breaks a rule", &[
        "AuditColumns", "BucketRow", "KeyState", "RelayRow", "StripeMark",
    ]),
    ("requests that a backend must know: a new one must not compile in silence", &[
        "Archive", "KeyOperation", "OffsetReset", "Scope", "Step", "StoreOptions", "Then", "View",
    ]),
    ("answers that the caller must act on", &[
        "Blame", "Committed", "Decision", "Dedup", "Look", "Outcome", "Transitioned", "Unavailable", "Wakeup",
    ]),
    ("users write them as literals with a base, such as `..Filter::all_routes()`", &[
        "Edit", "Filter", "RetryPolicy", "RetryRule",
    ]),
    ("nothing can be added", &[
        "DueTime", "Figure", "Kind", "Load", "Rejection", "Tried",
    ]),
];

/// Returns the types of a source that are in question, and whether each is `#[non_exhaustive]`.
fn types(source: &str) -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    let mut can_grow = false;
    let lines: Vec<&str> = source.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let (is_enum, item) = match (line.strip_prefix("pub enum "), line.strip_prefix("pub struct ")) {
            (Some(item), _) => (true, item),
            (_, Some(item)) => (false, item),
            _ => {
                can_grow = (can_grow && line.starts_with('#')) || *line == "#[non_exhaustive]";
                continue;
            }
        };
        let name = item.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
        let body = lines[at + 1..].iter().take_while(|line| **line != "}");
        let fields: Vec<&str> = match item.split_once('(') {
            Some((_, fields)) if item.ends_with(';') => fields.split(", ").collect(),
            None if item.ends_with(';') => continue,
            _ => body.filter_map(|line| line.strip_prefix("    ")).filter(|line| is_field(line)).collect(),
        };
        if is_enum || fields.iter().all(|field| field.starts_with("pub ")) {
            found.insert(name.to_owned(), can_grow);
        }
        can_grow = false;
    }
    found
}

fn is_field(line: &str) -> bool {
    line.starts_with(|letter: char| letter.is_ascii_lowercase())
}

#[test]
fn types_of_the_contract_can_grow_or_are_whole_on_purpose() {
    let mut found = BTreeMap::new();
    each_source("outbox/contract/src", &mut |_, source| found.extend(types(source)));
    assert!(found.len() > 60, "these are not all types: {found:?}");
    let whole: Vec<&str> = WHOLE.iter().flat_map(|(_, names)| *names).copied().collect();
    let unlisted = found.iter().filter(|(name, can_grow)| !**can_grow && !whole.contains(&name.as_str()));
    assert_eq!(
        unlisted.map(|(name, _)| name).collect::<Vec<_>>(),
        [""; 0],
        "add #[non_exhaustive] and `new` or `Default`, or a reason to the list"
    );
    let stale = whole.iter().filter(|name| found.get(**name) != Some(&false));
    assert_eq!(stale.collect::<Vec<_>>(), [&""; 0], "they can grow, or have private fields, or are gone");
}

#[test]
fn a_type_is_found_with_its_attribute() {
    let source = "#[non_exhaustive]\n#[derive(Debug)]\npub struct A {\n    /// Text: b\n    pub a: u8,\n}\n\n\
                  pub struct B<'a> {\n    pub b: u8,\n}\npub struct C {\n    pub c: u8,\n    d: u8,\n}\n\
                  pub struct D(pub u8);\npub struct E(u8);\npub enum F {\n    G,\n}\n";
    let found = [("A", true), ("B", false), ("D", false), ("F", false)];
    assert_eq!(types(source), found.map(|(name, can_grow)| (name.to_owned(), can_grow)).into());
}
