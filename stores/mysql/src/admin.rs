//! The verbs of operators.
//!
//! Each that changes something is one transaction; those on a key lock the key's row first and make the key's next version.

use std::sync::Arc;

use futures_util::TryStreamExt;
use outbox_contract::admin::{DeadLetter, Edit, FailingKey, Filter, MOST_BYTES_PER_CALL, Past};
use outbox_contract::{
    Admin, KeyId, Message, MessageId, Route, StoreError, StoreErrorKind, Stored, StripeId, Timestamp, Topic,
    async_trait,
};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{MySql, QueryBuilder, Row};
use uuid::Uuid;

use crate::again::{CHOSEN, Chosen, append_again};
use crate::due::failure;
use crate::fetch::number;
use crate::key::{KeyIn, take_versions};
use crate::lease::now;
use crate::line::{in_snapshot, in_transaction};
use crate::row::{Column, Raw};
use crate::sql;
use crate::store::MySqlStore;

/// The columns of a message in their places.
const MESSAGE: &str = "t.position, t.id, t.stripe, t.number, t.topic, t.`key`, t.event_type, t.schema_version, t.content_type, t.headers, \
                       t.payload, t.occurred_at, t.appended_at";

/// The most messages that one transaction discards: a relay that parks another one behind them waits for no longer than that takes.
const MOST_DISCARDED: u64 = 1_000;

/// The first column of a statement's own.
const OWN: usize = Column::COUNT;

/// A table that is looked at through a filter, as `t`.
struct View {
    table: &'static str,
    /// What the filter's key and instants are compared with.
    key: &'static str,
    time: &'static str,
    /// The condition on ids, to which a list is added.
    ids: &'static str,
    order: &'static str,
}

const KEYS: View = View {
    table: "outbox_key",
    key: "t.`key`",
    time: "t.since",
    ids: "exists (select 1 from outbox_parked p where p.route = t.route and p.topic = t.topic and p.order_key = t.`key` and p.id in (",
    order: "t.since, t.route, t.topic, t.`key`",
};
const PARKED: View = View {
    table: "outbox_parked",
    key: "t.order_key",
    time: "t.parked_at",
    ids: "(t.id in (",
    order: "t.route, t.topic, t.order_key, t.position",
};
const DEAD: View =
    View { table: "outbox_dead", key: "t.order_key", time: "t.died_at", ids: "(t.id in (", order: "t.entry" };
const HISTORY: View = View {
    table: "outbox_history",
    key: "t.order_key",
    time: "t.delivered_at",
    ids: "(t.id in (",
    order: "t.entry",
};
const SCHEDULED: View = View {
    table: "outbox_scheduled",
    key: "t.`key`",
    time: "t.due_at",
    ids: "(t.id in (",
    order: "t.due_at, t.entry",
};

impl View {
    /// A statement for what the filter lets through, the oldest first, up to its limit.
    fn select(&self, columns: &str, filter: &Filter) -> QueryBuilder<MySql> {
        let mut query = QueryBuilder::new(format!("select {columns} from {} t where true", self.table));
        let mut bytes = |condition: String, value: Option<&str>| {
            if let Some(value) = value {
                query.push(condition).push_bind(value.as_bytes().to_vec());
            }
        };
        bytes(" and t.route = ".to_owned(), filter.route.as_ref().map(Route::as_str));
        bytes(" and t.topic = ".to_owned(), filter.topic.as_ref().map(Topic::as_str));
        bytes(format!(" and {} = ", self.key), filter.key.as_ref().map(|key| key.as_str()));
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
        query.push(format!(" order by {} limit {}", self.order, number(filter.limit())));
        query
    }
}

fn instant(row: &MySqlRow, column: usize) -> Result<Timestamp, sqlx::Error> {
    row.try_get_unchecked(column).map(Timestamp::from_micros)
}

