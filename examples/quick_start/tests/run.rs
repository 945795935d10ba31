//! The quick start: an event written in a transaction arrives.

use examples_shared::program::run;

const PROGRAM: &str = env!("CARGO_BIN_EXE_quick-start");

#[test]
fn the_quick_start_receives_what_it_wrote() {
    let run = run(PROGRAM, &[], "");
    let expected = "billing received order.placed: {\"order_id\":1,\"total_cents\":4200}\n";
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (Some(0), expected, ""));
}
