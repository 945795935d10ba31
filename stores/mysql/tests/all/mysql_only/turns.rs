//! Answers of deduplication do not depend on the way that they are found: by one statement, where
//! the transaction is looked at before it is committed, or by several.

use std::sync::Arc;

use outbox_contract::backend::{BucketSet, Dedup, FetchRequest, RelayId, Stored};
use outbox_contract::{Consumer, Message, Outgoing, Route, Store, Transactional, inbox_route};
use outbox_store_mysql::MySqlStore;

use super::support::{both, heartbeat, message, messages};

fn shop() -> Consumer {
    Consumer::new("shop").unwrap()
}

/// Numbers of a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 40).unwrap() % bound
    }
}

async fn note(store: &MySqlStore, messages: &[&Message]) {
    let mut tx = store.begin().await.unwrap();
    store.deduplicate(&mut tx, &shop(), messages).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
}

/// The answers in a transaction that is rolled back. `is_looked_at`: one that has noted something
/// before.
async fn answers(
    store: &MySqlStore,
    given: &[&Message],
    fenced: &[&Stored],
    is_looked_at: bool,
) -> Vec<Dedup> {
    let mut tx = store.begin().await.unwrap();
    if is_looked_at {
        let warm = Consumer::new("other").unwrap();
        assert_eq!(store.deduplicate(&mut tx, &warm, &[&message("x")]).await.unwrap(), [Dedup::New]);
    }
    if !fenced.is_empty() {
        let waits = store.fence(&mut tx, &inbox_route(&shop()), fenced).await.unwrap();
        assert!(waits.iter().all(|waits| *waits), "{waits:?}");
    }
    let answers = store.deduplicate(&mut tx, &shop(), given).await.unwrap();
    store.rollback(tx).await.unwrap();
    answers
}

/// One call for each message, in one transaction, is what the contract compares with.
async fn one_by_one(store: &MySqlStore, given: &[&Message]) -> Vec<Dedup> {
    let mut tx = store.begin().await.unwrap();
    let mut answers = Vec::new();
    for message in given {
        answers.extend(store.deduplicate(&mut tx, &shop(), &[message]).await.unwrap());
    }
    store.rollback(tx).await.unwrap();
    answers
}

async fn waiting(store: &MySqlStore, route: &Route) -> Vec<Arc<Stored>> {
    let relay = RelayId::new();
    let mut request = heartbeat(relay);
    request.route = route.clone();
    store.lease(&request).await.unwrap();
    let read =
        messages(&store.fetch(&FetchRequest::new(route.clone(), relay, BucketSet::ALL)).await.unwrap());
    store.give_back(relay, route, &[], &outbox_contract::backend::LowWater::default(), true).await.unwrap();
    read
}

#[tokio::test]
async fn a_deduplication_answers_the_same_however_it_is_asked() {
    for fixture in both().await {
        let (store, route) = (&fixture.store, inbox_route(&shop()));
        for seed in 0..12_u64 {
            let mut random = Random(seed + 1);
            sqlx::raw_sql("delete from outbox_message; delete from outbox_handled")
                .execute(store.pool())
                .await
                .unwrap();
            // Few keys, so that many messages wait for each other; now and then none waits.
            let all: Vec<Message> = (0..12).map(|_| message(["a", "b", "c"][random.below(3)])).collect();
            let stored: Vec<Outgoing> = all
                .iter()
                .filter(|_| seed % 4 != 0 && random.below(2) == 0)
                .map(|message| Outgoing::from(message.clone()).by(route.clone()))
                .collect();
            let mut tx = store.begin().await.unwrap();
            store.append(&mut tx, &stored).await.unwrap();
            store.commit(tx).await.into_result().unwrap();
            let handled: Vec<&Message> = all.iter().filter(|_| random.below(4) == 0).collect();
            note(store, &handled).await;
            let waits = waiting(store, &route).await;
            for _ in 0..6 {
                let size = [1, 1, 2, 5][random.below(4)];
                let given: Vec<&Message> = (0..size).map(|_| &all[random.below(all.len())]).collect();
                let expected = one_by_one(store, &given).await;
                let place = |message: &&Message| waits.iter().find(|stored| stored.message.id == message.id);
                let fenced: Vec<&Stored> = given.iter().filter_map(place).map(|stored| &**stored).collect();
                for is_looked_at in [false, true] {
                    let ways = [&[][..], if fenced.len() == given.len() { &fenced[..] } else { &[] }];
                    for fenced in ways {
                        let found = answers(store, &given, fenced, is_looked_at).await;
                        assert_eq!(
                            found,
                            expected,
                            "seed {seed}, looked at: {is_looked_at}, {} fenced",
                            fenced.len()
                        );
                    }
                }
            }
        }
    }
}

