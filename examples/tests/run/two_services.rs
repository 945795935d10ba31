//! `two_services`: stock and reservations agree, and each order is reserved once, whatever is delivered twice.

use crate::program::{Run, run};

/// The program itself checks that the figures agree: here, that they are the right ones.
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
    assert_agrees(&run("two_services", &[], ""), 150, 50);
}

#[test]
fn with_stock_enough_every_order_is_confirmed() {
    assert_agrees(&run("two_services", &["--orders", "40", "--stock", "100"], ""), 40, 0);
}

#[test]
fn with_nothing_in_stock_every_order_is_refused() {
    assert_agrees(&run("two_services", &["--orders", "10", "--stock", "0"], ""), 0, 10);
}

#[cfg(unix)]
#[test]
fn postgresql_and_rabbitmq_take_the_place_of_what_is_embedded() {
    use outbox_servers::{OrSkip, Postgres, RabbitMq};

    let Some(postgres) = Postgres::newest().shared().or_skip() else { return };
    let Some(rabbitmq) = RabbitMq::newest().shared().or_skip() else { return };
    let databases = [postgres.fresh_database(), postgres.fresh_database()];
    let broker = rabbitmq.fresh_vhost();
    let arguments = ["--postgres", &databases[0], &databases[1], "--rabbitmq", &broker];
    assert_agrees(&run("two_services", &arguments, ""), 150, 50);
}
