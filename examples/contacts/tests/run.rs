//! `contacts`: every change is sent once, in order, and a stale change is rejected.

use examples_shared::program::run;

const PROGRAM: &str = env!("CARGO_BIN_EXE_contacts");

#[test]
fn every_change_is_told_and_a_stale_one_is_refused() {
    let run = run(PROGRAM, &[], "");
    assert_eq!(run.code, Some(0), "{run:#?}");
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 6, "{run:#?}");
    assert!(lines[0].starts_with("refused: rolled back: contact 1 is no longer at version 1"), "{run:#?}");
    assert!(lines[1].starts_with("contact.added: "), "{run:#?}");
    assert!(lines[2].contains("ann@new.example") && lines[3].contains(r#""name":"Hannah""#), "{run:#?}");
    // The two concurrent changes arrive in either order.
    let last = lines[4..].join("\n");
    assert!(last.contains("Dr. Hannah") && last.contains("hannah@new.example"), "{run:#?}");
}
