//! `modular_monolith`: one module sells, the other ships once; a rejected order leaves no trace.

use examples_shared::program::run;

const PROGRAM: &str = env!("CARGO_BIN_EXE_modular-monolith");

const REPORT: [&str; 3] = [
    "orders        4 placed, 1 refused",
    "parcels       4 sent",
    "shipped       4 orders once, 0 more than once",
];

#[track_caller]
fn assert_shipped_once(arguments: &[&str]) {
    let run = run(PROGRAM, arguments, "");
    assert_eq!(run.code, Some(0), "{run:#?}");
    assert!(run.stdout.contains("ann has less credit than 6000 cents"), "{run:#?}");
    let report: Vec<&str> = run.stdout.lines().skip(1).collect();
    assert_eq!(report, REPORT, "{run:#?}");
}

#[test]
fn every_order_is_shipped_once_and_a_refused_one_not() {
    assert_shipped_once(&[]);
}

#[cfg(unix)]
#[test]
fn postgresql_takes_the_place_of_sqlite() {
    use outbox_servers::{OrSkip, Postgres};

    let Some(postgres) = Postgres::newest().shared().or_skip() else { return };
    assert_shipped_once(&["--postgres", &postgres.fresh_database()]);
}
