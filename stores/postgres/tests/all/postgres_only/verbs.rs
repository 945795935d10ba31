//! Admin operations on very many messages at once.

use outbox_contract::admin::Filter;
use outbox_contract::{Admin, AdminExt, Route, Store};

use super::support::{Fixture, message};

/// A key with very many parked messages: its relay parks others behind them in between.
#[tokio::test]
async fn a_key_is_discarded_in_steps_and_held_until_the_last_of_them() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    fixture
        .run(
            "insert into outbox_key (route, topic, key, bucket, version, next_attempt_at, since) values ('default', 'orders', 'a', 0, 1, 0, 0);
             insert into outbox_parked (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers,
                                        payload, occurred_at, appended_at, parked_at)
             select n, gen_random_uuid(), 'default', 0, 'orders', 'a', 'a', 'x', 1, 'text/plain', '', '', 0, 0, 0 from generate_series(1, 2500) n;
             -- Somebody stops it in the second step.
             alter table outbox_dead add constraint stop check (position <= 1500)",
        )
        .await;
    let key = message("a").key_id();
    store.discard(&Route::default(), &key).await.unwrap_err();
    let failing = store.failing_keys(&Filter::all_routes()).await.unwrap();
    assert_eq!(
        (failing.len(), failing[0].held, failing[0].parked),
        (1, true, 1_500),
        "the first step is done"
    );

    fixture.run("alter table outbox_dead drop constraint stop").await;
    assert_eq!(store.discard(&Route::default(), &key).await.unwrap(), 1_500);
    assert!(store.failing_keys(&Filter::all_routes()).await.unwrap().is_empty());
    let backlog = store.backlog(&Route::default()).await.unwrap();
    assert_eq!((backlog.parked, backlog.dead), (0, 2_500));
    // Each step is recorded with what it moved, and none for the one that failed.
    let entries = store.audit(&Filter::all_routes()).await.unwrap();
    let told: Vec<_> = entries.iter().map(|entry| (entry.affected, entry.ids.len())).collect();
    assert_eq!(told, [(1_000, 100), (1_000, 100), (500, 100)]);
}

#[tokio::test]
async fn recorded_operations_are_removed_at_the_end_of_their_retention() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    fixture
        .run(
            "insert into outbox_audit (at, actor, operation, detail, affected, ids)
             select outbox_now() - d.days * 86400000000, 'ann', 'purge', '{}', 0, ''
             from (values (91, 250), (89, 3), (-365, 2)) d(days, rows), generate_series(1, d.rows)",
        )
        .await;
    let (mut removed, mut rounds) = (0, 0);
    loop {
        let done = store.maintain(100).await.unwrap();
        (removed, rounds) = (removed + done.audit_removed, rounds + 1);
        if !done.more {
            break;
        }
    }
    let left = store.audit(&Filter::all_routes()).await.unwrap();
    assert_eq!((removed, rounds, left.len()), (250, 3, 5));
}
