//! Admin operations.
//!
//! Each operation that changes something is one transaction that has the write lock from its start;
//! those on a key make the key's next version.

use std::borrow::Cow;

use outbox_contract::admin::{
    Actor, AuditEntry, Diagnosis, Edit, FailingKey, Filter, HandledFilter, MAX_BYTES_PER_CALL, Misplaced,
    OutboxId, Ownership, RouteStatus, TopicFigures,
};
use outbox_contract::backend::rules::failing_key::{self, KeyState};
use outbox_contract::backend::{Archive, AuditNote, Death, KeyOperation, Listed, Steered, View};
use outbox_contract::{
    Admin, Failure, KeyId, Message, MessageId, Route, StoreError, StoreErrorKind, Timestamp, Topic,
    async_trait,
};
use outbox_store_sql::statements::{newest_first, of_one_key};
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteRow, SqliteTransaction};
use sqlx::{AssertSqlSafe, Row, SqlSafeStr};

use crate::deduplicate::id_list;
use crate::error::store_error;
use crate::handled;
use crate::lease::now;
use crate::requeue::{self, chosen};
use crate::row::raw;
use crate::store::SqliteStore;
use crate::transition::{KeyIn, message_id, read_state};
use crate::{audit, below, diagnose, figures, identity, sql};

/// Maximum number of messages that one transaction discards: heartbeats and appends wait no longer
/// than that takes.
const MAX_DISCARDED: u32 = 1_000;

/// A statement whose parameters 1 to 7 are the filter.
fn filtered<'q>(statement: &'static str, filter: &Filter) -> Query<'q, Sqlite, SqliteArguments> {
    let limit = i64::try_from(filter.limit()).unwrap_or(i64::MAX);
    let mut statement = Cow::Borrowed(statement);
    if filter.newest {
        statement = newest_first(&statement).into();
    }
    if filter.route.is_some() && filter.topic.is_some() && filter.key.is_some() {
        statement = of_one_key(&statement).into();
    }
    sqlx::query(AssertSqlSafe(statement.into_owned()).into_sql_str())
        .bind(filter.route.as_ref().map(|route| route.as_str().to_owned()))
        .bind(filter.topic.as_ref().map(|topic| topic.as_str().to_owned()))
        .bind(filter.key.as_ref().map(|key| key.as_str().to_owned()))
        .bind(filter.ids.as_ref().map(|ids| id_list(ids.iter().copied())))
        .bind(filter.since.map(Timestamp::as_micros))
        .bind(filter.before.map(Timestamp::as_micros))
        .bind(limit)
}

/// A statement whose parameters 1 to 8 are the filter.
pub(crate) fn page<'q>(statement: &'static str, filter: &Filter) -> Query<'q, Sqlite, SqliteArguments> {
    filtered(statement, filter).bind(i64::try_from(filter.offset).unwrap_or(i64::MAX))
}

/// A statement that returns a page of messages.
fn messages<'q>(statement: &'static str, filter: &Filter) -> Query<'q, Sqlite, SqliteArguments> {
    let bytes = i64::try_from(MAX_BYTES_PER_CALL).unwrap_or(i64::MAX);
    page(statement, filter).bind(bytes).bind(filter.event_type.clone())
}

fn instant(row: &SqliteRow, column: &str) -> Result<Timestamp, sqlx::Error> {
    row.try_get(column).map(Timestamp::from_micros)
}

fn route(row: &SqliteRow) -> Result<Route, sqlx::Error> {
    let name: &str = row.try_get("route")?;
    // The table checks the length only.
    Ok(Route::new(name).or_else(|_| Route::new(name.replace(char::is_control, "?"))).unwrap_or_default())
}

fn death(row: &SqliteRow) -> Result<Death, sqlx::Error> {
    let failure = |column: &str| -> Result<Option<Failure>, sqlx::Error> {
        Ok(row.try_get::<Option<&str>, _>(column)?.and_then(Failure::from_text))
    };
    Ok(Death {
        reason: row.try_get("reason")?,
        attempts: row.try_get("attempts")?,
        first_failure: failure("first_failure")?,
        last_failure: failure("last_failure")?,
    })
}

