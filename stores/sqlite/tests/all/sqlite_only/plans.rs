//! Query plans: rows that a statement scans, whatever the tables hold.

use outbox_store_sql::statements::{newest_first, of_one_key};

use super::support::{Fixture, assert_fetches_walk};

/// The plan of a statement of the store, one line for each step.
async fn plan(fixture: &Fixture, statement: &str) -> Vec<String> {
    let statement = format!("explain query plan {statement}");
    let rows: Vec<(i64, i64, i64, String)> =
        sqlx::query_as(sqlx::AssertSqlSafe(statement)).fetch_all(fixture.store.pool()).await.unwrap();
    rows.into_iter().map(|row| row.3).collect()
}

/// Asserts that no step scans more of a table than a range of its primary key or of an index.
fn assert_no_scan(plan: &[String], table: &str) {
    for step in plan {
        // Lists of the request's own, the page that was cut to the limit, and the leases of one
        // relay: at most 256.
        let is_bounded = step.contains("VIRTUAL TABLE")
            || ["SCAN page", "SCAN held", "SCAN bound", "SCAN b", "SCAN CONSTANT ROW"]
                .contains(&step.as_str());
        let scans = step.starts_with("SCAN") && !is_bounded;
        assert!(!scans, "{table}: {step}\n{plan:#?}");
        assert!(!step.contains("TEMP B-TREE"), "{table}: {step}\n{plan:#?}");
    }
}

#[tokio::test]
async fn a_fetch_walks_along_the_primary_key_and_sorts_nothing() {
    let fixture = Fixture::new().await;
    let plan = plan(&fixture, include_str!("../../../src/queries/fetch.sql")).await;
    assert_no_scan(&plan, "outbox_message");
    let has = |text: &str| plan.iter().any(|step| step.contains(text));
    assert!(has("SEARCH outbox_message USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"), "{plan:#?}");
    assert!(has("SEARCH k USING PRIMARY KEY (route=? AND topic=? AND key=?)"), "{plan:#?}");
    assert!(
        has("SEARCH u USING COVERING INDEX outbox_message_unplaced")
            || has("SEARCH u USING INDEX outbox_message_unplaced"),
        "{plan:#?}"
    );
}

#[tokio::test]
async fn settling_parking_and_burying_find_each_row_by_its_primary_key() {
    let fixture = Fixture::new().await;
    for (name, statement) in [
        ("settle", include_str!("../../../src/queries/settle.sql")),
        ("settle_history", include_str!("../../../src/queries/settle_history.sql")),
        ("park", include_str!("../../../src/queries/park.sql")),
        ("park_remove", include_str!("../../../src/queries/park_remove.sql")),
        ("bury_pending", include_str!("../../../src/queries/bury_pending.sql")),
        ("bury_parked", include_str!("../../../src/queries/bury_parked.sql")),
        ("resume", include_str!("../../../src/queries/resume.sql")),
    ] {
        assert_no_scan(&plan(&fixture, statement).await, name);
    }
}

#[tokio::test]
async fn what_is_due_and_handled_is_found_by_an_index() {
    let fixture = Fixture::new().await;
    for (name, statement) in [
        ("due_keys", include_str!("../../../src/queries/due_keys.sql")),
        ("due_sizes", include_str!("../../../src/queries/due_sizes.sql")),
        ("due_messages", include_str!("../../../src/queries/due_messages.sql")),
        ("deduplicate", include_str!("../../../src/queries/deduplicate.sql")),
        ("deduplicate_first", include_str!("../../../src/queries/deduplicate_first.sql")),
        ("is_handled", include_str!("../../../src/queries/is_handled.sql")),
        ("maintain_consumer", include_str!("../../../src/queries/maintain_consumer.sql")),
        ("maintain_handled", include_str!("../../../src/queries/maintain_handled.sql")),
        ("maintain_latest", include_str!("../../../src/queries/maintain_latest.sql")),
        ("unplaced", include_str!("../../../src/queries/unplaced.sql")),
    ] {
        let plan: Vec<String> = plan(&fixture, statement)
            .await
            .into_iter()
            // A scan of the partial index that holds only the rows that the statement is for.
            .filter(|step| !step.contains("USING INDEX outbox_message_unplaced"))
            .collect();
        assert_no_scan(&plan, name);
    }
    let waits = plan(&fixture, include_str!("../../../src/queries/deduplicate_waits.sql")).await;
    assert!(waits.iter().any(|step| step.contains("outbox_message_inbox")), "{waits:#?}");
}

#[tokio::test]
async fn a_backlog_of_another_route_is_walked_over_once() {
    let fixture = Fixture::new().await;
    let plan = plan(&fixture, include_str!("../../../src/queries/fetch.sql")).await;
    // The position up to which it has looked is the end of the primary key, not a scan to it.
    assert!(plan.contains(&"SEARCH outbox_message".to_owned()), "{plan:#?}");
}

