//! Admin operations.
//!
//! Each operation that changes something is one statement, and durable when it returns. Those on a
//! key are functions in the database, which lock the key's row before they look, and make the key's
//! next version.

use outbox_contract::admin::{
    Actor, AuditEntry, Diagnosis, Edit, FailingKey, Filter, HandledFilter, MAX_BYTES_PER_CALL, Misplaced,
    OutboxId, Ownership, RouteStatus, TopicFigures,
};
use outbox_contract::backend::{Archive, AuditNote, Death, KeyOperation, Listed, Steered, View, requeued};
use outbox_contract::{
    Admin, Failure, KeyId, MessageId, Route, StoreError, StoreErrorKind, Timestamp, Topic, async_trait,
};
use outbox_store_sql::key::{MAX_DISCARDED, in_parts};
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row, SqlStr};
use uuid::Uuid;

use crate::error::store_error;
use crate::fetch::number;
use crate::handled;
use crate::identity;
use crate::maintain::MAX_REST;
use crate::row::raw;
use crate::sql::newest_first;
use crate::store::PostgresStore;
use crate::{below, diagnose, diagnose_history};

pub(crate) fn instant(row: &PgRow, column: &str) -> Result<Timestamp, sqlx::Error> {
    row.try_get(column).map(Timestamp::from_micros)
}

fn route(row: &PgRow) -> Result<Route, sqlx::Error> {
    let name: &str = row.try_get("route")?;
    // The tables check the length only.
    Ok(Route::new(name).or_else(|_| Route::new(name.replace(char::is_control, "?"))).unwrap_or_default())
}

fn attempts(row: &PgRow) -> Result<u32, sqlx::Error> {
    row.try_get::<i64, _>("attempts").map(|attempts| u32::try_from(attempts).unwrap_or(u32::MAX))
}

fn death(row: &PgRow) -> Result<Death, sqlx::Error> {
    let failure = |column: &str| -> Result<Option<Failure>, sqlx::Error> {
        Ok(row.try_get::<Option<&str>, _>(column)?.and_then(Failure::from_text))
    };
    Ok(Death::new(
        row.try_get("reason")?,
        attempts(row)?,
        failure("first_failure")?,
        failure("last_failure")?,
    ))
}

/// A statement with its parameters.
type Pg = Query<'static, Postgres, PgArguments>;

impl PostgresStore {
    /// A statement whose parameters 1 to 7 are the filter.
    pub(crate) fn filtered(&self, statement: &SqlStr, filter: &Filter) -> Pg {
        let ids = |ids: &Vec<MessageId>| ids.iter().map(|id| id.as_uuid()).collect::<Vec<_>>();
        let statement = if filter.newest { &newest_first(statement) } else { statement };
        self.sql()
            .query(statement)
            .bind(filter.route.as_ref().map(|route| route.as_str().to_owned()))
            .bind(filter.topic.as_ref().map(|topic| topic.as_str().to_owned()))
            .bind(filter.key.as_ref().map(|key| key.as_str().to_owned()))
            .bind(filter.ids.as_ref().map(ids))
            .bind(filter.since.map(Timestamp::as_micros))
            .bind(filter.before.map(Timestamp::as_micros))
            .bind(number(filter.limit()))
    }

    /// A statement whose parameters name a key.
    fn of_key(&self, statement: &SqlStr, route: &Route, key: &KeyId) -> Pg {
        self.sql()
            .query(statement)
            .bind(route.as_str().to_owned())
            .bind(key.topic.as_str().to_owned())
            .bind(key.key.as_str().to_owned())
    }

    /// A statement whose next parameters are actor, operation and detail of a record.
    fn noted(query: Pg, note: &AuditNote) -> Pg {
        query.bind(note.actor.as_str().to_owned()).bind(note.operation).bind(note.detail.clone())
    }

    /// A statement that returns a page of messages.
    fn page(&self, statement: &SqlStr, filter: &Filter) -> Pg {
        let query = self.filtered(statement, filter).bind(number(filter.offset));
        query.bind(number(MAX_BYTES_PER_CALL)).bind(filter.event_type.clone())
    }

