//! PgBouncer in transaction mode: the whole way of a message, also with a version without support
//! for prepared statements.

use std::time::Duration;

use outbox_contract::backend::{
    BucketSet, Dedup, FetchRequest, KeyTransition, RelayId, Step, Then, Transitioned,
};
use outbox_contract::{AdminExt, Consumer, Failure, Route, Store, StoreErrorKind, Transactional};
use outbox_servers::{OrSkip, PgBouncer, Postgres, PostgresServer};
use outbox_store_postgres::PostgresStore;

use super::support::{append, fetch, lease, message, messages, open, options};

async fn behind(server: &PostgresServer, pooler: PgBouncer) {
    let Some(pooler) = pooler.start().or_skip() else { return };
    let mut options = options();
    options.transaction_pooler = true;
    whole_way(&open(&pooler.url(&server.fresh_database()), options).await).await;
}

/// Migrates an outbox; appends, reads, settles, parks and skips; handles and repeats.
pub(crate) async fn whole_way(store: &PostgresStore) {
    store.migrate().await.unwrap();
    store.migrate().await.unwrap();
    store.check().await.unwrap();

    // Several at once, so that sessions of the server change hands.
    let writers = (0..8).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..10 {
                append(&store, [message(&format!("key-{writer}")), message(&format!("key-{}", n % 3))]).await;
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let relay = RelayId::new();
    let leases = lease(store, relay).await.leases;
    assert_eq!(leases.len(), 256);
    let read = messages(&fetch(store, relay).await);
    assert_eq!(read.len(), 160);
    let rows: Vec<_> = read[1..].iter().map(|stored| stored.row()).collect();
    store.settle(&Route::default(), &rows).await.unwrap();

    let first = &read[0];
    let key = first.message.key_id();
    let epoch = leases.iter().find(|lease| lease.bucket == key.bucket()).unwrap().epoch;
    let failure = Failure::new("test", "no");
    let step = KeyTransition::new(
        Route::default(),
        relay,
        (key.bucket(), epoch),
        key.clone(),
        None,
        Step::Fail {
            row: first.row(),
            attempts: 1,
            first: failure.clone(),
            last: failure,
            then: Then::RetryAfter(Duration::from_secs(3_600)),
            behind: Vec::new(),
        },
    );
    assert!(matches!(store.transition(&[step]).await.unwrap()[..], [Transitioned::Done(Some(_))]));
    assert_eq!(store.skip(&Route::default(), &key).await.unwrap(), Some(first.message.id));
    assert_eq!(store.dead_letters(&outbox_contract::admin::Filter::all_routes()).await.unwrap().len(), 1);
    assert_eq!(store.maintain(100).await.unwrap().promoted, 0);

    let consumer = Consumer::new("inventory").unwrap();
    let mut tx = store.begin().await.unwrap();
    assert_eq!(store.deduplicate(&mut tx, &consumer, &[&first.message]).await.unwrap(), [Dedup::New]);
    store.commit(tx).await.into_result().unwrap();
    assert!(store.is_handled(&consumer, first.message.id).await.unwrap());
    let mut tx = store.begin().await.unwrap();
    assert_eq!(store.deduplicate(&mut tx, &consumer, &[&first.message]).await.unwrap(), [Dedup::Duplicate]);
    store.rollback(tx).await.unwrap();
    assert!(store.frontier().writers().await.unwrap().open.is_empty());
    assert_eq!(store.backlog(&Route::default()).await.unwrap().pending, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_goes_its_whole_way_behind_a_pooler() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    behind(&server, PgBouncer::newest(&server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_goes_its_whole_way_behind_a_pooler_without_prepared_statements() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    behind(&server, PgBouncer::oldest(&server)).await;
}

/// Connections to a pooler outlive the server behind it: nothing breaks when another one takes its
/// place, which may lack commits.
#[tokio::test]
async fn behind_a_pooler_nothing_is_read_on_from_a_server_that_was_started_since() {
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let Some(pooler) = PgBouncer::newest(&server).start().or_skip() else { return };
    let mut options = options();
    options.transaction_pooler = true;
    let store = open(&pooler.url(&server.fresh_database()), options).await;
    store.migrate().await.unwrap();
    let relay = RelayId::new();
    let mut request = FetchRequest::new(Route::default(), relay, BucketSet::ALL);
    request.life = Some(lease(&store, relay).await.life);
    store.fetch(&request).await.unwrap();
    server.restart();
    let error = store.fetch(&request).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    let life = lease(&store, relay).await.life;
    assert_ne!(request.life, Some(life));
    request.life = Some(life);
    store.fetch(&request).await.unwrap();
}