/// A position that is known of a message says nothing of those behind it, once it is not there.
#[tokio::test]
async fn a_message_that_was_fenced_and_is_gone_does_not_pass_others() {
    for fixture in both().await {
        let (store, route) = (&fixture.store, inbox_route(&shop()));
        let (second, other) = (message("a"), message("b"));
        for is_looked_at in [false, true] {
            for is_alone in [true, false] {
                sqlx::raw_sql("delete from outbox_message").execute(store.pool()).await.unwrap();
                let first = message("a");
                let of = |message: &Message| Outgoing::from(message.clone()).by(route.clone());
                let mut tx = store.begin().await.unwrap();
                store.append(&mut tx, &[of(&first), of(&second), of(&other)]).await.unwrap();
                store.commit(tx).await.into_result().unwrap();
                let waits = waiting(store, &route).await;
                let fenced: Vec<&Stored> = waits
                    .iter()
                    .filter(|stored| stored.message.id != second.id)
                    .map(|stored| &**stored)
                    .collect();
                let mut tx = store.begin().await.unwrap();
                assert_eq!(store.fence(&mut tx, &route, &fenced).await.unwrap(), [true, true]);
                store.rollback(tx).await.unwrap();
                let gone = "delete from outbox_message where route <> 'default' order by position limit 1";
                sqlx::raw_sql(gone).execute(store.pool()).await.unwrap();
                let (given, expected) = if is_alone {
                    (vec![&first], vec![Dedup::OutOfTurn])
                } else {
                    (vec![&first, &other], vec![Dedup::OutOfTurn, Dedup::New])
                };
                assert_eq!(answers(store, &given, &[], is_looked_at).await, expected);
            }
        }
    }
}

/// Whoever removes a fenced message comes behind the transaction.
#[tokio::test]
async fn a_fenced_message_is_locked_alone_and_among_others() {
    for fixture in both().await {
        let (store, route) = (&fixture.store, inbox_route(&shop()));
        let (one, two) = (message("a"), message("b"));
        let mut tx = store.begin().await.unwrap();
        let of = |message: &Message| Outgoing::from(message.clone()).by(route.clone());
        store.append(&mut tx, &[of(&one), of(&two)]).await.unwrap();
        store.commit(tx).await.into_result().unwrap();
        let waits = waiting(store, &route).await;
        let fenced: Vec<&Stored> = waits.iter().map(|stored| &**stored).collect();
        for is_looked_at in [false, true] {
            for fenced in [&fenced[..1], &fenced[..]] {
                let mut tx = store.begin().await.unwrap();
                if is_looked_at {
                    store.deduplicate(&mut tx, &shop(), &[&message("x")]).await.unwrap();
                }
                let wait = store.fence(&mut tx, &route, fenced).await.unwrap();
                assert!(wait.iter().all(|waits| *waits), "{wait:?}");
                for stored in &waits {
                    let is_fenced = fenced.iter().any(|fenced| fenced.position == stored.position);
                    let mut other = fixture.connection().await;
                    let delete = format!(
                        "set session innodb_lock_wait_timeout = 1; begin; delete from outbox_message where route = 'inbox/shop' and position = {}; rollback",
                        stored.position.0
                    );
                    let removed = sqlx::raw_sql(sqlx::AssertSqlSafe(delete)).execute(&mut other).await;
                    assert_eq!(removed.is_err(), is_fenced, "looked at: {is_looked_at}, {removed:?}");
                }
                store.rollback(tx).await.unwrap();
            }
        }
    }
}
