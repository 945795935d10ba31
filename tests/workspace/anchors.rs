//! Listings: the part of a source between `// ANCHOR: name` and `// ANCHOR_END: name`, as mdBook
//! takes it.

/// Returns the lines of a part, trimmed. None: there is no such part.
pub(crate) fn anchored<'s>(source: &'s str, anchor: &str) -> Option<Vec<&'s str>> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let at = |mark: &str| lines.iter().position(|line| *line == format!("// {mark}: {anchor}"));
    let (start, end) = (at("ANCHOR")?, at("ANCHOR_END")?);
    lines.get(start + 1..end).map(<[&str]>::to_vec)
}

#[test]
fn a_part_is_what_stands_between_its_marks() {
    let source = "fn main() {\n    // ANCHOR: part\n    work();\n    rest();\n    // ANCHOR_END: part\n    // ANCHOR: empty\n    // ANCHOR_END: empty\n    // ANCHOR: open\n}\n";
    assert_eq!(anchored(source, "part"), Some(vec!["work();", "rest();"]));
    assert_eq!(anchored(source, "empty"), Some(vec![]));
    for missing in ["par", "other", "open"] {
        assert_eq!(anchored(source, missing), None, "{missing}");
    }
}
