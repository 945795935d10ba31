//! The module that sells: orders, and the credit of customers. Others know its events, not its tables.

use std::time::Duration;

use outbox::prelude::*;
use outbox::{HandlerContext, Status};
use outbox_testkit::eventually;
use serde::{Deserialize, Serialize};
use sqlx::{Sqlite, Transaction};

use crate::shipping::ParcelSent;

/// What other modules hear.
#[derive(Debug, Serialize, Deserialize, DomainEvent)]
#[event(topic = "sales", type = "order.placed")]
pub(crate) struct OrderPlaced {
    #[event(key)]
    pub(crate) order_id: i64,
    pub(crate) customer: String,
}

// ANCHOR: local
/// What only this module hears, in the transaction that it happened in.
#[derive(Debug, Serialize, DomainEvent)]
#[event(local)]
pub(crate) struct CreditUsed {
    pub(crate) customer: String,
    pub(crate) cents: i64,
}

/// Books credit. Without enough of it nothing of the order remains, for an error here rolls it back.
async fn book_credit(event: &CreditUsed, work: &mut UnitOfWork<SqliteStore>) -> Result<(), HandlerError> {
    let booked = sqlx::query("update credits set cents = cents - ? where customer = ? and cents >= ?")
        .bind(event.cents)
        .bind(&event.customer)
        .bind(event.cents)
        .execute(&mut **work.tx())
        .await?;
    match booked.rows_affected() {
        0 => Err(format!("{} has less credit than {} cents", event.customer, event.cents).into()),
        _ => Ok(()),
    }
}
// ANCHOR_END: local

/// The module's way to write.
pub(crate) fn mediator(store: &SqliteStore) -> Mediator<SqliteStore> {
    Mediator::new(Outbox::new(store.clone())).on(book_credit)
}

/// The module's inbox: it hears when a parcel is on its way.
pub(crate) async fn inbox(
    store: &SqliteStore,
    transport: &MemoryTransport,
) -> Result<InboxHandle, HandlerError> {
    let inbox = Inbox::builder(store.clone(), transport.clone()).consumer("sales");
    listening(inbox.on::<ParcelSent, _>(note_shipped).start().await?).await
}

/// Waits until an inbox has subscribed: a transport within the process keeps nothing for consumers that are not there yet.
pub(crate) async fn listening(inbox: InboxHandle) -> Result<InboxHandle, HandlerError> {
    let subscribed = eventually(Duration::from_secs(120), async || inbox.health().status == Status::Healthy);
    if subscribed.await { Ok(inbox) } else { Err(inbox.health().reasons.join("; ").into()) }
}

async fn note_shipped(
    tx: &mut Transaction<'static, Sqlite>,
    parcel: ParcelSent,
    _: HandlerContext<'_>,
) -> Result<(), HandlerError> {
    let update = sqlx::query("update orders set shipped = shipped + 1 where id = ?").bind(parcel.order_id);
    update.execute(&mut **tx).await?;
    Ok(())
}

pub(crate) async fn create_tables(store: &SqliteStore) -> Result<(), sqlx::Error> {
    for table in [
        "create table if not exists orders (id integer primary key, customer text not null, cents integer not null, shipped integer not null)",
        "create table if not exists credits (customer text primary key, cents integer not null) without rowid",
    ] {
        sqlx::query(table).execute(store.pool()).await?;
    }
    Ok(())
}

/// Gives a customer credit.
pub(crate) async fn grant(store: &SqliteStore, customer: &str, cents: i64) -> Result<(), sqlx::Error> {
    let grant = sqlx::query(
        "insert into credits values (?, ?) on conflict do update set cents = cents + excluded.cents",
    );
    grant.bind(customer).bind(cents).execute(store.pool()).await?;
    Ok(())
}

/// Places an order: the order, the credit and the event, or none of them.
pub(crate) async fn place(
    mediator: &Mediator<SqliteStore>,
    customer: &str,
    cents: i64,
) -> Result<i64, WorkError> {
    mediator
        .run(async |work| {
            let insert = "insert into orders (customer, cents, shipped) values (?, ?, 0) returning id";
            let order_id =
                sqlx::query_scalar(insert).bind(customer).bind(cents).fetch_one(&mut **work.tx()).await?;
            work.record(CreditUsed { customer: customer.to_owned(), cents })?;
            work.record(OrderPlaced { order_id, customer: customer.to_owned() })?;
            Ok(order_id)
        })
        .await
}

/// How many orders there are, how many of them are shipped once, and how many more than once.
pub(crate) async fn figures(store: &SqliteStore) -> Result<(i64, i64, i64), sqlx::Error> {
    sqlx::query_as(
        "select count(*), coalesce(sum(shipped = 1), 0), coalesce(sum(shipped > 1), 0) from orders",
    )
    .fetch_one(store.pool())
    .await
}
