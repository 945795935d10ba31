//! The inbox: each order is reserved once, though each one arrives twice, and the shop receives the
//! answer.

use examples_shared::program::run;

const PROGRAM: &str = env!("CARGO_BIN_EXE_inbox");

#[test]
fn the_inventory_reserves_each_order_once_and_the_shop_hears_of_it() {
    let run = run(PROGRAM, &[], "");
    let expected =
        "chair: 6 left\nlamp: 7 left\n3 orders handled, each once\n3 orders known to be reserved\n";
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (Some(0), expected, ""));
}
