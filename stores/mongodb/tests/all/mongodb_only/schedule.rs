//! Scheduled messages, while others write to the stripes that they join.

use outbox_contract::backend::StripeId;
use outbox_contract::{AdminExt, Outgoing, Store, Timestamp, Transactional};

use super::support::{Fixture, append, fetch, message, messages, relay};

/// Schedules messages of a key, each with its payload, that have been due since this many seconds
/// after 1970.
async fn schedule(fixture: &Fixture, key: &str, due: i64, payloads: impl IntoIterator<Item = Vec<u8>>) {
    let store = &fixture.store;
    let due = |payload: Vec<u8>| {
        Outgoing::from(message(key).with_payload(payload)).due_at(Timestamp::from_micros(due * 1_000_000))
    };
    let outgoing: Vec<Outgoing> = payloads.into_iter().map(due).collect();
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, &outgoing).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
}

/// Whoever appends holds the stripe until the transaction is over.
#[tokio::test]
async fn a_stripe_that_is_held_holds_up_no_other_due_message() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    assert_ne!(StripeId::of("orders", "held"), StripeId::of("orders", "free"));
    // More than are looked at in one go, and the first to be due.
    schedule(&fixture, "held", 1, (0..120_u8).map(|at| vec![at])).await;
    schedule(&fixture, "free", 2, [vec![1], vec![2]]).await;
    let mut open = fixture.session().await;
    store.append(&mut open, &[message("held").into()]).await.unwrap();

    let maintained = store.maintain(1_000).await.unwrap();
    assert_eq!(maintained.promoted, 2, "{maintained:?}");
    let free = messages(fetch(store, relay).await);
    assert_eq!(free.iter().map(|stored| stored.message.payload[0]).collect::<Vec<_>>(), [1, 2]);
    let next = maintained.next_due.expect("some are due");
    assert!(!next.is_zero() && next < std::time::Duration::from_secs(1), "{next:?}");
    assert!(!maintained.more, "it would be asked again and again");

    open.commit_transaction().await.unwrap();
    let maintained = store.maintain(1_000).await.unwrap();
    assert_eq!((maintained.promoted, maintained.next_due), (120, None));
    let of_held: Vec<u8> = messages(fetch(store, relay).await)
        .iter()
        .filter(|stored| stored.message.key_id() == message("held").key_id())
        .map(|stored| stored.message.payload[0])
        .collect();
    assert_eq!(of_held, (0..1).map(|_| b'{').chain(0..120).collect::<Vec<u8>>(), "in their order");
}

/// Writes of a transaction are kept in memory until it commits.
#[tokio::test]
async fn large_messages_join_their_keys_in_several_transactions() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, noted) = super::commands::noting(&fixture).await;
    for at in 0..5 {
        schedule(&fixture, "a", 1, [vec![at; 6 * 1024 * 1024]]).await;
    }
    noted.lock().unwrap().clear();
    let maintained = store.maintain(1_000).await.unwrap();
    assert_eq!((maintained.promoted, maintained.next_due), (5, None));
    let transactions = super::commands::of_transactions(&std::mem::take(&mut *noted.lock().unwrap()));
    assert_eq!(transactions.len(), 3, "two in each, and the last one");
    for transaction in transactions {
        // Nothing is left to read when the stripes are taken.
        let names: Vec<String> = transaction.iter().map(super::commands::name).collect();
        let stripes = names.iter().position(|name| name.ends_with(" outbox_stripe")).unwrap();
        assert_eq!(names[stripes + 1..], ["insert outbox_message", "commitTransaction "], "{names:?}");
    }
    assert!(store.scheduled(&outbox_contract::admin::Filter::all_routes()).await.unwrap().is_empty());
    append(&store, [message("a")]).await;
}