pub(crate) fn text(row: &MySqlRow, column: usize) -> Result<String, sqlx::Error> {
    let bytes: &[u8] = row.try_get_unchecked(column)?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

fn route(row: &MySqlRow, column: usize) -> Result<Route, sqlx::Error> {
    let name = text(row, column)?;
    // The table checks the length only.
    Ok(Route::new(&name).or_else(|_| Route::new(name.replace(char::is_control, "?"))).unwrap_or_default())
}

fn count(row: &MySqlRow, column: usize) -> Result<u64, sqlx::Error> {
    Ok(u64::try_from(row.try_get_unchecked::<i64, _>(column)?).unwrap_or_default())
}

fn attempts(row: &MySqlRow, column: usize) -> Result<u32, sqlx::Error> {
    Ok(u32::try_from(row.try_get_unchecked::<i64, _>(column)?).unwrap_or(u32::MAX))
}

impl MySqlStore {
    async fn browse<T>(
        &self,
        operation: &'static str,
        (view, columns): (&View, &str),
        filter: &Filter,
        read: impl Fn(&MySqlRow) -> Result<Option<T>, sqlx::Error>,
    ) -> Result<Vec<T>, StoreError> {
        let mut query = view.select(columns, filter);
        query.push(format!(" offset {}", number(filter.offset)));
        let work = async |connection: &mut MySqlConnection| {
            let rows = query.build().persistent(false).fetch_all(connection).await?;
            rows.iter().filter_map(|row| read(row).transpose()).collect()
        };
        self.on(operation, &self.lines().looking, work).await
    }

    /// The same for what has messages: the page ends before it has too many bytes, but has one message always.
    async fn browse_messages<T: Send>(
        &self,
        operation: &'static str,
        (view, columns): (&View, &str),
        filter: &Filter,
        read: impl Fn(&MySqlRow) -> Result<T, sqlx::Error> + Send + Sync,
    ) -> Result<Vec<T>, StoreError> {
        let offset = format!(" offset {}", number(filter.offset));
        let mut sizes = view.select("length(t.headers) + length(t.payload)", filter);
        sizes.push(&offset);
        // Sizes first: what a connection was asked for is sent, whether it is read or not.
        let page = async |connection: &mut MySqlConnection| {
            let rows = sizes.build().persistent(false).fetch_all(&mut *connection).await?;
            let sizes: Result<Vec<i64>, _> = rows.iter().map(|row| row.try_get_unchecked(0)).collect();
            let filter = Filter { limit: Some(fitting(&sizes?)), ..filter.clone() };
            let mut query = view.select(columns, &filter);
            query.push(&offset);
            let mut page = Vec::with_capacity(filter.limit());
            let mut rows = query.build().persistent(false).fetch(connection);
            while let Some(row) = rows.try_next().await? {
                page.push(read(&row)?);
            }
            Ok(page)
        };
        let work = async |connection: &mut MySqlConnection| in_snapshot(connection, page).await;
        self.on(operation, &self.lines().looking, work).await
    }

    /// Does something with a key that is failing or held, and commits it.
    async fn with_key<T>(
        &self,
        operation: &'static str,
        (route, key): (&Route, &KeyId),
        change: impl AsyncFnOnce(&mut KeyIn<'_>) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        let done = self.in_open_key(operation, (route, key), change).await?;
        done.ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Invalid,
                operation,
                format!(
                    "the key {key} on the route {route} is neither failing nor held; there is nothing to do"
                ),
            )
        })
    }

    /// Does something with a key in a transaction, unless it flows.
    async fn in_open_key<T>(
        &self,
        operation: &'static str,
        key: (&Route, &KeyId),
        change: impl AsyncFnOnce(&mut KeyIn<'_>) -> Result<T, sqlx::Error>,
    ) -> Result<Option<T>, StoreError> {
        self.in_key(operation, key, async |key| match key.state().await? {
            Some(_) => change(key).await.map(Some),
            None => Ok(None),
        })
        .await
    }

    /// Does something with a key in a transaction.
    async fn in_key<T>(
        &self,
        operation: &'static str,
        (route, key): (&Route, &KeyId),
        change: impl AsyncFnOnce(&mut KeyIn<'_>) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        let work = async |connection: &mut MySqlConnection| {
            let next_version = take_versions(connection, 1).await?;
            in_transaction(connection, async |connection| {
                let now = now(connection).await?;
                change(&mut KeyIn { connection, route, key, now, next_version }).await
            })
            .await
        };
        self.on(operation, &self.lines().operating, work).await
    }

    async fn change(&self, operation: &'static str, query: crate::key::Bound<'_>) -> Result<u64, StoreError> {
        let work = async |connection: &mut MySqlConnection| {
            query.execute(connection).await.map(|done| done.rows_affected())
        };
        self.on(operation, &self.lines().operating, work).await
    }
}

