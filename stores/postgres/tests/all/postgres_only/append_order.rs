//! Positions of one key in the order of its commits: every way to append takes the lock of the key
//! before the position, and holds it.

use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::{AdminExt, Message, MessageId, Outgoing, Store, Timestamp, Transactional};
use outbox_store_postgres::PostgresStore;

use super::support::{Fixture, LAST_POSITION, WAITING, append, fetch, message, messages, relay, run};

/// Holds the key `a` in an open transaction; another writer of the key waits meanwhile, and has
/// taken no position.
async fn waits_without_a_position(fixture: &Fixture, other: impl Future<Output = ()>) {
    let mut holder = fixture.store.begin().await.unwrap();
    fixture.store.append(&mut holder, &[message("a").into()]).await.unwrap();
    let taken = fixture.number(LAST_POSITION).await;

    let look = async {
        fixture.until_waiting(1).await;
        assert_eq!(fixture.number(LAST_POSITION).await, taken, "a position was taken before the lock");
        fixture.store.commit(holder).await.into_result().unwrap();
    };
    tokio::join!(other, look);
}

/// The positions of the key `a` ascend in the order of its commits: the holder's first.
async fn assert_second(fixture: &Fixture, id: MessageId) {
    let relay = relay(&fixture.store).await;
    let read = messages(&fetch(&fixture.store, relay).await);
    let of_a: Vec<_> = read.iter().filter(|stored| stored.message.order_key().as_str() == "a").collect();
    assert_eq!(of_a.len(), 2);
    assert_eq!(of_a[1].message.id, id);
}

#[tokio::test]
async fn a_single_append_locks_its_key_before_it_takes_a_position() {
    let Some(fixture) = Fixture::new().await else { return };
    let second = message("a");
    waits_without_a_position(&fixture, append(&fixture.store, [second.clone()])).await;
    assert_second(&fixture, second.id).await;
}

#[tokio::test]
async fn an_append_of_several_locks_their_keys_before_it_takes_a_position() {
    let Some(fixture) = Fixture::new().await else { return };
    let second = message("a");
    let all = [message("b"), second.clone(), message("c")];
    waits_without_a_position(&fixture, append(&fixture.store, all)).await;
    assert_second(&fixture, second.id).await;
}

#[tokio::test]
async fn an_append_of_many_keys_locks_their_buckets_before_it_takes_a_position() {
    let Some(fixture) = Fixture::new().await else { return };
    let second = message("a");
    let others = (0..300).map(|n| message(&format!("key-{n}")));
    let all: Vec<Message> = others.chain([second.clone()]).collect();
    waits_without_a_position(&fixture, append(&fixture.store, all)).await;
    assert_second(&fixture, second.id).await;
}

#[tokio::test]
async fn a_plain_insert_locks_its_key_before_it_takes_a_position() {
    let Some(fixture) = Fixture::new().await else { return };
    let id = MessageId::new();
    let insert = format!(
        "insert into outbox_message (id, topic, key, event_type) values ('{id}', 'orders', 'a', 'x')"
    );
    waits_without_a_position(&fixture, fixture.run(&insert)).await;
    assert_second(&fixture, id).await;
}

#[tokio::test]
async fn a_requeued_message_locks_its_key_before_it_takes_a_position() {
    let Some(fixture) = Fixture::new().await else { return };
    let id = MessageId::new();
    let dead = format!(
        "insert into outbox_dead (position, occurred_at, appended_at, died_at, schema_version, attempts, id, bucket, route, topic, key, \
         order_key, event_type, content_type, headers, payload, reason) \
         values (1, 0, 0, 0, 1, 1, '{id}', 0, 'default', 'orders', 'a', 'a', 'x', 'text/plain', '', '', 'exhausted')"
    );
    fixture.run(&dead).await;
    let requeue = async { assert_eq!(fixture.store.requeue(&Filter::all_routes()).await.unwrap(), 1) };
    waits_without_a_position(&fixture, requeue).await;
    assert_second(&fixture, id).await;
}

/// A writer of one key of a bulk append waits for it, by any way of appending.
#[tokio::test]
async fn a_bulk_append_holds_up_single_ones_of_its_buckets_until_it_is_over() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut bulk = fixture.store.begin().await.unwrap();
    let all: Vec<Outgoing> = (0..300).map(|n| message(&format!("key-{n}")).into()).collect();
    fixture.store.append(&mut bulk, &all).await.unwrap();
    let taken = fixture.number(LAST_POSITION).await;
    let single = append(&fixture.store, [message("key-7")]);
    let plain =
        fixture.run("insert into outbox_message (topic, key, event_type) values ('orders', 'key-8', 'x')");
    let look = async {
        fixture.until_waiting(2).await;
        assert_eq!(fixture.number(LAST_POSITION).await, taken);
        fixture.store.commit(bulk).await.into_result().unwrap();
    };
    tokio::join!(single, plain, look);
    assert_eq!(fixture.number("select count(*) from outbox_message").await, 302);
}

