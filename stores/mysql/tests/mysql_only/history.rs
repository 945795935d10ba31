//! The history: partitions are made ahead, and dropped when everything in them is over its time.

use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::{Admin, Route, Store};

use super::support::{append, both_with, fetch, message, messages, options, relay};

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
        assert_eq!(fixture.store.history(&Filter::default()).await.unwrap().len(), 2);
        fixture.store.maintain(10).await.unwrap();
        let kept = fixture.store.history(&Filter::default()).await.unwrap();
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