impl SqliteStore {
    pub(crate) async fn look<T>(
        &self,
        operation: &'static str,
        query: Query<'_, Sqlite, SqliteArguments>,
        read: impl Fn(&SqliteRow) -> Result<Option<T>, sqlx::Error>,
    ) -> Result<Vec<T>, StoreError> {
        let failed = |error| store_error(operation, error);
        let rows = query.fetch_all(&self.pools().reads).await.map_err(failed)?;
        rows.iter().filter_map(|row| read(row).transpose()).collect::<Result<_, _>>().map_err(failed)
    }

    /// Performs an operation on a key that is failing or held, and commits it.
    async fn with_key<T>(
        &self,
        operation: &'static str,
        (route, key): (&Route, &KeyId),
        change: impl AsyncFnOnce(&mut KeyIn<'_>, KeyState) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        self.in_open_key(operation, (route, key), change).await?.ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Invalid,
                operation,
                format!(
                    "the key {key} on the route {route} is neither failing nor held; there is nothing to do"
                ),
            )
        })
    }

    /// Like `with_key`; does nothing with a key that flows.
    async fn in_open_key<T>(
        &self,
        operation: &'static str,
        key: (&Route, &KeyId),
        change: impl AsyncFnOnce(&mut KeyIn<'_>, KeyState) -> Result<T, sqlx::Error>,
    ) -> Result<Option<T>, StoreError> {
        self.in_key(operation, key, async |key| match key.state().await? {
            Some(state) => change(key, state).await.map(Some),
            None => Ok(None),
        })
        .await
    }

    /// Performs an operation on a key, and commits it.
    async fn in_key<T>(
        &self,
        operation: &'static str,
        (route, key): (&Route, &KeyId),
        change: impl AsyncFnOnce(&mut KeyIn<'_>) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        let done = async {
            let mut tx = self.pools().deciding.begin_with(sql::BEGIN).await?;
            let now = now(&mut tx).await?;
            let mut key = KeyIn { connection: &mut tx, route, key, bucket: key.bucket(), now };
            let done = change(&mut key).await?;
            tx.commit().await?;
            Ok(done)
        };
        done.await.map_err(|error| store_error(operation, error))
    }
}