/// Keys of one bucket: `a` and `key-62` and the others are found by their hash.
#[tokio::test]
async fn writers_of_different_keys_of_one_bucket_do_not_wait() {
    let Some(fixture) = Fixture::new().await else { return };
    let bucket = message("a").bucket();
    let other = (0..).map(|n| message(&format!("other-{n}"))).find(|other| other.bucket() == bucket).unwrap();
    let mut first = fixture.store.begin().await.unwrap();
    fixture.store.append(&mut first, &[message("a").into()]).await.unwrap();
    // Returns although the first is open.
    append(&fixture.store, [other]).await;
    assert_eq!(fixture.number(WAITING).await, 0);
    fixture.store.commit(first).await.into_result().unwrap();
}

/// A rollback to a savepoint drops the lock of an append that came after it: the next append of the
/// transaction takes it again.
#[tokio::test]
async fn an_append_after_a_savepoint_was_rolled_back_locks_its_key_again() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut tx = fixture.store.begin().await.unwrap();
    run(&mut tx, "savepoint s").await;
    fixture.store.append(&mut tx, &[message("a").into()]).await.unwrap();
    run(&mut tx, "rollback to savepoint s").await;
    let again = message("a");
    fixture.store.append(&mut tx, &[again.clone().into()]).await.unwrap();
    let taken = fixture.number(LAST_POSITION).await;
    let second = message("a");
    let look = async {
        fixture.until_waiting(1).await;
        assert_eq!(fixture.number(LAST_POSITION).await, taken, "the lock is held");
        fixture.store.commit(tx).await.into_result().unwrap();
    };
    tokio::join!(append(&fixture.store, [second.clone()]), look);
    assert_second(&fixture, second.id).await;
}

/// All ways to append agree on the lock of a key and on its bucket.
#[tokio::test]
async fn the_database_computes_buckets_as_the_library_does() {
    let Some(fixture) = Fixture::new().await else { return };
    for key in ["order-1", "ключ 🗝️", "a\"b'c\\d", " "] {
        let mut insert = fixture.connection().await;
        sqlx::query("insert into outbox_message (topic, key, event_type) values ('orders', $1, 'x')")
            .bind(key)
            .execute(&mut insert)
            .await
            .unwrap();
    }
    fixture.run("insert into outbox_message (topic, event_type) values ('orders', 'x')").await;
    let relay = relay(&fixture.store).await;
    // A wrong bucket would make a row malformed.
    assert_eq!(messages(&fetch(&fixture.store, relay).await).len(), 5);
}

async fn promoted(store: &PostgresStore) -> u64 {
    store.maintain(100).await.unwrap().promoted
}

/// A due message of a key that another transaction writes to waits for the next round, without a
/// position; other keys do not wait for it.
#[tokio::test]
async fn a_due_message_waits_for_the_writer_of_its_key_and_holds_up_no_other() {
    let Some(fixture) = Fixture::new().await else { return };
    let due = |key: &str| Outgoing::from(message(key)).due_at(Timestamp::from_micros(1));
    let (busy, free) = (due("a"), due("b"));
    let mut tx = fixture.store.begin().await.unwrap();
    fixture.store.append(&mut tx, &[busy.clone(), free.clone()]).await.unwrap();
    fixture.store.commit(tx).await.into_result().unwrap();

    let mut holder = fixture.store.begin().await.unwrap();
    fixture.store.append(&mut holder, &[message("a").into()]).await.unwrap();
    assert_eq!(promoted(&fixture.store).await, 1, "the free key's");
    fixture.store.commit(holder).await.into_result().unwrap();
    assert_eq!(promoted(&fixture.store).await, 1);
    assert_second(&fixture, busy.message.id).await;
}

/// A transaction with several appends may meet a deadlock, which the server reports.
#[tokio::test]
async fn appends_in_different_orders_end_in_a_conflict_for_one_and_not_in_silence() {
    let mut options = super::support::options();
    options.lock_timeout = Duration::from_secs(600);
    let Some(fixture) = Fixture::with(options).await else { return };
    let store = &fixture.store;
    let (mut one, mut two) = (store.begin().await.unwrap(), store.begin().await.unwrap());
    store.append(&mut one, &[message("a").into()]).await.unwrap();
    store.append(&mut two, &[message("b").into()]).await.unwrap();
    let crossed = async |tx: &mut sqlx::Transaction<'static, sqlx::Postgres>, key: &str| {
        store.append(tx, &[message(key).into()]).await
    };
    // Whichever is ended, the other one continues at once.
    let first = async {
        let done = crossed(&mut one, "b").await;
        let ended = done.is_err();
        if ended {
            store.rollback(one).await.unwrap()
        } else {
            store.commit(one).await.into_result().unwrap()
        }
        done
    };
    let second = async {
        let done = crossed(&mut two, "a").await;
        let ended = done.is_err();
        if ended {
            store.rollback(two).await.unwrap()
        } else {
            store.commit(two).await.into_result().unwrap()
        }
        done
    };
    let (first, second) = tokio::join!(first, second);
    let errors: Vec<_> = [first, second].into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].is_retryable(), "{}", errors[0]);
    assert!(errors[0].to_string().contains("append once"), "{}", errors[0]);
    assert_eq!(fixture.number("select count(*) from outbox_message").await, 2);
}