    pub(crate) async fn look<T>(
        &self,
        operation: &'static str,
        query: Pg,
        read: impl Fn(&PgRow) -> Result<Option<T>, sqlx::Error>,
    ) -> Result<Vec<T>, StoreError> {
        let failed = |error| store_error(operation, error);
        let mut line = self.lines().browsing.hold().await.map_err(failed)?;
        let rows = query.fetch_all(&mut line.connection).await;
        let rows = line.finish(rows).await.map_err(failed)?;
        rows.iter().filter_map(|row| read(row).transpose()).collect::<Result<_, _>>().map_err(failed)
    }

    /// Runs an operation that answers with one row.
    async fn ask(&self, operation: &'static str, query: Pg) -> Result<PgRow, StoreError> {
        let failed = |error| store_error(operation, error);
        let mut line = self.lines().operating.hold().await.map_err(failed)?;
        let row = query.fetch_one(&mut line.connection).await;
        line.finish(row).await.map_err(failed)
    }

    /// Runs an operation that answers with the number of changed rows, and records it.
    async fn change(&self, query: Pg, note: &AuditNote) -> Result<u64, StoreError> {
        self.changed(Self::noted(query, note), note.operation).await
    }

    async fn changed(&self, query: Pg, operation: &'static str) -> Result<u64, StoreError> {
        let row = self.ask(operation, query).await?;
        let changed: i64 = row.try_get(0).map_err(|error| store_error(operation, error))?;
        Ok(u64::try_from(changed).unwrap_or_default())
    }
}

