//! `modular_monolith`: what one module sells, the other ships, once; what is refused leaves no trace.

use crate::program::run;

#[test]
fn every_order_is_shipped_once_and_a_refused_one_not() {
    let run = run("modular_monolith", &[], "");
    assert_eq!(run.code, Some(0), "{run:#?}");
    assert!(run.stdout.contains("ann has less credit than 6000 cents"), "{run:#?}");
    let report: Vec<&str> = run.stdout.lines().skip(1).collect();
    let expected = [
        "orders        4 placed, 1 refused",
        "parcels       4 sent",
        "shipped       4 orders once, 0 more than once",
    ];
    assert_eq!(report, expected, "{run:#?}");
}