#[async_trait]
impl Admin for MySqlStore {
    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError> {
        const COLUMNS: &str = "t.route, t.topic, t.`key`, t.held, t.next_attempt_at, t.attempts, t.first_failure, t.last_failure, t.since, \
             (select count(*) from outbox_parked p where p.route = t.route and p.topic = t.topic and p.order_key = t.`key`), \
             (select p.id from outbox_parked p where p.route = t.route and p.topic = t.topic and p.order_key = t.`key` \
              order by p.position limit 1)";
        self.browse("failing_keys", (&KEYS, COLUMNS), filter, |row| {
            let Some(key) = KeyId::from_texts(&text(row, 1)?, &text(row, 2)?) else { return Ok(None) };
            let mut failing = FailingKey::new(route(row, 0)?, key, instant(row, 8)?);
            failing.held = row.try_get_unchecked::<i64, _>(3)? != 0;
            failing.next_attempt_at = row.try_get_unchecked::<Option<i64>, _>(4)?.map(Timestamp::from_micros);
            failing.attempts = attempts(row, 5)?;
            failing.first_failure = failure(row, 6)?;
            failing.last_failure = failure(row, 7)?;
            failing.parked = count(row, 9)?;
            let first: Option<&[u8]> = row.try_get_unchecked(10)?;
            failing.first = first.and_then(|id| Uuid::from_slice(id).ok()).map(MessageId::from_uuid);
            Ok(Some(failing))
        })
        .await
    }

    async fn parked(&self, filter: &Filter) -> Result<Vec<Arc<Stored>>, StoreError> {
        self.browse_messages("parked", (&PARKED, MESSAGE), filter, |row| Ok(Raw::new(row).presentable()))
            .await
    }

    async fn dead_letters(&self, filter: &Filter) -> Result<Vec<DeadLetter>, StoreError> {
        let columns =
            format!("{MESSAGE}, t.route, t.reason, t.attempts, t.first_failure, t.last_failure, t.died_at");
        self.browse_messages("dead_letters", (&DEAD, &columns), filter, |row| {
            let stored = Raw::new(row).presentable();
            let mut dead =
                DeadLetter::new(route(row, OWN)?, stored, text(row, OWN + 1)?, instant(row, OWN + 5)?);
            dead.attempts = attempts(row, OWN + 2)?;
            dead.first_failure = failure(row, OWN + 3)?;
            dead.last_failure = failure(row, OWN + 4)?;
            Ok(dead)
        })
        .await
    }

    async fn history(&self, filter: &Filter) -> Result<Vec<Past>, StoreError> {
        let columns = format!("{MESSAGE}, t.route, t.delivered_at");
        self.browse_messages("history", (&HISTORY, &columns), filter, |row| {
            Ok(Past::new(route(row, OWN)?, Raw::new(row).presentable(), instant(row, OWN + 1)?))
        })
        .await
    }

    async fn hold(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.in_key("hold", (route, key), async |key| match key.state().await? {
            Some(state) if state.held => Ok(()),
            _ => key.hold().await,
        })
        .await
    }

    async fn release(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.with_key("release", (route, key), async |key| key.change(sql::KEY_RELEASE).await.map(|_| ()))
            .await
    }

