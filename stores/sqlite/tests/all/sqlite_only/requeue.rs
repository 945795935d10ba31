//! Requeues of which the database refuses some: what could never be a message, and what a trigger
//! of somebody's says no to.

use outbox_contract::admin::Filter;
use outbox_contract::{AdminExt, Store, StoreErrorKind};

use super::support::{Fixture, dead, waiting};

async fn run(fixture: &Fixture, statements: &str) {
    let statements = sqlx::AssertSqlSafe(statements.to_owned());
    sqlx::raw_sql(statements).execute(fixture.store.pool()).await.unwrap();
}

/// Dead letters of one key: each one's position is the last digits of its id.
async fn bury(fixture: &Fixture, count: i64) {
    let bury = format!(
        "with recursive n(at) as (select 1 union all select at + 1 from n where at < {count})
         insert into outbox_dead (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload,
                                  occurred_at, appended_at, reason, attempts, died_at)
         select at, unhex(printf('%032d', at)), 'default', 7, 'orders', 'a', 'a', 'x', 1, 'text/plain', x'', x'', 1, 1, 'rejected', 1, at from n"
    );
    run(fixture, &bury).await;
}

#[tokio::test]
async fn a_requeue_leaves_what_is_refused_and_says_which() {
    let fixture = Fixture::new().await;
    bury(&fixture, 7).await;
    run(
        &fixture,
        "update outbox_dead set topic = 'a' || char(10) where position = 2;
         update outbox_dead set headers = '[1]' where position = 4;
         update outbox_dead set event_type = 'forbidden' where position = 5;
         update outbox_dead set id = x'07' where position = 7;
         create trigger forbidden before insert on outbox_message when new.event_type = 'forbidden'
         begin select raise(abort, 'nothing is forbidden'); end;",
    )
    .await;
    let refused = fixture.store.requeue(&Filter::all_routes()).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Invalid);
    let said = refused.to_string();
    for words in [
        "3 dead letters were requeued, and 4 refused",
        "000000000002 (CHECK constraint failed: topic_has_no_control_characters",
        "000000000004 (CHECK constraint failed: headers_are",
        "000000000005 (nothing is forbidden",
        "one with the id \"\\\\x07\" (CHECK constraint failed: id_is_a_uuid_of_16_bytes",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(dead(&fixture.store).await, [2, 4, 5, 7]);
    assert_eq!(waiting(&fixture.store).await, [1, 3, 6], "in their old order");
    let again = fixture.store.requeue(&Filter::all_routes()).await.unwrap_err().to_string();
    assert!(again.contains("0 dead letters were requeued, and 4 refused"), "{again}");
}

#[tokio::test]
async fn one_of_a_thousand_holds_up_none_of_the_others() {
    let fixture = Fixture::new().await;
    bury(&fixture, 1_000).await;
    run(&fixture, "update outbox_dead set schema_version = 0 where position = 613").await;
    let refused = fixture.store.requeue(&Filter::all_routes()).await.unwrap_err().to_string();
    assert!(refused.contains("999 dead letters were requeued, and 1 refused"), "{refused}");
    assert!(
        refused.contains("000000000613 (CHECK constraint failed: schema_version_counts_from_1"),
        "{refused}"
    );
    assert_eq!(dead(&fixture.store).await, [613]);
    let backlog = fixture.store.backlog(&Default::default()).await.unwrap();
    assert_eq!((backlog.pending, backlog.dead), (999, 1));
}
