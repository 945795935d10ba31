//! The module that ships. It receives orders, and sends parcels.

use outbox::inbox::InboxBuilder;
use outbox::prelude::*;
use serde::{Deserialize, Serialize};

use crate::database::{Database, look};
use crate::sales::OrderPlaced;

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
    D::create_table(D::connection(&mut tx), "parcels", parcels).await?;
    Ok(store.commit(tx).await.into_result()?)
}

// ANCHOR: inbox
/// The module's inbox: it receives orders.
pub(crate) fn inbox<D: Database>(inbox: InboxBuilder<D>) -> InboxBuilder<D> {
    inbox.on(send_parcel::<D>)
}

/// Sends one parcel for an order, even if the order is delivered twice. The parcel, its event, and
/// the record that this order was handled commit together.
async fn send_parcel<D: Database>(
    order: OrderPlaced,
    context: &mut HandlerContext<'_, D>,
) -> Result<(), HandlerError> {
    let (order_id, insert) =
        (order.order_id, "insert into parcels (order_id, receiver) values ($1, $2) returning id");
    let values = [order_id.into(), order.customer.as_str().into()];
    let parcel = D::numbers(context.tx(), insert, &values).await?[0];
    context.publish(&ParcelSent { order_id, parcel })?;
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
        let service = Service::builder("shop", store.clone(), transport)
            .inbox("sales", sales::inbox)
            .inbox("shipping", inbox)
            .start()
            .await
            .unwrap();
        let mediator = sales::mediator(service.outbox());

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
        service.shutdown(Duration::from_secs(120)).await.unwrap();
        assert_eq!((sales::figures(&store).await.unwrap(), parcels(&store).await.unwrap()), ((1, 1, 0), 1));
    }
}