#[async_trait]
impl Admin for SqliteStore {
    fn acting_as(&self, actor: Actor) -> Box<dyn Admin + '_> {
        Box::new(self.with_actor(actor))
    }

    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError> {
        self.look("failing_keys", page(sql::BROWSE_KEYS, filter), |row| {
            let Ok(key) = KeyId::new(row.try_get::<&str, _>("topic")?, row.try_get::<&str, _>("key")?) else {
                return Ok(None);
            };
            let mut failing = read_state(row)?.failing_key(route(row)?, key);
            failing.parked = u64::try_from(row.try_get::<i64, _>("parked")?).unwrap_or_default();
            failing.first = row.try_get::<Option<&[u8]>, _>("first")?.and_then(message_id);
            Ok(Some(failing))
        })
        .await
    }

    async fn browse(&self, view: View, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let (statement, at) = match view {
            View::Waiting => (sql::BROWSE_WAITING, "appended_at"),
            View::Parked => (sql::BROWSE_PARKED, "parked_at"),
            View::DeadLetters => (sql::BROWSE_DEAD, "died_at"),
            View::History => (sql::BROWSE_HISTORY, "delivered_at"),
            View::Scheduled => (sql::BROWSE_SCHEDULED, "due_at"),
        };
        let mut query = messages(statement, filter);
        if view == View::Waiting {
            query = query.bind(i64::try_from(filter.looked_at()).unwrap_or(i64::MAX));
        }
        self.look(view.name(), query, |row| {
            let listed = Listed::new(route(row)?, raw(row).presentable(), instant(row, at)?);
            let has_died = view == View::DeadLetters;
            Ok(Some(if has_died { listed.with_death(death(row)?) } else { listed }))
        })
        .await
    }

    async fn steer(
        &self,
        route: &Route,
        key: &KeyId,
        operation: KeyOperation,
    ) -> Result<Steered, StoreError> {
        match operation {
            KeyOperation::Hold => self.hold_key(route, key).await.map(|()| Steered::NOTHING),
            KeyOperation::Release => self.release_key(route, key).await.map(|()| Steered::NOTHING),
            KeyOperation::Skip => self.skip_first(route, key).await.map(Steered::skipped),
            KeyOperation::Discard => self.discard_parked(route, key).await.map(Steered::discarded),
        }
    }

    async fn append_again(&self, archive: Archive, filter: &Filter) -> Result<u64, StoreError> {
        match archive {
            Archive::DeadLetters => {
                let note = AuditNote::on_messages(self.actor(), archive.operation(), filter);
                let choose = filtered(sql::REQUEUE_CHOOSE, filter).bind(filter.event_type.clone());
                self.requeue_all(&note, choose).await
            }
            Archive::History => self.replay_page(filter).await,
        }
    }

    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError> {
        const OPERATION: &str = "requeue_edited";
        let failed = |error| store_error(OPERATION, error);
        let mut tx = self.pools().deciding.begin_with(sql::BEGIN).await.map_err(failed)?;
        let choose = filtered(sql::EDIT_CHOOSE, &filter.first()).bind(filter.event_type.clone());
        let Some(row) = choose.fetch_optional(&mut *tx).await.map_err(failed)? else { return Ok(None) };
        let number: i64 = row.try_get("number").map_err(failed)?;
        let message = raw(&row)
            .edited(edit)
            .map_err(|wrong| StoreError::new(StoreErrorKind::Invalid, OPERATION, wrong))?;
        correct(&mut tx, number, &message).await.map_err(failed)?;
        let note = AuditNote::edited(self.actor(), filter, edit);
        audit::write(&mut tx, &note, 1, &[message.id]).await.map_err(failed)?;
        tx.commit().await.map_err(failed)?;
        self.bell().committed();
        Ok(Some(message.id))
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        let note = AuditNote::on_messages(self.actor(), "purge", filter);
        self.change(&note, filtered(sql::PURGE, filter).bind(filter.event_type.clone())).await
    }

    async fn set_paused(&self, route: &Route, topic: Option<&Topic>, paused: bool) -> Result<(), StoreError> {
        let note = AuditNote::paused(self.actor(), route, topic, paused);
        let statement = if paused { sql::PAUSE } else { sql::UNPAUSE };
        let topic = topic.map_or("", Topic::as_str);
        self.change(&note, sqlx::query(statement).bind(route.as_str()).bind(topic)).await?;
        Ok(())
    }

    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError> {
        let query = sqlx::query(sql::CANCEL_SCHEDULED).bind(id_list(ids.iter().copied()));
        self.change(&AuditNote::canceled(self.actor()), query).await
    }

    async fn identity(&self) -> Result<OutboxId, StoreError> {
        identity::read(self.pools()).await.map_err(|error| store_error("identity", error))
    }

    async fn renew_identity(&self) -> Result<OutboxId, StoreError> {
        let identity = OutboxId::new();
        let renew = sqlx::query(sql::IDENTITY_RENEW).bind(identity::bytes(&identity));
        self.change(&AuditNote::identity(self.actor(), identity), renew).await?;
        Ok(identity)
    }

    async fn audit(&self, filter: &Filter) -> Result<Vec<AuditEntry>, StoreError> {
        self.audited(filter).await
    }

    async fn ownership(&self, route: &Route) -> Result<Ownership, StoreError> {
        let owned = figures::ownership(&self.pools().reads, route).await;
        owned.map_err(|error| store_error("ownership", error))
    }

    async fn routes(&self) -> Result<Vec<RouteStatus>, StoreError> {
        figures::routes(&self.pools().reads).await.map_err(|error| store_error("routes", error))
    }

    async fn topics(&self, route: &Route) -> Result<Vec<TopicFigures>, StoreError> {
        let topics = figures::topics(&self.pools().reads, route, self.options().counting_limit).await;
        topics.map_err(|error| store_error("topics", error))
    }

    async fn misplaced(&self) -> Result<Vec<Misplaced>, StoreError> {
        let found = below::find(&self.pools().reads, self.options().counting_limit).await;
        found.map_err(|error| store_error("misplaced", error))
    }

    async fn diagnose(&self) -> Result<Vec<Diagnosis>, StoreError> {
        let found = diagnose::find(self.pools(), diagnose::LIMITS).await;
        found.map_err(|error| store_error("diagnose", error))
    }

    async fn count_handled(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        let count = |row: &SqliteRow| row.try_get::<i64, _>(0).map(Some);
        let counted = self.look("count_handled", handled::count(filter), count).await?;
        Ok(counted.first().copied().unwrap_or_default().unsigned_abs())
    }

    async fn forget(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        self.change(&AuditNote::forgotten(self.actor(), filter), handled::forget(filter)).await
    }
}