#[async_trait]
impl Admin for PostgresStore {
    fn acting_as(&self, actor: Actor) -> Box<dyn Admin + '_> {
        Box::new(self.with_actor(actor))
    }

    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError> {
        let query = self.filtered(&self.sql().browse_keys, filter).bind(number(filter.offset));
        self.look("failing_keys", query, |row| {
            let Ok(key) = KeyId::new(row.try_get::<&str, _>("topic")?, row.try_get::<&str, _>("key")?) else {
                return Ok(None);
            };
            let mut failing = FailingKey::new(route(row)?, key, instant(row, "since")?);
            failing.held = row.try_get("held")?;
            failing.next_attempt_at =
                row.try_get::<Option<i64>, _>("next_attempt_at")?.map(Timestamp::from_micros);
            failing.attempts = attempts(row)?;
            failing.first_failure =
                row.try_get::<Option<&str>, _>("first_failure")?.and_then(Failure::from_text);
            failing.last_failure =
                row.try_get::<Option<&str>, _>("last_failure")?.and_then(Failure::from_text);
            failing.parked = u64::try_from(row.try_get::<i64, _>("parked")?).unwrap_or_default();
            failing.first = row.try_get::<Option<Uuid>, _>("first")?.map(MessageId::from_uuid);
            Ok(Some(failing))
        })
        .await
    }

    async fn browse(&self, view: View, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let sql = self.sql();
        let (statement, at) = match view {
            View::Waiting => (&sql.browse_waiting, "appended_at"),
            View::Parked => (&sql.browse_parked, "parked_at"),
            View::DeadLetters => (&sql.browse_dead, "died_at"),
            View::History => (&sql.browse_history, "delivered_at"),
            View::Scheduled => (&sql.browse_scheduled, "due_at"),
        };
        let mut query = self.page(statement, filter);
        if view == View::Waiting {
            query = query.bind(number(filter.looked_at()));
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
        in_parts((route, key), operation, || self.steer_once((route, key), operation)).await
    }

    async fn append_again(&self, archive: Archive, filter: &Filter) -> Result<u64, StoreError> {
        match archive {
            Archive::DeadLetters => self.requeue_all(filter).await,
            Archive::History => self.replay_page(filter).await,
        }
    }

    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError> {
        const OPERATION: &str = "requeue_edited";
        let failed = |error| store_error(OPERATION, error);
        let query = self.filtered(&self.sql().edit_choose, &filter.first()).bind(filter.event_type.clone());
        let chosen = self
            .look(OPERATION, query, |row| Ok(Some((row.try_get::<i64, _>("number")?, raw(row).edited(edit)))))
            .await?;
        let Some((number, edited)) = chosen.into_iter().next() else { return Ok(None) };
        let message = edited.map_err(|wrong| StoreError::new(StoreErrorKind::Invalid, OPERATION, wrong))?;
        let query = self
            .sql()
            .query(&self.sql().edit_requeue)
            .bind(number)
            .bind(message.id.as_uuid())
            .bind(message.topic.as_str().to_owned())
            .bind(message.key.as_ref().map(|key| key.as_str().to_owned()))
            .bind(message.event_type.to_string())
            .bind(i64::from(message.schema_version))
            .bind(message.content_type.to_string())
            .bind(message.headers.to_bytes())
            .bind(message.payload.to_vec())
            .bind(message.occurred_at.as_micros());
        let note = AuditNote::edited(self.actor(), filter, edit);
        let query = query
            .bind(note.actor.as_str().to_owned())
            .bind(note.operation)
            .bind(note.route.map(|route| route.as_str().to_owned()))
            .bind(note.topic.map(|topic| topic.as_str().to_owned()))
            .bind(note.key.map(|key| key.as_str().to_owned()))
            .bind(note.detail);
        let appended: bool = self.ask(OPERATION, query).await?.try_get(0).map_err(failed)?;
        if appended {
            self.ring_committed();
        }
        // False if another caller was faster and the row is gone.
        Ok(appended.then_some(message.id))
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        let note = AuditNote::on_messages(self.actor(), "purge", filter);
        let query =
            Self::noted(self.filtered(&self.sql().purge, filter), &note).bind(filter.event_type.clone());
        self.changed(query, "purge").await
    }

    async fn set_paused(&self, route: &Route, topic: Option<&Topic>, paused: bool) -> Result<(), StoreError> {
        let note = AuditNote::paused(self.actor(), route, topic, paused);
        let (sql, topic) = (self.sql(), topic.map_or("", Topic::as_str).to_owned());
        let statement = if paused { &sql.pause } else { &sql.unpause };
        self.change(sql.query(statement).bind(route.as_str().to_owned()).bind(topic), &note).await?;
        Ok(())
    }

    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
        let query = self.sql().query(&self.sql().cancel_scheduled).bind(ids);
        self.change(query, &AuditNote::canceled(self.actor())).await
    }

    async fn identity(&self) -> Result<OutboxId, StoreError> {
        let read = async |connection: &mut PgConnection| identity::read(connection, self.sql()).await;
        self.on("identity", &self.lines().operating, read).await
    }

    async fn renew_identity(&self) -> Result<OutboxId, StoreError> {
        let (identity, sql) = (OutboxId::new(), self.sql());
        let query = sql.query(&sql.identity_renew).bind(identity.as_uuid());
        self.change(query, &AuditNote::identity(self.actor(), identity)).await?;
        Ok(identity)
    }

    async fn audit(&self, filter: &Filter) -> Result<Vec<AuditEntry>, StoreError> {
        self.audited(filter).await
    }

    async fn ownership(&self, route: &Route) -> Result<Ownership, StoreError> {
        self.owned(route).await
    }

    async fn routes(&self) -> Result<Vec<RouteStatus>, StoreError> {
        self.all_routes().await
    }

    async fn topics(&self, route: &Route) -> Result<Vec<TopicFigures>, StoreError> {
        self.figures(route).await
    }

    async fn misplaced(&self) -> Result<Vec<Misplaced>, StoreError> {
        let failed = |error| store_error("misplaced", error);
        let mut line = self.lines().browsing.hold().await.map_err(failed)?;
        let found = below::find(&mut line.connection, self.sql(), self.options().counting_limit).await;
        line.finish(found).await.map_err(failed)
    }

    async fn diagnose(&self) -> Result<Vec<Diagnosis>, StoreError> {
        let failed = |error| store_error("diagnose", error);
        let mut line = self.lines().browsing.hold().await.map_err(failed)?;
        let (schema, kept) = (self.options().schema.as_deref(), self.options().history);
        let find = async |connection: &mut PgConnection| {
            let mut found = diagnose::find(connection, schema, diagnose::LIMITS).await?;
            found.extend(diagnose_history::find(connection, schema, kept, MAX_REST).await?);
            Ok(found)
        };
        let found = find(&mut line.connection).await;
        line.finish(found).await.map_err(failed)
    }

    async fn count_handled(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        const OPERATION: &str = "count_handled";
        let row = self.ask(OPERATION, handled::count(self.sql(), filter)).await?;
        row.try_get::<i64, _>(0).map(i64::unsigned_abs).map_err(|error| store_error(OPERATION, error))
    }

    async fn forget(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        let note = AuditNote::forgotten(self.actor(), filter);
        self.change(handled::forget(self.sql(), filter), &note).await
    }
}

