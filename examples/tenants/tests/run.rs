//! `tenants`: the ledger books the orders of each tenant once, though their numbers are the same.

use examples_shared::program::run;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tenants");

#[track_caller]
fn assert_booked_by_tenant(arguments: &[&str]) {
    let run = run(PROGRAM, arguments, "");
    let expected = "north: 3 orders, 600 cents\nsouth: 3 orders, 600 cents\n";
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (Some(0), expected, ""));
}

#[test]
fn orders_of_the_same_number_are_booked_for_each_tenant() {
    assert_booked_by_tenant(&[]);
}

#[cfg(all(unix, feature = "postgres", feature = "rabbitmq"))]
#[test]
fn postgresql_and_rabbitmq_take_the_place_of_what_is_embedded() {
    use outbox_servers::{OrSkip, Postgres, RabbitMq};

    let Some(postgres) = Postgres::newest().shared().or_skip() else { return };
    let Some(rabbitmq) = RabbitMq::newest().shared().or_skip() else { return };
    let [north, south, ledger] = [0; 3].map(|_| postgres.fresh_database());
    let broker = rabbitmq.fresh_vhost();
    assert_booked_by_tenant(&["--stores", &north, &south, &ledger, "--transport", &broker]);
}
