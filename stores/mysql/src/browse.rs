//! Browsing: what operators look at, by a filter and page by page.

use futures_util::TryStreamExt;
use outbox_contract::admin::{Filter, MAX_BYTES_PER_CALL};
use outbox_contract::{Route, StoreError, Timestamp, Topic};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{MySql, QueryBuilder, Row};

use crate::fetch::number;
use crate::line::in_snapshot;
use crate::row::COUNT;
use crate::store::MySqlStore;

/// The columns of a message in their places.
pub(crate) const MESSAGE: &str = "t.position, t.id, t.stripe, t.number, t.topic, t.`key`, t.event_type, t.schema_version, t.content_type, t.headers, \
                       t.payload, t.occurred_at, t.appended_at";

/// The first column of a statement's own.
pub(crate) const OWN: usize = COUNT;

/// A table that is looked at through a filter, as `t`.
pub(crate) struct Table {
    table: &'static str,
    /// Columns that the filter's key and instants are compared with.
    key: &'static str,
    pub(crate) time: &'static str,
    /// The condition on ids, to which a list is added.
    ids: &'static str,
    order: &'static str,
}

pub(crate) const KEYS: Table = Table {
    table: "outbox_key",
    key: "t.`key`",
    time: "t.since",
    ids: "exists (select 1 from outbox_parked p where p.route = t.route and p.topic = t.topic and p.order_key = t.`key` and p.id in (",
    order: "t.since, t.route, t.topic, t.`key`",
};
pub(crate) const PARKED: Table = Table {
    table: "outbox_parked",
    key: "t.order_key",
    time: "t.parked_at",
    ids: "(t.id in (",
    order: "t.route, t.topic, t.order_key, t.position",
};
pub(crate) const DEAD: Table = Table {
    table: "outbox_dead",
    key: "t.order_key",
    time: "t.died_at",
    ids: "(t.id in (",
    order: "t.entry",
};
pub(crate) const HISTORY: Table = Table {
    table: "outbox_history",
    key: "t.order_key",
    time: "t.delivered_at",
    ids: "(t.id in (",
    order: "t.entry",
};
pub(crate) const SCHEDULED: Table = Table {
    table: "outbox_scheduled",
    key: "t.`key`",
    time: "t.due_at",
    ids: "(t.id in (",
    order: "t.due_at, t.entry",
};

impl Table {
    /// A statement for what the filter lets through, the oldest first, up to its limit: what
    /// changes something begins there.
    pub(crate) fn select(&self, columns: &str, filter: &Filter) -> QueryBuilder<MySql> {
        let mut query = QueryBuilder::new(String::new());
        self.push(&mut query, self.order, columns, filter);
        query
    }

    /// A statement for a page of a list, from the end that the filter names.
    fn page(&self, columns: &str, filter: &Filter) -> QueryBuilder<MySql> {
        let backwards = format!("{} desc", self.order.replace(", ", " desc, "));
        let order = if filter.newest { &*backwards } else { self.order };
        let mut query = QueryBuilder::new(String::new());
        if self.table == KEYS.table {
            // Names first, along an index: those that are passed over are neither read nor counted
            // for.
            query.push(format!("select {columns} from ("));
            self.push(&mut query, order, self.order, filter);
            query.push(" offset ").push_bind(number(filter.offset));
            query.push(format!(
                ") page straight_join outbox_key t on t.route = page.route and t.topic = page.topic and t.`key` = page.`key` order by {order}"
            ));
        } else {
            self.push(&mut query, order, columns, filter);
            query.push(" offset ").push_bind(number(filter.offset));
        }
        query
    }

    fn push(&self, query: &mut QueryBuilder<MySql>, order: &str, columns: &str, filter: &Filter) {
        query.push(format!("select {columns} from {} t where true", self.table));
        let mut bytes = |condition: String, value: Option<&str>| {
            if let Some(value) = value {
                query.push(condition).push_bind(value.as_bytes().to_vec());
            }
        };
        bytes(" and t.route = ".to_owned(), filter.route.as_ref().map(Route::as_str));
        bytes(" and t.topic = ".to_owned(), filter.topic.as_ref().map(Topic::as_str));
        bytes(format!(" and {} = ", self.key), filter.key.as_ref().map(|key| key.as_str()));
        if self.table != KEYS.table {
            bytes(" and t.event_type = ".to_owned(), filter.event_type.as_deref());
        }
        if let Some(since) = filter.since {
            query.push(format!(" and {} >= ", self.time)).push_bind(since.as_micros());
        }
        if let Some(before) = filter.before {
            query.push(format!(" and {} < ", self.time)).push_bind(before.as_micros());
        }
        // Of an empty list the limit is 0.
        if let Some(ids) = filter.ids.as_ref().filter(|ids| !ids.is_empty()) {
            query.push(format!(" and {}", self.ids));
            let mut list = query.separated(", ");
            for id in ids {
                list.push_bind(id.as_uuid().as_bytes().to_vec());
            }
            query.push("))");
        }
        query.push(format!(" order by {order} limit ")).push_bind(number(filter.limit()));
    }
}

/// Returns true if a statement for this filter stays prepared: all of them but those for ids, of
/// which each number is another statement.
///
/// One that does not is closed after it, which the server does not answer. The system's network
/// then holds the next statement back until it is sure of the first, and that takes 40 ms.
pub(crate) fn stays(filter: &Filter) -> bool {
    filter.ids.is_none()
}

pub(crate) fn instant(row: &MySqlRow, column: usize) -> Result<Timestamp, sqlx::Error> {
    row.try_get_unchecked(column).map(Timestamp::from_micros)
}

