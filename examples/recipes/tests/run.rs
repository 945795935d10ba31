//! `recipes`: each answer does what it states; and a test of a handler.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::time::Duration;

use outbox::prelude::*;
use outbox_testkit::{Feed, eventually};
use serde::{Deserialize, Serialize};

use examples_shared::program::run;

const PROGRAM: &str = env!("CARGO_BIN_EXE_recipes");

#[test]
fn every_recipe_does_what_it_says() {
    let run = run(PROGRAM, &[], "");
    let expected = "booked 1 of north, 2 of none\ncancelled 1\nrequeued 1\npurged 1\n";
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (Some(0), expected, ""));
}

#[derive(Serialize, Deserialize, DomainEvent)]
#[event(topic = "payments", type = "payment.received")]
struct PaymentReceived {
    #[event(key)]
    customer: String,
    cents: i64,
}

async fn credit(
    payment: PaymentReceived,
    context: &mut HandlerContext<'_, SqliteStore>,
) -> Result<(), HandlerError> {
    let update = sqlx::query("update accounts set cents = cents + ? where customer = ?");
    let done = update.bind(payment.cents).bind(&payment.customer).execute(context.tx()).await?;
    match done.rows_affected() {
        1 => Ok(()),
        _ => Err(format!("{:?} has no account", payment.customer).into()),
    }
}

// ANCHOR: handler
#[tokio::test]
async fn a_payment_is_credited_once_however_often_it_is_delivered() {
    let store = SqliteStore::in_memory().await.unwrap();
    store.migrate().await.unwrap();
    let table = "create table accounts (customer text primary key, cents integer not null)";
    sqlx::query(table).execute(store.pool()).await.unwrap();
    sqlx::query("insert into accounts values ('ann', 0)").execute(store.pool()).await.unwrap();

    let broker = Feed::new(); // delivers what the test sends
    let inbox = Inbox::builder(store.clone(), broker.clone()).consumer("accounts").on(credit);
    let inbox = inbox.start().await.unwrap();
    let payment = PaymentReceived { customer: "ann".to_owned(), cents: 4_200 };
    let message = Outbox::new(store.clone()).encode(&payment).unwrap();
    broker.send(message.clone());
    broker.send(message);

    assert!(eventually(Duration::from_secs(60), async || broker.unacknowledged() == 0).await);
    let cents: i64 = sqlx::query_scalar("select cents from accounts").fetch_one(store.pool()).await.unwrap();
    assert_eq!((cents, inbox.stats().duplicates), (4_200, 1));
    assert!(inbox.stop(Duration::from_secs(20)).await);
}
// ANCHOR_END: handler
