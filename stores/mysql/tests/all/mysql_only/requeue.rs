//! Requeues of which the database refuses some: what could never be a message, and what a check of
//! somebody's says no to.

use outbox_contract::admin::Filter;
use outbox_contract::{AdminExt, Store, StoreErrorKind};

use super::support::{Fixture, both, dead, waiting};

/// Dead letters of one key: each one's position is the last digits of its id.
async fn bury(fixture: &Fixture, count: i64) {
    let rows: Vec<String> = (1..=count)
        .map(|at| {
            format!(
                "({at}, 7, {at}, unhex(lpad('{at}', 32, '0')), 'default', 'orders', 'a', 'a', 'x', 1, 'text/plain', '', '', 1, 1, 'rejected', 1, {at})"
            )
        })
        .collect();
    fixture
        .run(&format!(
            "insert into outbox_dead (position, stripe, number, id, route, topic, `key`, order_key, event_type, schema_version, content_type, \
             headers, payload, occurred_at, appended_at, reason, attempts, died_at) values {}",
            rows.join(", ")
        ))
        .await;
}

#[tokio::test]
async fn a_requeue_leaves_what_is_refused_and_says_which() {
    for fixture in both().await {
        bury(&fixture, 6).await;
        fixture
            .run(
                "update outbox_dead set topic = x'610a62' where position = 2; \
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
            "000000000002 (",
            "topic_is_empty_or_has_control_characters",
            "000000000004 (",
            "headers_are_no_json_object",
            "000000000005 (",
            "nothing_is_forbidden",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
        assert_eq!(dead(&fixture.store).await, [2, 4, 5]);
        assert_eq!(waiting(&fixture.store).await, [1, 3, 6], "in their old order");
        let again = fixture.store.requeue(&Filter::all_routes()).await.unwrap_err().to_string();
        assert!(again.contains("0 dead letters were requeued, and 3 refused"), "{again}");
    }
}

#[tokio::test]
async fn one_of_a_thousand_holds_up_none_of_the_others() {
    for fixture in both().await {
        bury(&fixture, 1_000).await;
        fixture.run("update outbox_dead set schema_version = 0 where position = 613").await;
        let refused = fixture.store.requeue(&Filter::all_routes()).await.unwrap_err().to_string();
        assert!(refused.contains("999 dead letters were requeued, and 1 refused"), "{refused}");
        assert!(refused.contains("000000000613 ("), "{refused}");
        assert_eq!(dead(&fixture.store).await, [613]);
        let backlog = fixture.store.backlog(&Default::default()).await.unwrap();
        assert_eq!((backlog.pending, backlog.dead), (999, 1));
    }
}
