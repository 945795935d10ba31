//! Requeues of which the database refuses some: what could never be a message, and what a check of
//! somebody's says no to.

use outbox_contract::admin::Filter;
use outbox_contract::{AdminExt, Store, StoreErrorKind};

use super::support::{Fixture, dead, waiting};

/// Dead letters of one key: each one's position is the last digits of its id.
async fn bury(fixture: &Fixture, count: i64) {
    fixture
        .run(&format!(
            "insert into outbox_dead (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, \
             payload, occurred_at, appended_at, died_at, attempts, reason) \
             select n, ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, 'default', 7, 'orders', 'a', 'a', 'x', 1, 'text/plain', \
             '', '', 1, 1, n, 1, 'rejected' from generate_series(1, {count}) n"
        ))
        .await;
}

#[tokio::test]
async fn a_requeue_leaves_what_is_refused_and_says_which() {
    let Some(fixture) = Fixture::new().await else { return };
    bury(&fixture, 6).await;
    fixture
        .run(
            "update outbox_dead set topic = E'a\\nb' where position = 2; \
             update outbox_dead set headers = '[1]' where position = 4; \
             update outbox_dead set event_type = 'forbidden' where position = 5; \
             alter table outbox_message add constraint nothing_is_forbidden check (event_type <> 'forbidden')",
        )
        .await;
    let refused = fixture.store.requeue(&Filter::all_routes()).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Invalid);
    let said = refused.to_string();
    for words in [
        "3 dead letters were requeued, and 3 refused",
        "000000000002 (outbox: topic has the control character U+000A",
        "000000000004 (outbox: headers are not a JSON object",
        "000000000005 (",
        "nothing_is_forbidden",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(dead(&fixture.store).await, [2, 4, 5]);
    assert_eq!(waiting(&fixture.store).await, [1, 3, 6], "in their old order");

    // Nothing of it is worse the next time.
    let again = fixture.store.requeue(&Filter::all_routes()).await.unwrap_err().to_string();
    assert!(again.contains("0 dead letters were requeued, and 3 refused"), "{again}");
    fixture.run("alter table outbox_message drop constraint nothing_is_forbidden").await;
    let id = fixture.store.dead_letters(&Filter::all_routes()).await.unwrap()[2].stored.message.id;
    let only = Filter { ids: Some(vec![id]), ..Filter::all_routes() };
    assert_eq!(fixture.store.requeue(&only).await.unwrap(), 1);
}

#[tokio::test]
async fn one_of_a_thousand_holds_up_none_of_the_others() {
    let Some(fixture) = Fixture::new().await else { return };
    bury(&fixture, 1_000).await;
    fixture.run("update outbox_dead set schema_version = 0 where position = 613").await;
    let refused = fixture.store.requeue(&Filter::all_routes()).await.unwrap_err().to_string();
    assert!(refused.contains("999 dead letters were requeued, and 1 refused"), "{refused}");
    assert!(refused.contains("000000000613 (outbox: schema_version is 0"), "{refused}");
    assert_eq!(dead(&fixture.store).await, [613]);
    let backlog = fixture.store.backlog(&Default::default()).await.unwrap();
    assert_eq!((backlog.pending, backlog.dead), (999, 1));
}
