//! Admin operations.
//!
//! Each operation that changes something is one transaction that has the write lock from its start;
//! those on a key make the key's next version.

use outbox_contract::admin::{
    Actor, AuditEntry, Diagnosis, Edit, FailingKey, Filter, HandledFilter, Misplaced, OutboxId, Ownership,
    RouteStatus, TopicFigures,
};
use outbox_contract::backend::{Archive, AuditNote, KeyOperation, Listed, Steered, View};
use outbox_contract::{
    Admin, KeyId, Message, MessageId, Route, StoreError, StoreErrorKind, Topic, async_trait,
};
use outbox_store_sql::key::{in_parts, steer};
use outbox_store_sql::message_id;
use sqlx::Row;
use sqlx::sqlite::{SqliteRow, SqliteTransaction};

use crate::browse::{death, filtered, instant, messages, page, route};
use crate::deduplicate::id_list;
use crate::error::store_error;
use crate::handled;
use crate::key::{KeyIn, read_state};
use crate::lease::now;
use crate::requeue::{self, chosen};
use crate::row::raw;
use crate::store::SqliteStore;
use crate::{audit, below, diagnose, figures, identity, sql};

impl SqliteStore {
    /// Performs an operation on a key, or one part of it, and commits it.
    async fn steer_once(
        &self,
        (route, key): (&Route, &KeyId),
        operation: KeyOperation,
    ) -> Result<Option<Steered>, StoreError> {
        let note = AuditNote::on_key(self.actor(), operation, route, key);
        let done = async {
            let mut tx = self.pools().deciding.begin_with(sql::BEGIN).await?;
            let now = now(&mut tx).await?;
            let (bucket, history) = (key.bucket(), self.options().history.is_some());
            let mut key = KeyIn { connection: &mut tx, route, key, bucket, now, history };
            let steered = steer(&mut key, operation, &note).await?;
            tx.commit().await?;
            Ok(steered)
        };
        done.await.map_err(|error| store_error(operation.name(), error))
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
        in_parts((route, key), operation, || self.steer_once((route, key), operation)).await
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