impl SqliteStore {
    async fn hold_key(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.in_key("hold", (route, key), async |key| {
            let (state, version) = (key.state().await?, key.next_version().await?);
            let held = failing_key::hold(state.clone(), version, key.instant());
            key.put(state.as_ref(), Some(&held)).await?;
            key.note(self.actor(), KeyOperation::Hold, 0, &[]).await
        })
        .await
    }

    async fn release_key(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.with_key("release", (route, key), async |key, state| {
            let version = key.next_version().await?;
            key.put(None, Some(&state.release(version, key.instant()))).await?;
            key.note(self.actor(), KeyOperation::Release, 0, &[]).await
        })
        .await
    }

    async fn skip_first(&self, route: &Route, key: &KeyId) -> Result<Option<MessageId>, StoreError> {
        self.with_key("skip", (route, key), async |key, state| {
            let first = key.first_parked().await?;
            if let Some(id) = first {
                key.parked_to_dead("skipped", 1).await?;
                let version = key.next_version().await?;
                key.put(None, Some(&state.skip(version, key.instant()))).await?;
                key.note(self.actor(), KeyOperation::Skip, 1, &[id]).await?;
            }
            Ok(first)
        })
        .await
    }

    async fn discard_parked(&self, route: &Route, key: &KeyId) -> Result<u64, StoreError> {
        let discard = async |key: &mut KeyIn<'_>, state: KeyState| {
            let ids = key.parked_ids().await?;
            let discarded = key.discard(&state).await?;
            key.note(self.actor(), KeyOperation::Discard, discarded, &ids).await?;
            Ok(discarded)
        };
        let mut last = self.with_key("discard", (route, key), discard).await?;
        let mut all = last;
        while last == u64::from(MAX_DISCARDED) {
            // A key that flows by now has nothing parked.
            last = self.in_open_key("discard", (route, key), discard).await?.unwrap_or_default();
            all += last;
        }
        Ok(all)
    }

    async fn replay_page(&self, filter: &Filter) -> Result<u64, StoreError> {
        let choose = page(sql::REPLAY_CHOOSE, filter).bind(filter.event_type.clone());
        let note = AuditNote::on_messages(self.actor(), Archive::History.operation(), filter);
        let done = async {
            let mut tx = self.pools().deciding.begin_with(sql::BEGIN).await?;
            let rows = choose.fetch_all(&mut *tx).await?;
            let replay = sqlx::query(sql::REPLAY).bind(sql::pairs(chosen(&rows)?));
            let appended = replay.execute(&mut *tx).await?.rows_affected();
            if appended > 0 {
                audit::write(&mut tx, &note, appended, &audit::ids(&rows)).await?;
            }
            tx.commit().await?;
            Ok::<_, sqlx::Error>(appended)
        };
        let appended = done.await.map_err(|error| store_error("replay", error))?;
        if appended > 0 {
            self.bell().committed();
        }
        Ok(appended)
    }
}

