//! The module that sells: orders, and the credit of customers. Others know its events, not its
//! tables.

use outbox::inbox::InboxBuilder;
use outbox::prelude::*;
use serde::{Deserialize, Serialize};

use crate::database::{Database, look};
use crate::shipping::ParcelSent;

/// An event for other modules.
#[derive(Debug, Serialize, Deserialize, DomainEvent)]
#[event(topic = "sales", type = "order.placed")]
pub(crate) struct OrderPlaced {
    #[event(key)]
    pub(crate) order_id: i64,
    pub(crate) customer: String,
}

// ANCHOR: local
/// An event for this module only, handled in the transaction that raised it.
#[derive(Debug, Serialize, DomainEvent)]
#[event(local)]
pub(crate) struct CreditUsed {
    pub(crate) customer: String,
    pub(crate) cents: i64,
}

/// Books credit. Without enough credit, the error here rolls back the whole order.
async fn book_credit<D: Database>(event: &CreditUsed, work: &mut UnitOfWork<D>) -> Result<(), HandlerError> {
    let CreditUsed { customer, cents } = event;
    let book = "update credits set cents = cents - $1 where customer = $2 and cents >= $1";
    match D::execute(work.tx(), book, &[(*cents).into(), customer.as_str().into()]).await? {
        0 => Err(format!("{customer} has less credit than {cents} cents").into()),
        _ => Ok(()),
    }
}
// ANCHOR_END: local

/// Creates the module's mediator, with which it writes.
pub(crate) fn mediator<D: Database>(outbox: &Outbox<D>) -> Mediator<D> {
    Mediator::new(outbox.clone()).on(book_credit::<D>)
}

/// The module's inbox: it receives the events of sent parcels.
pub(crate) fn inbox<D: Database>(inbox: InboxBuilder<D>) -> InboxBuilder<D> {
    inbox.on(note_shipped::<D>)
}

async fn note_shipped<D: Database>(
    parcel: ParcelSent,
    context: &mut HandlerContext<'_, D>,
) -> Result<(), HandlerError> {
    let update = "update orders set shipped = shipped + 1 where id = $1";
    D::execute(context.tx(), update, &[parcel.order_id.into()]).await?;
    Ok(())
}

pub(crate) async fn create_tables<D: Database>(store: &D) -> Result<(), HandlerError> {
    let orders = format!(
        "id {}, customer text not null, cents bigint not null, shipped bigint not null",
        D::COUNTING_KEY
    );
    let credits = "customer text primary key, cents bigint not null".to_owned();
    let mut tx = store.begin().await?;
    D::create_table(D::connection(&mut tx), "orders", orders).await?;
    D::create_table(D::connection(&mut tx), "credits", credits).await?;
    Ok(store.commit(tx).await.into_result()?)
}

/// Gives a customer credit.
pub(crate) async fn grant<D: Database>(store: &D, customer: &str, cents: i64) -> Result<(), HandlerError> {
    let grant = "insert into credits values ($1, $2)
                 on conflict (customer) do update set cents = credits.cents + excluded.cents";
    let mut tx = store.begin().await?;
    D::execute(D::connection(&mut tx), grant, &[customer.into(), cents.into()]).await?;
    Ok(store.commit(tx).await.into_result()?)
}

/// Places an order: the order, the credit and the event, or none of them.
pub(crate) async fn place<D: Database>(
    mediator: &Mediator<D>,
    customer: &str,
    cents: i64,
) -> Result<i64, WorkError> {
    mediator
        .run(async |work| {
            let insert = "insert into orders (customer, cents, shipped) values ($1, $2, 0) returning id";
            let order_id = D::numbers(work.tx(), insert, &[customer.into(), cents.into()]).await?[0];
            work.publish(CreditUsed { customer: customer.to_owned(), cents })?;
            work.publish(OrderPlaced { order_id, customer: customer.to_owned() })?;
            Ok(order_id)
        })
        .await
}

/// Returns the number of orders, the number of them shipped once, and the number shipped more than
/// once.
pub(crate) async fn figures<D: Database>(store: &D) -> Result<(i64, i64, i64), HandlerError> {
    let counts = "select count(*), count(*) filter (where shipped = 1), count(*) filter (where shipped > 1) from orders";
    let counts = look(store, counts).await?;
    Ok((counts[0], counts[1], counts[2]))
}