impl PostgresStore {
    /// Performs an operation on a key, or one part of it.
    async fn steer_once(
        &self,
        (route, key): (&Route, &KeyId),
        operation: KeyOperation,
    ) -> Result<Option<Steered>, StoreError> {
        let (name, sql) = (operation.name(), self.sql());
        let note = AuditNote::on_key(self.actor(), operation, route, key);
        let statement = match operation {
            KeyOperation::Hold => &sql.hold,
            KeyOperation::Release => &sql.release,
            KeyOperation::Skip => &sql.skip,
            KeyOperation::Discard => &sql.discard,
        };
        let mut query = Self::noted(self.of_key(statement, route, key), &note);
        if operation == KeyOperation::Discard {
            query = query.bind(i64::from(MAX_DISCARDED));
        }
        let row = self.ask(name, query).await?;
        let steered = || -> Result<Option<Steered>, sqlx::Error> {
            Ok(match operation {
                KeyOperation::Hold => Some(Steered::NOTHING),
                KeyOperation::Release => row.try_get::<bool, _>(0)?.then_some(Steered::NOTHING),
                KeyOperation::Skip => row
                    .try_get::<Option<Vec<Uuid>>, _>(0)?
                    .map(|skipped| Steered::skipped(skipped.first().copied().map(MessageId::from_uuid))),
                KeyOperation::Discard => {
                    row.try_get::<Option<i64>, _>(0)?.map(|buried| Steered::discarded(buried.unsigned_abs()))
                }
            })
        };
        steered().map_err(|error| store_error(name, error))
    }

    async fn requeue_all(&self, filter: &Filter) -> Result<u64, StoreError> {
        let failed = |error| store_error("requeue", error);
        let note = AuditNote::on_messages(self.actor(), "requeue", filter);
        let query = Self::noted(self.filtered(&self.sql().requeue, filter), &note);
        let row = self.ask("requeue", query.bind(filter.event_type.clone())).await?;
        let appended = u64::try_from(row.try_get::<i64, _>("appended").map_err(failed)?).unwrap_or_default();
        let (ids, reasons): (Vec<String>, Vec<String>) =
            (row.try_get("refused").map_err(failed)?, row.try_get("reasons").map_err(failed)?);
        if appended > 0 {
            self.ring_committed();
        }
        let refused: Vec<(String, String)> = ids.into_iter().zip(reasons).collect();
        requeued(appended, &refused)
    }

    async fn replay_page(&self, filter: &Filter) -> Result<u64, StoreError> {
        let note = AuditNote::on_messages(self.actor(), "replay", filter);
        let query = Self::noted(self.filtered(&self.sql().replay, filter), &note);
        let query = query.bind(number(filter.offset)).bind(filter.event_type.clone());
        let row = self.ask("replay", query).await?;
        let appended: i64 = row.try_get(0).map_err(|error| store_error("replay", error))?;
        if appended > 0 {
            self.ring_committed();
        }
        Ok(u64::try_from(appended).unwrap_or_default())
    }
}
