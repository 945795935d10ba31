//! `two_services`: stock and reservations agree, and each order is reserved once, whatever is
//! delivered twice.

use examples_shared::program::{Run, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_two-services");

/// Asserts that the figures are correct: the program itself only checks that they agree.
#[track_caller]
fn assert_agrees(run: &Run, confirmed: u64, refused: u64) {
    assert_eq!(run.code, Some(0), "{run:#?}");
    let (orders, confirmed_line) = (confirmed + refused, format!("{confirmed} confirmed, {refused} refused"));
    assert!(run.stdout.contains(&format!("orders        {orders} placed, {confirmed_line}")), "{run:#?}");
    assert!(run.stdout.contains(&format!("reservations  {confirmed} of {confirmed} orders")), "{run:#?}");
    assert!(run.figures()["repeats"] > 0, "{run:#?}");
}

#[test]
fn stock_and_reservations_agree_after_repeats() {
    assert_agrees(&run(PROGRAM, &[], ""), 150, 50);
}

#[test]
fn with_stock_enough_every_order_is_confirmed() {
    assert_agrees(&run(PROGRAM, &["--orders", "40", "--stock", "100"], ""), 40, 0);
}

#[test]
fn with_nothing_in_stock_every_order_is_refused() {
    assert_agrees(&run(PROGRAM, &["--orders", "10", "--stock", "0"], ""), 0, 10);
}

#[cfg(all(unix, feature = "postgres", feature = "rabbitmq"))]
#[test]
fn postgresql_and_rabbitmq_take_the_place_of_what_is_embedded() {
    use outbox_servers::{OrSkip, Postgres, RabbitMq};

    let Some(postgres) = Postgres::newest().shared().or_skip() else { return };
    let Some(rabbitmq) = RabbitMq::newest().shared().or_skip() else { return };
    let databases = [postgres.fresh_database(), postgres.fresh_database()];
    let broker = rabbitmq.fresh_vhost();
    let arguments = ["--stores", &databases[0], &databases[1], "--transport", &broker];
    assert_agrees(&run(PROGRAM, &arguments, ""), 150, 50);
}

#[cfg(all(unix, feature = "mysql"))]
#[test]
fn mysql_takes_the_place_of_what_is_embedded() {
    use outbox_servers::{MySql, OrSkip};

    let Some(mysql) = MySql::newest().shared().or_skip() else { return };
    let databases = [mysql.fresh_database(), mysql.fresh_database()];
    assert_agrees(&run(PROGRAM, &["--stores", &databases[0], &databases[1]], ""), 150, 50);
}

#[test]
fn what_is_reached_by_no_feature_is_refused_in_words() {
    let run = run(PROGRAM, &["--transport", "pigeon://loft"], "");
    assert_eq!(run.code, Some(1), "{run:#?}");
    assert!(run.stderr.starts_with("two_services: unsupported URL scheme \"pigeon\""), "{run:#?}");
}
