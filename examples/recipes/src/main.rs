//! Short answers to questions that come up when the first service runs. Each is a function, and
//! `main` runs all of them.
//!
//! `cargo run -p recipes`

use std::error::Error;
use std::time::Duration;

use outbox::admin::Filter;
use outbox::prelude::*;
use outbox::{MessageId, StoreError, Timestamp, UnknownType, inbox_route};
use outbox_testkit::eventually;
use serde::{Deserialize, Serialize};
use sqlx::{Sqlite, SqlitePool, Transaction};

type Failed = Box<dyn Error + Send + Sync>;

#[derive(Serialize, Deserialize, DomainEvent)]
#[event(topic = "invoices", type = "invoice.sent")]
struct InvoiceSent {
    #[event(key)]
    invoice_id: u32,
    text: String,
}

#[derive(Serialize, Deserialize, DomainEvent)]
#[event(topic = "invoices", type = "reminder.due")]
struct ReminderDue {
    #[event(key)]
    invoice_id: u32,
}

/// Sends an event with a header.
async fn send_for_a_tenant(
    outbox: &Outbox<SqliteStore>,
    tx: &mut Transaction<'static, Sqlite>,
    invoice: &InvoiceSent,
) -> Result<(), Failed> {
    // ANCHOR: header
    let message = outbox.encode(invoice)?.with_header("tenant", "north")?;
    outbox.append_message(tx, message).await?;
    // ANCHOR_END: header
    Ok(())
}

// ANCHOR: read_header
async fn book(
    tx: &mut Transaction<'static, Sqlite>,
    invoice: InvoiceSent,
    context: HandlerContext<'_>,
) -> Result<(), HandlerError> {
    let tenant = context.headers().get("tenant").unwrap_or("none");
    // ANCHOR_END: read_header
    let insert = sqlx::query("insert into booked values (?, ?)").bind(invoice.invoice_id).bind(tenant);
    insert.execute(&mut **tx).await?;
    Ok(())
}

/// Sends two types of events, in one round trip.
async fn send_and_remind(
    outbox: &Outbox<SqliteStore>,
    tx: &mut Transaction<'static, Sqlite>,
    invoice: &InvoiceSent,
    reminder: &ReminderDue,
) -> Result<(), Failed> {
    // ANCHOR: two_types
    let messages = vec![outbox.encode(invoice)?, outbox.encode(reminder)?];
    outbox.append_messages(tx, messages).await?;
    // ANCHOR_END: two_types
    Ok(())
}

/// Schedules an event.
async fn remind_in_two_weeks(
    outbox: &Outbox<SqliteStore>,
    tx: &mut Transaction<'static, Sqlite>,
    invoice_id: u32,
) -> Result<MessageId, Failed> {
    // ANCHOR: later
    let due_at = Timestamp::now().plus(Duration::from_secs(14 * 86_400));
    let id = outbox.schedule(tx, due_at, &ReminderDue { invoice_id }).await?;
    // ANCHOR_END: later
    Ok(id)
}

// ANCHOR: requeue
/// Requeues every dead letter of a topic. Returns their number.
async fn requeue_topic(store: &impl Admin, topic: Topic) -> Result<u64, StoreError> {
    let filter = Filter {
        // Without a route, this would include dead letters of every inbox on this database.
        route: Some(Route::default()),
        topic: Some(topic),
        // Excludes messages that die again in the meantime.
        before: Some(Timestamp::now()),
        ..Filter::default()
    };
    let mut requeued = 0;
    loop {
        match store.requeue(&filter).await? {
            0 => return Ok(requeued),
            some => requeued += some,
        }
    }
}
// ANCHOR_END: requeue

