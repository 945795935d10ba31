//! Messages below a saved mark, where none should stand.
//!
//! A mark is the position up to which relays report that they have read. Positions can come back
//! (`sqlite_sequence` that was set, a table that was restored or imported), so the store checks for
//! messages below. A relay does so by itself, with
//! [`fetch_below`](outbox_contract::Store::fetch_below).

use outbox_contract::admin::Misplaced;
use sqlx::Row;
use sqlx::sqlite::SqlitePool;

use crate::sql;

/// Maximum number of scanned rows of other routes, as a multiple of the counting limit. The
/// backlog's figures, which are requested all the time, use the limit itself.
const WALKED: i64 = 10;

/// Finds messages below the marks of any route.
pub(crate) async fn find(pool: &SqlitePool, counting_limit: u32) -> Result<Vec<Misplaced>, sqlx::Error> {
    let walked = i64::from(counting_limit).saturating_mul(WALKED);
    let mut found = Vec::new();
    for row in sqlx::query(sql::BELOW).bind(walked).fetch_all(pool).await? {
        if let Some(lowest) = row.try_get::<Option<i64>, _>("position")? {
            let (route, mark): (String, i64) = (row.try_get("route")?, row.try_get("low_water")?);
            found.push(misplaced(&route, lowest, mark));
        }
    }
    Ok(found)
}

fn misplaced(route: &str, lowest: i64, mark: i64) -> Misplaced {
    let text = format!(
        "messages from position {lowest} on stand below {mark}, the saved mark of relays, as after a restore, an import, or a sqlite_sequence that was set back"
    );
    let remedy =
        "Set the seq of outbox_message in sqlite_sequence above the highest position that was ever used";
    Misplaced::new(route, text, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SqliteStore;
    use outbox_contract::{Admin, Store};

    #[tokio::test]
    async fn what_stands_below_a_mark_is_found_and_nothing_else() {
        let store = SqliteStore::in_memory().await.unwrap();
        let run = async |statements: &'static str| {
            sqlx::raw_sql(statements).execute(store.pool()).await.unwrap();
        };
        run("with recursive b(n) as (select 0 union all select n + 1 from b where n < 255)
             insert into outbox_lease (route, bucket, epoch, low_water)
             select route, n, 1, 30 + n from b, (select 'default' as route union all select 'other');
             insert into outbox_message (position, route, topic, event_type) values (31, 'default', 'orders', 'x'), (9, 'unmarked', 'orders', 'x')")
        .await;
        let looked = async |limit| find(&store.pools().reads, limit).await.unwrap();
        assert_eq!(looked(100).await, []);
        run("insert into outbox_message (position, route, topic, event_type) values (30, 'default', 'orders', 'x'), (12, 'default', 'orders', 'x')").await;
        let found = || misplaced("default", 12, 30);
        assert_eq!(looked(100).await, [found()]);
        assert_eq!(store.misplaced().await.unwrap(), [found()]);
        // Without scanning a backlog of other routes of any size.
        run("with recursive r(n) as (select 1 union all select n + 1 from r where n < 8)
             insert into outbox_message (position, route, topic, event_type) select n, 'unmarked', 'orders', 'x' from r")
        .await;
        assert_eq!(looked(1).await, [found()], "ten rows are walked over");
        run("insert into outbox_message (position, route, topic, event_type) values (11, 'unmarked', 'orders', 'x'), (10, 'unmarked', 'orders', 'x')").await;
        assert_eq!(looked(1).await, []);
        store.check().await.unwrap();
    }
}
