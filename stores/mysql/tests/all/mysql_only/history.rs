//! The history: partitions are made ahead, and dropped when everything in them is over its time.

use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::{AdminExt, Route, Store};
use outbox_testkit::eventually;

use super::support::{LONG, append, both_with, fetch, message, messages, options, relay, run};

const KEPT: Duration = Duration::from_secs(3_600);

const PARTITIONS: &str = "select count(*) from information_schema.partitions where table_schema = database() \
                          and table_name = 'outbox_history' and partition_name like 'until%'";

#[tokio::test]
async fn partitions_are_made_ahead_and_old_ones_are_dropped() {
    let mut keeps = options();
    keeps.history = Some(KEPT);
    for fixture in both_with(keeps).await {
        append(&fixture.store, [message("a")]).await;
        let relay = relay(&fixture.store).await;
        let read = messages(&fetch(&fixture.store, relay).await);
        fixture.store.settle(&Route::default(), &[read[0].row()]).await.unwrap();
        // One of 1970, in a partition of its own.
        fixture
            .run(
                "alter table outbox_history reorganize partition rest into (partition until_1000 values less than (1000), partition rest \
                 values less than maxvalue); \
                 insert into outbox_history (delivered_at, position, stripe, number, id, route, topic, order_key, event_type, schema_version, \
                 content_type, headers, payload, occurred_at, appended_at) \
                 values (1, 1, 1, 1, unhex(replace(uuid(), '-', '')), 'default', 't', 'k', 'e', 1, 'c', '', '', 0, 0)",
            )
            .await;
        assert_eq!(fixture.store.history(&Filter::all_routes()).await.unwrap().len(), 2);
        fixture.store.maintain(10).await.unwrap();
        let kept = fixture.store.history(&Filter::all_routes()).await.unwrap();
        assert_eq!(kept.len(), 1, "what was delivered just now is kept, though its partition was made later");
        assert_eq!(kept[0].message.message.id, read[0].message.id);
        assert!(fixture.number(PARTITIONS).await >= 3, "made ahead");
        assert_eq!(
            fixture.number(&format!("{PARTITIONS} and partition_name = 'until_1000'")).await,
            0,
            "dropped whole"
        );
        // Another relay finds nothing to do, and what is delivered now has a partition.
        let another = fixture.another().await;
        let before = fixture.number(PARTITIONS).await;
        another.maintain(10).await.unwrap();
        assert!(fixture.number(PARTITIONS).await >= before);
        append(&another, [message("b")]).await;
        let read = messages(&fetch(&another, relay).await);
        another.settle(&Route::default(), &[read[0].row()]).await.unwrap();
        let rest = "select count(*) from outbox_history partition (rest)";
        assert_eq!(fixture.number(rest).await, 0);
    }
}

/// Who waits to change a table has all others wait who come behind.
#[tokio::test]
async fn a_settlement_does_not_wait_for_partitions_that_wait_for_somebody_else() {
    let mut keeps = options();
    keeps.history = Some(KEPT);
    keeps.lock_timeout = Duration::from_secs(40);
    for fixture in both_with(keeps).await {
        append(&fixture.store, [message("a")]).await;
        let relay = relay(&fixture.store).await;
        let read = messages(&fetch(&fixture.store, relay).await);
        let mut reader = fixture.connection().await;
        run(&mut reader, "start transaction; select 1 from outbox_history limit 1").await;
        let maintained = tokio::spawn({
            let another = fixture.another().await;
            async move { another.maintain(10).await }
        });
        let waits = "select count(*) from information_schema.processlist where db = database() and state like '%metadata lock'";
        eventually(LONG, async || maintained.is_finished() || fixture.sessions(waits).await != 0).await;
        let row = [read[0].row()];
        let route = Route::default();
        let settled = tokio::time::timeout(Duration::from_secs(20), fixture.store.settle(&route, &row));
        settled.await.expect("it waited for as long as the partitions did").unwrap();
        maintained.await.unwrap().unwrap();
        assert_eq!(fixture.number("select count(*) from outbox_message").await, 0);
        run(&mut reader, "rollback").await;
        assert_eq!(fixture.number(PARTITIONS).await, 0, "the next turn makes them");
    }
}

#[tokio::test]
async fn old_partitions_are_dropped_where_none_can_be_made() {
    let mut keeps = options();
    keeps.history = Some(KEPT);
    for fixture in both_with(keeps).await {
        fixture
            .run(
                "alter table outbox_history reorganize partition rest into (partition until_1000 values less than (1000), partition another \
                 values less than maxvalue)",
            )
            .await;
        fixture.store.maintain(10).await.unwrap();
        assert_eq!(fixture.number(PARTITIONS).await, 0);
    }
}