// ANCHOR: purge
/// Permanently removes dead letters of a route that are older than this many days. Returns their
/// number.
async fn purge_older_than(store: &impl Admin, route: &Route, days: i64) -> Result<u64, StoreError> {
    let before = Timestamp::from_micros(Timestamp::now().as_micros() - days * 86_400 * 1_000_000);
    let filter = Filter { route: Some(route.clone()), before: Some(before), ..Filter::default() };
    let mut purged = 0;
    loop {
        match store.purge(&filter).await? {
            0 => return Ok(purged),
            some => purged += some,
        }
    }
}

/// Purges once an hour, as long as the program runs: `tokio::spawn(purge_hourly(store.clone(),
/// route))`.
async fn purge_hourly(store: impl Admin, route: Route) {
    let mut hours = tokio::time::interval(Duration::from_secs(3_600));
    loop {
        hours.tick().await;
        if let Err(error) = purge_older_than(&store, &route, 90).await {
            eprintln!("dead letters of {route} are purged in an hour: {error}");
        }
    }
}
// ANCHOR_END: purge

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let store = SqliteStore::in_memory().await?;
    store.migrate().await?;
    sqlx::query("create table booked (id integer not null, tenant text not null)")
        .execute(store.pool())
        .await?;
    let consumer = Consumer::new("accounts")?;
    let topic = Topic::new("invoices")?;
    let transport = MemoryTransport::builder()
        .consumer(topic.clone(), consumer.clone())
        .max_message_bytes(10_000)
        .build();
    let relay = Relay::builder(store.clone(), transport.clone()).start().await?;
    // ANCHOR: part_of_a_topic
    let inbox = Inbox::builder(store.clone(), transport)
        .consumer("accounts")
        .on::<InvoiceSent, _>(book)
        .unknown_types(UnknownType::Ignore) // it does not handle reminders
        .start()
        .await?;
    // ANCHOR_END: part_of_a_topic
    let purging = tokio::spawn(purge_hourly(store.clone(), inbox_route(&consumer)));
    let outbox = Outbox::new(store.clone());
    let invoice = |invoice_id, text: &str| InvoiceSent { invoice_id, text: text.to_owned() };

    let mut tx = store.begin().await?;
    send_for_a_tenant(&outbox, &mut tx, &invoice(1, "a lamp")).await?;
    send_and_remind(&outbox, &mut tx, &invoice(2, "a chair"), &ReminderDue { invoice_id: 2 }).await?;
    let later = remind_in_two_weeks(&outbox, &mut tx, 1).await?;
    // Larger than this transport's limit: a dead letter.
    outbox.append(&mut tx, &invoice(3, &"x".repeat(20_000))).await?;
    store.commit(tx).await.into_result()?;

    let arrived = async || inbox.stats().handled == 2 && inbox.stats().ignored == 1;
    let died = async || store.dead_letters(&Filter::default()).await.is_ok_and(|dead| dead.len() == 1);
    let patience = Duration::from_secs(60);
    if !eventually(patience, arrived).await || !eventually(patience, died).await {
        return Err("not everything arrived in time".into());
    }
    let booked = rows(store.pool()).await?;
    println!("booked {booked}");
    println!("cancelled {}", store.cancel_scheduled(&[later]).await?);
    println!("requeued {}", requeue_topic(&store, topic).await?);
    if !eventually(patience, died).await {
        return Err("the oversized message did not become a dead letter again in time".into());
    }
    println!("purged {}", purge_older_than(&store, &Route::default(), 0).await?);

    purging.abort();
    let within = Duration::from_secs(20);
    let stopped = inbox.stop(within).await & relay.stop(within).await;
    if stopped { Ok(()) } else { Err("something did not finish in time".into()) }
}

async fn rows(pool: &SqlitePool) -> Result<String, sqlx::Error> {
    let rows: Vec<(u32, String)> =
        sqlx::query_as("select id, tenant from booked order by id").fetch_all(pool).await?;
    Ok(rows.iter().map(|(id, tenant)| format!("{id} of {tenant}")).collect::<Vec<_>>().join(", "))
}