    async fn skip(&self, route: &Route, key: &KeyId) -> Result<Option<MessageId>, StoreError> {
        self.with_key("skip", (route, key), async |key| {
            let Some(first) = key.first_parked().await? else { return Ok(None) };
            key.parked_to_dead("skipped", 1).await?;
            key.change(sql::KEY_RELEASE).await?;
            Ok(Uuid::from_slice(&first).ok().map(MessageId::from_uuid))
        })
        .await
    }

    async fn discard(&self, route: &Route, key: &KeyId) -> Result<u64, StoreError> {
        let mut all = self.with_key("discard", (route, key), async |key| key.discard().await).await?;
        let mut last = all;
        while last == MOST_DISCARDED {
            // A key that flows by now has nothing parked.
            let more = self.in_open_key("discard", (route, key), async |key| key.discard().await);
            last = more.await?.unwrap_or_default();
            all += last;
        }
        Ok(all)
    }

    async fn requeue(&self, filter: &Filter) -> Result<u64, StoreError> {
        let mut query = DEAD.select(&format!("{CHOSEN}, t.id"), filter);
        // Two operators at once: the second one finds what the first left.
        query.push(" for update");
        self.requeue_chosen(query).await
    }

    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError> {
        const OPERATION: &str = "requeue_edited";
        let columns = format!("{MESSAGE}, t.route, t.entry");
        let mut choose = DEAD.select(&columns, &filter.first());
        choose.push(" for update");
        let choose_and_append = async |connection: &mut MySqlConnection| {
            let row = choose.build().persistent(false).fetch_optional(&mut *connection).await?;
            let Some(row) = row else { return Ok(None) };
            let message = match Raw::new(&row).edited(edit) {
                Ok(message) => message,
                Err(wrong) => return Ok(Some(Err(wrong))),
            };
            let entry = row.try_get_unchecked(OWN + 1)?;
            let stripe = StripeId::of(message.topic.as_str(), message.order_key().as_str());
            correct(connection, entry, &message).await?;
            let chosen = [Chosen { entry, route: text(&row, OWN)?, stripe }];
            append_again(connection, &chosen, sql::REQUEUE, Some(sql::REQUEUE_REMOVE)).await?;
            Ok(Some(Ok(message.id)))
        };
        let work =
            async |connection: &mut MySqlConnection| in_transaction(connection, choose_and_append).await;
        let done: Option<Result<MessageId, String>> =
            self.on(OPERATION, &self.lines().operating, work).await?;
        let done =
            done.transpose().map_err(|wrong| StoreError::new(StoreErrorKind::Invalid, OPERATION, wrong))?;
        if done.is_some() {
            self.bell().committed();
        }
        Ok(done)
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        let mut choose = DEAD.select("t.entry", filter);
        let work = async |connection: &mut MySqlConnection| {
            // Chosen without a lock, and removed by the primary key: nobody else's row is waited for.
            let rows = choose.build().persistent(false).fetch_all(&mut *connection).await?;
            let entries: Result<Vec<i64>, _> = rows.iter().map(|row| row.try_get_unchecked(0)).collect();
            let remove = sqlx::query(sql::REQUEUE_REMOVE).bind(sql::numbers(entries?));
            remove.execute(connection).await.map(|done| done.rows_affected())
        };
        self.on("purge", &self.lines().operating, work).await
    }

    async fn replay(&self, filter: &Filter) -> Result<u64, StoreError> {
        let mut query = HISTORY.select(CHOSEN, filter);
        query.push(format!(" offset {}", number(filter.offset)));
        self.replay_chosen(query).await
    }

    async fn pause(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
        let topic = topic.map_or("", Topic::as_str);
        let query = sqlx::query(sql::PAUSE).bind(route.as_str().as_bytes()).bind(topic.as_bytes());
        self.change("pause", query).await.map(|_| ())
    }

    async fn resume(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
        let topic = topic.map_or("", Topic::as_str);
        let query = sqlx::query(sql::UNPAUSE).bind(route.as_str().as_bytes()).bind(topic.as_bytes());
        self.change("resume", query).await.map(|_| ())
    }

