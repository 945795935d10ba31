//! Queries of stored messages, as operators run them: their results are bounded.

use super::support::{Fixture, pages};

/// Five messages of 15 MiB, almost the maximum size, in one of the tables that can be browsed.
fn fill(table: &str) -> String {
    let (columns, values) = match table {
        "outbox_parked" => ("position, order_key, parked_at", "n, 'a', 0"),
        "outbox_dead" => ("position, order_key, reason, attempts, died_at", "n, 'a', 'skipped', 0, 0"),
        "outbox_history" => ("position, order_key, delivered_at", "n, 'a', 0"),
        _ => ("due_at", "4102444800000000"),
    };
    format!(
        "with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < 5)
         insert into {table} (id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at,
                              appended_at, {columns})
         select randomblob(16), 'default', 0, 'orders', 'a', 'x', 1, 'text/plain', x'', zeroblob(15 * 1024 * 1024), 0, 0, {values}
         from numbers"
    )
}

async fn run(fixture: &Fixture, statement: String) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(fixture.store.pool()).await.unwrap();
}

#[tokio::test]
async fn a_page_of_large_messages_ends_behind_64_mib() {
    let fixture = Fixture::new().await;
    for table in ["outbox_parked", "outbox_dead", "outbox_history", "outbox_scheduled"] {
        run(&fixture, fill(table)).await;
        assert_eq!(pages(&fixture.store, table).await, [4, 1], "{table}");
        // Other programs' messages may be larger still: one of them is returned.
        if table == "outbox_dead" {
            let larger = "update outbox_dead set payload = zeroblob(65 * 1024 * 1024) where position = 1";
            run(&fixture, larger.to_owned()).await;
            assert_eq!(pages(&fixture.store, table).await, [1, 4], "{table}");
        }
        // Its pages are used again.
        run(&fixture, format!("delete from {table}")).await;
    }
}
