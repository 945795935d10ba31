//! `contacts`: every change is sent once, in order, and a stale change is rejected.

use examples_shared::program::run;

const PROGRAM: &str = env!("CARGO_BIN_EXE_contacts");

#[test]
fn every_change_is_told_and_a_stale_one_is_refused() {
    let run = run(PROGRAM, &[], "");
    assert_eq!(run.code, Some(0), "{run:#?}");
    // A refusal is reported at once, whatever was told by then.
    let (refused, told): (Vec<&str>, Vec<&str>) =
        run.stdout.lines().partition(|line| line.starts_with("refused: "));
    assert!(refused[0].contains("rolled back: contact 1 is no longer at version 1"), "{run:#?}");
    assert_eq!((refused.len(), told.len()), (1, 5), "{run:#?}");
    assert!(told[0].starts_with("Added {"), "{run:#?}");
    assert!(told[1].contains("ann@new.example") && told[2].contains(r#"name: "Hannah""#), "{run:#?}");
    // The two concurrent changes arrive in either order.
    let last = told[3..].join("\n");
    assert!(last.contains("Dr. Hannah") && last.contains("hannah@new.example"), "{run:#?}");
}