/// Appends the corrected message in place of a dead letter.
async fn correct(tx: &mut SqliteTransaction<'_>, number: i64, message: &Message) -> Result<(), sqlx::Error> {
    sqlx::query(sql::EDIT)
        .bind(number)
        .bind(&message.id.as_uuid().as_bytes()[..])
        .bind(message.topic.as_str())
        .bind(message.key.as_ref().map(|key| key.as_str()))
        .bind(message.order_key().as_str())
        .bind(&*message.event_type)
        .bind(i64::from(message.schema_version))
        .bind(&*message.content_type)
        .bind(message.headers.to_bytes())
        .bind(&message.payload[..])
        .bind(message.occurred_at.as_micros())
        .execute(&mut **tx)
        .await?;
    let chosen = sql::pairs([(number, i64::from(message.bucket().0))]);
    requeue::append(tx, &chosen).await?;
    Ok(())
}

impl KeyIn<'_> {
    /// Records an operation on this key.
    async fn note(
        &mut self,
        actor: &Actor,
        operation: KeyOperation,
        affected: u64,
        ids: &[MessageId],
    ) -> Result<(), sqlx::Error> {
        let note = AuditNote::on_key(actor, operation, self.route, self.key);
        audit::write(self.connection, &note, affected, ids).await
    }

    /// Returns the ids of the first parked messages, as many as the audit keeps.
    async fn parked_ids(&mut self) -> Result<Vec<MessageId>, sqlx::Error> {
        let most = i64::try_from(AuditEntry::MAX_IDS).unwrap_or(i64::MAX);
        let rows = self.key_query(sql::PARKED_IDS).bind(most).fetch_all(&mut *self.connection).await?;
        Ok(audit::ids(&rows))
    }

    /// Turns parked messages into dead letters, up to the limit of one transaction. Returns their
    /// number. When they were the last the key flows again; until then it is held, so that none of
    /// the others is sent.
    async fn discard(&mut self, state: &KeyState) -> Result<u64, sqlx::Error> {
        let discarded = self.parked_to_dead("discarded", i64::from(MAX_DISCARDED)).await?;
        let version = self.next_version().await?;
        let is_part = discarded == u64::from(MAX_DISCARDED);
        let next = is_part.then(|| state.clone().discard_in_part(version, self.instant()));
        self.put(Some(state), next.as_ref()).await?;
        Ok(discarded)
    }

    /// Turns the first parked messages of the key into dead letters, up to this number. Returns
    /// their number.
    async fn parked_to_dead(&mut self, reason: &'static str, most: i64) -> Result<u64, sqlx::Error> {
        let bury = self.key_query(sql::PARKED_TO_DEAD).bind(reason).bind(self.now).bind(most);
        let buried = bury.execute(&mut *self.connection).await?;
        self.key_query(sql::PARKED_REMOVE).bind(most).execute(&mut *self.connection).await?;
        Ok(buried.rows_affected())
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Key;
    use sqlx::Execute;

    use super::*;

    #[test]
    fn a_filter_of_one_key_has_conditions_for_an_index() {
        let sql = |filter: &Filter| filtered(sql::BROWSE_PARKED, filter).sql().as_str().to_owned();
        let topic = Filter::route("default").unwrap().with_topic("orders").unwrap();
        assert!(sql(&topic).contains("(?2 is null or topic = ?2)"));
        let key = Filter { key: Some(Key::new("a").unwrap()), ..topic };
        assert!(!sql(&key).contains("?2 is null") && !sql(&key).contains("?3 is null"), "{}", sql(&key));
        let newest = sql(&Filter { newest: true, ..key });
        assert!(newest.contains("position desc") && newest.contains("(order_key = ?3)"), "{newest}");
    }
}
