//! A node that lags behind: what another one has confirmed is not taken for settled, nor for never
//! there.

use outbox_contract::backend::{BucketSet, Dedup, FetchRequest, RelayId};
use outbox_contract::{Consumer, Outgoing, Route, Store, Transactional, inbox_route};
use sqlx::mysql::MySqlConnectOptions;

use super::support::{Lag, Nodes, append, heartbeat, message, messages};

/// Marks of one node, rows of another: the connection was opened anew in between, behind an address
/// that stands for them all.
#[tokio::test]
async fn what_a_mark_of_one_node_covers_is_read_on_another() {
    let Some(nodes) = Nodes::shared().await else { return };
    let store = &nodes.stores[0];
    let relay = RelayId::new();
    store.lease(&heartbeat(relay)).await.unwrap();
    let there = message("a");
    let mut lag = Lag::of(&nodes, 2).await;
    append(store, std::slice::from_ref(&there)).await;
    let marks = store.frontier().stripes(&Route::default(), &BucketSet::ALL).await.unwrap();
    assert_eq!(marks.len(), 1);

    let kill =
        "select id from information_schema.processlist where db = database() and id <> connection_id()";
    let mut connection = nodes.connection(0).await;
    let ids: Vec<(i64,)> = sqlx::query_as(kill).fetch_all(&mut connection).await.unwrap();
    for (id,) in ids {
        super::support::run(&mut connection, &format!("kill {id}")).await;
    }
    store.pool().set_connect_options(nodes.urls[2].parse::<MySqlConnectOptions>().unwrap());
    let fetching = tokio::spawn({
        let store = store.clone();
        async move {
            let request = FetchRequest::new(Route::default(), relay, BucketSet::ALL);
            loop {
                // The first finds out that the connection is gone.
                if let Ok(fetched) = store.fetch(&request).await {
                    return fetched;
                }
            }
        }
    });
    lag.until_done_or_waiting(&fetching).await;
    lag.end().await;
    let read = messages(&fetching.await.unwrap());
    assert_eq!(read.iter().map(|stored| stored.message.id).collect::<Vec<_>>(), [there.id]);
}

/// A consumer's predecessor has put a message aside on another node, and gone: what is behind it
/// waits.
#[tokio::test]
async fn what_waits_on_another_node_is_waited_for() {
    let Some(nodes) = Nodes::shared().await else { return };
    let consumer = Consumer::new("shop").unwrap();
    let (first, second) = (message("a"), message("a"));
    // The store knows already what a transaction needs to know of the server.
    let store = nodes.stores[2].clone();
    store.rollback(store.begin().await.unwrap()).await.unwrap();
    let mut lag = Lag::of(&nodes, 2).await;
    let mut parked = Outgoing::from(first);
    parked.route = inbox_route(&consumer);
    let mut tx = nodes.stores[0].begin().await.unwrap();
    nodes.stores[0].append(&mut tx, &[parked]).await.unwrap();
    nodes.stores[0].commit(tx).await.into_result().unwrap();
    let deduplicating = tokio::spawn(async move {
        let mut tx = store.begin().await.unwrap();
        // Nothing is written while the node lags, if it is asked too early.
        let handled = store.deduplicate(&mut tx, &consumer, &[&second]).await;
        store.rollback(tx).await.unwrap();
        handled.unwrap()
    });
    lag.until_done_or_waiting(&deduplicating).await;
    lag.end().await;
    assert_eq!(deduplicating.await.unwrap(), [Dedup::OutOfTurn]);
}
