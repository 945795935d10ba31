//! Short answers to questions that come up when the first service runs. Each is a function, and
//! `main` runs all of them.
//!
//! `cargo run -p recipes`

use std::error::Error;
use std::time::Duration;

use outbox::admin::{Actor, Filter};
use outbox::inbox::InboxObserver;
use outbox::prelude::*;
use outbox::{AdminExt, AppendOptions, MessageId, StoreError, Timestamp, UnknownType, inbox_route};
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
    outbox.append_with(tx, invoice, AppendOptions::new().header("tenant", "north")).await?;
    // ANCHOR_END: header
    Ok(())
}

// ANCHOR: read_header
async fn book(
    invoice: InvoiceSent,
    context: &mut HandlerContext<'_, SqliteStore>,
) -> Result<(), HandlerError> {
    let tenant = context.headers().get("tenant").unwrap_or("none");
    // ANCHOR_END: read_header
    let insert = sqlx::query("insert into booked values (?, ?)").bind(invoice.invoice_id).bind(tenant);
    insert.execute(context.tx()).await?;
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
    let in_two_weeks = AppendOptions::new().after(Duration::from_secs(14 * 86_400));
    let id = outbox.append_with(tx, &ReminderDue { invoice_id }, in_two_weeks).await?;
    // ANCHOR_END: later
    Ok(id)
}

// ANCHOR: requeue
/// Requeues every dead letter of a topic. Returns their number.
async fn requeue_topic(store: &impl Admin, topic: &str) -> Result<u64, Failed> {
    // `before` excludes messages that die again in the meantime.
    let filter = Filter::route("default")?.with_topic(topic)?.with_before(Timestamp::now());
    let mut requeued = 0;
    loop {
        match store.requeue(&filter).await? {
            0 => return Ok(requeued),
            some => requeued += some,
        }
    }
}
// ANCHOR_END: requeue

// ANCHOR: acting_as
/// Pauses a topic on behalf of a user, under whose name that is recorded.
async fn pause_for(store: &impl Admin, user: &str, topic: &Topic) -> Result<(), StoreError> {
    store.acting_as(Actor::new(user)).pause(&Route::default(), Some(topic)).await
}
// ANCHOR_END: acting_as

// ANCHOR: purge
/// Permanently removes dead letters of a route that are older than this many days. Returns their
/// number.
async fn purge_older_than(store: &impl Admin, route: &Route, days: i64) -> Result<u64, Failed> {
    let before = Timestamp::from_micros(Timestamp::now().as_micros() - days * 86_400 * 1_000_000);
    let filter = Filter::route(route.clone())?.with_before(before);
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
    let transport =
        MemoryTransport::builder().consumer("invoices", "accounts").max_message_bytes(10_000).build();
    // ANCHOR: part_of_a_topic
    let service = Service::builder("accounts", store.clone(), transport)
        .inbox("accounts", |inbox| inbox.on(book).unknown_types(UnknownType::Ignore)) // it does not handle reminders
        .start()
        .await?;
    // ANCHOR_END: part_of_a_topic
    let purging = tokio::spawn(purge_hourly(store.clone(), inbox_route(&consumer)));
    let outbox = service.outbox();
    let invoice = |invoice_id, text: &str| InvoiceSent { invoice_id, text: text.to_owned() };

    let mut tx = store.begin().await?;
    send_for_a_tenant(outbox, &mut tx, &invoice(1, "a lamp")).await?;
    send_and_remind(outbox, &mut tx, &invoice(2, "a chair"), &ReminderDue { invoice_id: 2 }).await?;
    let later = remind_in_two_weeks(outbox, &mut tx, 1).await?;
    // Larger than this transport's limit: a dead letter.
    outbox.append(&mut tx, &invoice(3, &"x".repeat(20_000))).await?;
    store.commit(tx).await.into_result()?;

    let died = async || store.dead_letters(&Filter::all_routes()).await.is_ok_and(|dead| dead.len() == 1);
    let arrived = || {
        let stats = service.inbox("accounts").map(InboxObserver::stats);
        stats.is_some_and(|stats| (stats.handled, stats.ignored) == (2, 1))
    };
    until(async || arrived() && died().await).await?;
    let booked = rows(store.pool()).await?;
    println!("booked {booked}");
    println!("cancelled {}", store.cancel_scheduled(&[later]).await?);
    pause_for(&store, "ann@example.com", &topic).await?;
    store.resume(&Route::default(), Some(&topic)).await?;
    println!("requeued {}", requeue_topic(&store, "invoices").await?);
    until(died).await?;
    println!("purged {}", purge_older_than(&store, &Route::default(), 0).await?);

    purging.abort();
    Ok(service.shutdown(Duration::from_secs(20)).await?)
}

/// Waits until this is true.
async fn until(mut holds: impl AsyncFnMut() -> bool) -> Result<(), Failed> {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    Ok(tokio::time::timeout(Duration::from_secs(60), waiting).await?)
}

async fn rows(pool: &SqlitePool) -> Result<String, sqlx::Error> {
    let rows: Vec<(u32, String)> =
        sqlx::query_as("select id, tenant from booked order by id").fetch_all(pool).await?;
    Ok(rows.iter().map(|(id, tenant)| format!("{id} of {tenant}")).collect::<Vec<_>>().join(", "))
}