    async fn scheduled(&self, filter: &Filter) -> Result<Vec<(Timestamp, Message)>, StoreError> {
        let columns = MESSAGE.replacen("t.position", "0", 1).replacen("t.number", "0", 1) + ", t.due_at";
        self.browse_messages("scheduled", (&SCHEDULED, &columns), filter, |row| {
            Ok((instant(row, OWN)?, Raw::new(row).presentable().message.clone()))
        })
        .await
    }

    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError> {
        let query = sqlx::query(sql::CANCEL_SCHEDULED).bind(sql::ids(ids.iter().copied()));
        self.change("cancel_scheduled", query).await
    }
}

/// Writes what was made of a dead letter in its place.
async fn correct(connection: &mut MySqlConnection, entry: i64, message: &Message) -> Result<(), sqlx::Error> {
    sqlx::query(sql::EDIT)
        .bind(&message.id.as_uuid().as_bytes()[..])
        .bind(message.topic.as_str().as_bytes())
        .bind(message.key.as_ref().map(|key| key.as_str().as_bytes()))
        .bind(message.order_key().as_str().as_bytes())
        .bind(message.event_type.as_bytes())
        .bind(i64::from(message.schema_version))
        .bind(message.content_type.as_bytes())
        .bind(message.headers.to_bytes())
        .bind(&message.payload[..])
        .bind(message.occurred_at.as_micros())
        .bind(entry)
        .execute(connection)
        .await
        .map(drop)
}

/// How many messages of these sizes a page has: one always, where there is one.
fn fitting(sizes: &[i64]) -> usize {
    let mut bytes: i64 = 0;
    let fits = |size: &&i64| {
        bytes = bytes.saturating_add(**size);
        usize::try_from(bytes).is_ok_and(|bytes| bytes <= MOST_BYTES_PER_CALL)
    };
    sizes.iter().take_while(fits).count().max(1).min(sizes.len())
}

impl KeyIn<'_> {
    /// An operator holds the key.
    async fn hold(&mut self) -> Result<(), sqlx::Error> {
        let hold = self.bind_key(sqlx::query(sql::KEY_HOLD));
        let hold = hold.bind(self.key.bucket().0).bind(self.next_version).bind(self.now);
        hold.execute(&mut *self.connection).await.map(|_| ())
    }

    /// As many parked messages as one transaction moves become dead letters. Says how many. When they were the last the key flows again; until then it is
    /// held, so that none of the others goes out.
    async fn discard(&mut self) -> Result<u64, sqlx::Error> {
        let most = i64::try_from(MOST_DISCARDED).unwrap_or(i64::MAX);
        let discarded = self.parked_to_dead("discarded", most).await?;
        if discarded < MOST_DISCARDED {
            self.remove().await?;
        } else {
            self.hold().await?;
            self.change(sql::KEY_NEXT).await?;
        }
        Ok(discarded)
    }

    /// The first so many parked messages of the key become dead letters. Says how many.
    async fn parked_to_dead(&mut self, reason: &'static str, most: i64) -> Result<u64, sqlx::Error> {
        let bury = sqlx::query(sql::DISCARD).bind(reason.as_bytes()).bind(self.now);
        let bury = self.bind_key(bury).bind(most);
        let buried = bury.execute(&mut *self.connection).await?.rows_affected();
        let remove = self.bind_key(sqlx::query(sql::PARKED_REMOVE)).bind(most);
        remove.execute(&mut *self.connection).await?;
        Ok(buried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_one_message_always_where_there_is_one() {
        let half = i64::try_from(MOST_BYTES_PER_CALL / 2).unwrap();
        for (sizes, fit) in
            [(&[][..], 0), (&[i64::MAX, 1], 1), (&[half, half, 1], 2), (&[half, half + 1], 1), (&[0, 0], 2)]
        {
            assert_eq!(fitting(sizes), fit, "{sizes:?}");
        }
    }
}