pub(crate) fn text(row: &MySqlRow, column: usize) -> Result<String, sqlx::Error> {
    let bytes: &[u8] = row.try_get_unchecked(column)?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

pub(crate) fn route(row: &MySqlRow, column: usize) -> Result<Route, sqlx::Error> {
    let name = text(row, column)?;
    // The table checks the length only.
    Ok(Route::new(&name).or_else(|_| Route::new(name.replace(char::is_control, "?"))).unwrap_or_default())
}

pub(crate) fn count(row: &MySqlRow, column: usize) -> Result<u64, sqlx::Error> {
    Ok(u64::try_from(row.try_get_unchecked::<i64, _>(column)?).unwrap_or_default())
}

pub(crate) fn attempts(row: &MySqlRow, column: usize) -> Result<u32, sqlx::Error> {
    Ok(u32::try_from(row.try_get_unchecked::<i64, _>(column)?).unwrap_or(u32::MAX))
}

impl MySqlStore {
    /// One page of what a filter lets through. What `read` makes nothing of is left out.
    pub(crate) async fn look<T>(
        &self,
        operation: &'static str,
        (table, columns): (&Table, &str),
        filter: &Filter,
        read: impl Fn(&MySqlRow) -> Result<Option<T>, sqlx::Error>,
    ) -> Result<Vec<T>, StoreError> {
        let mut query = table.page(columns, filter);
        let work = async |connection: &mut MySqlConnection| {
            let rows = query.build().persistent(stays(filter)).fetch_all(connection).await?;
            rows.iter().filter_map(|row| read(row).transpose()).collect()
        };
        self.on(operation, &self.lines().looking, work).await
    }

    /// The same for what has messages: the page ends before it has too many bytes, but has one
    /// message always.
    pub(crate) async fn look_at_messages<T: Send>(
        &self,
        operation: &'static str,
        (table, columns): (&Table, &str),
        filter: &Filter,
        read: impl Fn(&MySqlRow) -> Result<T, sqlx::Error> + Send + Sync,
    ) -> Result<Vec<T>, StoreError> {
        let mut sizes = table.page("length(t.headers) + length(t.payload)", filter);
        // Sizes first: what a connection was asked for is sent, whether it is read or not.
        let page = async |connection: &mut MySqlConnection| {
            let rows = sizes.build().persistent(stays(filter)).fetch_all(&mut *connection).await?;
            let sizes: Result<Vec<i64>, _> = rows.iter().map(|row| row.try_get_unchecked(0)).collect();
            let filter = Filter { limit: Some(fitting(&sizes?)), ..filter.clone() };
            let mut query = table.page(columns, &filter);
            let mut page = Vec::with_capacity(filter.limit());
            let mut rows = query.build().persistent(stays(&filter)).fetch(connection);
            while let Some(row) = rows.try_next().await? {
                page.push(read(&row)?);
            }
            Ok(page)
        };
        let work = async |connection: &mut MySqlConnection| in_snapshot(connection, page).await;
        self.on(operation, &self.lines().looking, work).await
    }
}

/// Returns the number of messages of these sizes on a page: one always, if there is one.
pub(crate) fn fitting(sizes: &[i64]) -> usize {
    let mut bytes: i64 = 0;
    let fits = |size: &&i64| {
        bytes = bytes.saturating_add(**size);
        usize::try_from(bytes).is_ok_and(|bytes| bytes <= MAX_BYTES_PER_CALL)
    };
    sizes.iter().take_while(fits).count().max(1).min(sizes.len())
}

#[cfg(test)]
mod tests {
    use outbox_contract::Store;
    use outbox_servers::{MariaDb, MySql, OrSkip};
    use sqlx::{AssertSqlSafe, Connection};

    use super::*;

    /// However many keys fail, a page of them sorts none, and reads those of the page.
    #[tokio::test]
    async fn a_list_of_failing_keys_is_read_along_an_index() {
        for wish in [MySql::newest(), MariaDb::newest(), MariaDb::oldest()] {
            let Some(server) = wish.shared().or_skip() else { continue };
            let url = server.fresh_database();
            MySqlStore::connect(&url).await.unwrap().migrate().await.unwrap();
            let mut connection = MySqlConnection::connect(&url).await.unwrap();
            let fill = "insert into outbox_key (route, topic, `key`, bucket, version, next_attempt_at, since) \
                        select 'default', 'orders', stripe, 0, stripe, 0, stripe % 7 from outbox_stripe; analyze table outbox_key";
            sqlx::raw_sql(fill).execute(&mut connection).await.unwrap();
            for filter in [Filter::all_routes(), Filter::route("default").unwrap().with_newest()] {
                let filter = Filter { limit: Some(20), offset: 40, ..filter };
                let page = KEYS.page("t.version", &filter);
                let explain = format!("explain format=json {}", page.sql().as_str());
                let mut explain = sqlx::query(AssertSqlSafe(explain)).persistent(false);
                if let Some(route) = &filter.route {
                    explain = explain.bind(route.as_str().as_bytes().to_vec());
                }
                let plan = explain.bind(20_i64).bind(40_i64).fetch_one(&mut connection).await.unwrap();
                let plan: String = plan.try_get_unchecked(0).unwrap();
                assert!(plan.contains("outbox_key_since"), "{plan}");
            }
        }
    }

    #[test]
    fn a_page_has_one_message_always_where_there_is_one() {
        let half = i64::try_from(MAX_BYTES_PER_CALL / 2).unwrap();
        for (sizes, fit) in
            [(&[][..], 0), (&[i64::MAX, 1], 1), (&[half, half, 1], 2), (&[half, half + 1], 1), (&[0, 0], 2)]
        {
            assert_eq!(fitting(sizes), fit, "{sizes:?}");
        }
    }
}
