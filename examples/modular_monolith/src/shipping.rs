//! The module that ships. It receives orders, and sends parcels.

use outbox::HandlerContext;
use outbox::prelude::*;
use serde::{Deserialize, Serialize};

use crate::database::{Database, look};
use crate::sales::{OrderPlaced, listening};

/// An event for other modules.
#[derive(Debug, Serialize, Deserialize, DomainEvent)]
#[event(topic = "shipping", type = "parcel.sent")]
pub(crate) struct ParcelSent {
    #[event(key)]
    pub(crate) order_id: i64,
    pub(crate) parcel: i64,
}

pub(crate) async fn create_tables<D: Database>(store: &D) -> Result<(), HandlerError> {
    let parcels = format!("id {}, order_id bigint not null, receiver text not null", D::COUNTING_KEY);
    let mut tx = store.begin().await?;
    D::create_table(&mut tx, "parcels", parcels).await?;
    Ok(store.commit(tx).await.into_result()?)
}

// ANCHOR: inbox
/// Starts the module's inbox.
pub(crate) async fn inbox<D: Database>(
    store: &D,
    transport: &MemoryTransport,
) -> Result<InboxHandle, HandlerError> {
    let inbox = Inbox::builder(store.clone(), transport.clone()).consumer("shipping");
    listening(inbox.on::<OrderPlaced, _>(send_parcel::<D>).start().await?).await
}

/// Sends one parcel for an order, even if the order is delivered twice. The parcel, its event, and
/// the record that this order was handled commit together.
async fn send_parcel<D: Database>(
    tx: &mut D::Tx<'static>,
    order: OrderPlaced,
    context: HandlerContext<'_>,
) -> Result<(), HandlerError> {
    let insert = "insert into parcels (order_id, receiver) values ($1, $2) returning id";
    let parcel = D::numbers(tx, insert, &[order.order_id.into(), order.customer.as_str().into()]).await?[0];
    context.emit(&ParcelSent { order_id: order.order_id, parcel })?;
    Ok(())
}
// ANCHOR_END: inbox

/// Returns the number of parcels.
pub(crate) async fn parcels<D: Database>(store: &D) -> Result<i64, HandlerError> {
    Ok(look(store, "select count(*) from parcels").await?[0])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outbox_testkit::{Scenario, eventually};

    use super::*;
    use crate::sales;

    #[tokio::test]
    async fn an_order_is_shipped_once_whatever_is_delivered_again_and_without_credit_not_at_all() {
        let store = SqliteStore::in_memory().await.unwrap();
        sales::create_tables(&store).await.unwrap();
        create_tables(&store).await.unwrap();
        sales::grant(&store, "ann", 100).await.unwrap();
        let transport = MemoryTransport::new();
        let mut scenario = Scenario::new(transport.clone(), ["sales", "shipping"]).await;
        let relay = Relay::builder(store.clone(), transport.clone()).start().await.unwrap();
        let inboxes =
            [inbox(&store, &transport).await.unwrap(), sales::inbox(&store, &transport).await.unwrap()];
        let mediator = sales::mediator(&store);

        let refused = scenario.when("an order is over the credit", sales::place(&mediator, "ann", 101)).await;
        assert!(refused.unwrap_err().to_string().contains("ann has less credit than 101 cents"));
        let order_id = scenario.when("one is not", sales::place(&mediator, "ann", 100)).await.unwrap();
        let placed = OrderPlaced { order_id, customer: "ann".to_owned() };
        scenario.expect(&[&placed, &ParcelSent { order_id, parcel: 1 }]).await;
        scenario.repeat_all().await;
        let shipped = eventually(Duration::from_secs(120), async || {
            sales::figures(&store).await.is_ok_and(|figures| figures.1 == 1)
        });
        assert!(shipped.await);
        for inbox in inboxes {
            assert!(inbox.stop(Duration::from_secs(120)).await);
        }
        assert!(relay.stop(Duration::from_secs(120)).await);
        assert_eq!((sales::figures(&store).await.unwrap(), parcels(&store).await.unwrap()), ((1, 1, 0), 1));
    }
}