/// However many keys fail, a page of them sorts none.
#[tokio::test]
async fn a_list_of_failing_keys_is_read_along_an_index() {
    let fixture = Fixture::new().await;
    let plan = plan(&fixture, include_str!("../../../src/queries/browse_keys.sql")).await;
    assert!(plan.iter().any(|step| step.contains("USING COVERING INDEX outbox_key_since")), "{plan:#?}");
    let sorts = plan.iter().filter(|step| step.contains("FOR ORDER BY")).count();
    assert!(sorts <= 1, "at most the page itself: {plan:#?}");
}

/// However many keys fail, the measurement looks at none by itself, and scans none to find those
/// that are held.
#[tokio::test]
async fn a_measurement_finds_what_it_counts_at_the_head_of_an_index() {
    let fixture = Fixture::new().await;
    let plan = plan(&fixture, include_str!("../../../src/queries/backlog.sql")).await;
    let has = |text: &str| plan.iter().any(|step| step.contains(text));
    assert!(has("SEARCH outbox_parked USING INDEX outbox_parked_route (route=?)"), "{plan:#?}");
    assert!(has("SEARCH outbox_key USING COVERING INDEX outbox_key_held (route=?)"), "{plan:#?}");
    assert!(!plan.iter().any(|step| step.contains("CORRELATED")), "{plan:#?}");
}

/// However many messages wait on served routes: the search scans a limited number of rows of the
/// hot table, and one row for each route where an index begins with the route.
#[tokio::test]
async fn routes_that_nobody_serves_are_found_without_walking_over_what_others_have() {
    let fixture = Fixture::new().await;
    let plan = plan(&fixture, include_str!("../../../src/queries/unserved.sql")).await;
    let has = |text: &str| plan.iter().any(|step| step.contains(text));
    assert!(has("SCAN outbox_message"), "in the order of the primary key, up to the limit: {plan:#?}");
    assert!(has("SEARCH m USING COVERING INDEX outbox_message_inbox (route>?"), "{plan:#?}");
    assert!(has("SEARCH m USING INDEX outbox_message_inbox (route=?)"), "{plan:#?}");
    assert!(has("SEARCH p USING COVERING INDEX outbox_parked_route (route>?)"), "{plan:#?}");
    assert!(has("SEARCH p USING INDEX outbox_parked_route (route=?)"), "{plan:#?}");
    assert!(has("SEARCH outbox_scheduled USING COVERING INDEX outbox_scheduled_due (due_at<?)"), "{plan:#?}");
    let is_of_another_table =
        |step: &&String| step.starts_with("SCAN") && (step.contains("parked p") || step.contains("SCAN m"));
    assert_eq!(plan.iter().find(is_of_another_table), None, "{plan:#?}");
}

/// Content is read once, for the returned rows: neither to compute its size nor to sort it.
#[tokio::test]
async fn browsing_sorts_nothing_that_has_content() {
    let fixture = Fixture::new().await;
    for statement in [
        include_str!("../../../src/queries/browse_dead.sql"),
        include_str!("../../../src/queries/browse_history.sql"),
        include_str!("../../../src/queries/browse_parked.sql"),
        include_str!("../../../src/queries/browse_scheduled.sql"),
    ] {
        let plan = plan(&fixture, statement).await;
        let read = plan.iter().position(|step| step == "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)");
        assert_eq!(read, Some(plan.len() - 1), "{plan:#?}");
    }
}

/// A route begins to be read behind a backlog of other routes of any size: no fetch scans all of
/// it, and each continues where the one before it stopped.
#[tokio::test]
async fn a_fetch_walks_over_so_many_positions_and_the_next_one_goes_on_from_there() {
    let fixture = Fixture::new().await;
    let rows = "insert into outbox_message (position, bucket, route, topic, key, event_type)
                values (1, 0, 'other', 'orders', 'a', 'x'), (3, 0, 'other', 'orders', 'a', 'x'), (900000, 0, 'other', 'orders', 'a', 'x'),
                       (1100001, 1, 'default', 'orders', 'a', 'x'), (1300001, 1, 'default', 'orders', 'a', 'x')";
    sqlx::raw_sql(rows).execute(fixture.store.pool()).await.unwrap();
    assert_fetches_walk(&fixture.store).await;
}

/// A page about one key finds it and its messages by their indexes, however many others fail.
#[tokio::test]
async fn a_key_is_looked_at_without_reading_others() {
    let fixture = Fixture::new().await;
    for (list, step) in [
        (
            include_str!("../../../src/queries/browse_keys.sql"),
            "SEARCH k USING PRIMARY KEY (route=? AND topic=? AND key=?)",
        ),
        (
            include_str!("../../../src/queries/browse_parked.sql"),
            "SEARCH outbox_parked USING INDEX outbox_parked_key (route=? AND topic=? AND order_key=?)",
        ),
        (
            include_str!("../../../src/queries/browse_dead.sql"),
            "SEARCH outbox_dead USING INDEX outbox_dead_route (route=? AND topic=?)",
        ),
    ] {
        for list in [list.to_owned(), newest_first(list)] {
            let plan = plan(&fixture, &of_one_key(&list)).await;
            assert!(plan.iter().any(|line| line == step), "no {step}: {plan:#?}");
        }
    }
}
