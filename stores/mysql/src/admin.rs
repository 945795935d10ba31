//! The verbs of operators.
//!
//! Each that changes something is one transaction; those on a key lock the key's row first and make
//! the key's next version.

use outbox_contract::admin::{
    Actor, AuditEntry, Diagnosis, Edit, FailingKey, Filter, HandledFilter, Misplaced, OutboxId, Ownership,
    RouteStatus, TopicFigures,
};
use outbox_contract::backend::{Archive, AuditNote, Death, KeyOperation, Listed, Steered, StripeId, View};
use outbox_contract::{
    Admin, KeyId, Message, MessageId, Route, StoreError, StoreErrorKind, Topic, async_trait,
};
use outbox_store_sql::key::{in_parts, steer};
use outbox_store_sql::message_id;
use sqlx::Row;
use sqlx::mysql::MySqlConnection;

use crate::again::{CHOSEN, Chosen, append_again};
use crate::browse::{
    DEAD, HISTORY, KEYS, MESSAGE, OWN, PARKED, SCHEDULED, attempts, count, instant, route, text,
};
use crate::due::failure;
use crate::fetch::number;
use crate::handled;
use crate::key::{KeyIn, STATE, read_state, take_versions};
use crate::lease::now;
use crate::line::in_transaction;
use crate::row::raw;
use crate::store::MySqlStore;
use crate::{audit, below, diagnose, history, identity, sql};

impl MySqlStore {
    /// Performs an operation on a key, or one part of it, and commits it.
    async fn steer_once(
        &self,
        (route, key): (&Route, &KeyId),
        operation: KeyOperation,
    ) -> Result<Option<Steered>, StoreError> {
        let note = AuditNote::on_key(self.actor(), operation, route, key);
        let history = self.options().history.is_some();
        let work = async |connection: &mut MySqlConnection| {
            let next_version = take_versions(connection, 1).await?;
            in_transaction(connection, async |connection| {
                let (now, bucket) = (now(connection).await?, key.bucket());
                let mut key = KeyIn { connection, route, key, bucket, now, next_version, history };
                steer(&mut key, operation, &note).await
            })
            .await
        };
        self.on(operation.name(), &self.lines().operating, work).await
    }
}

#[async_trait]
impl Admin for MySqlStore {
    fn acting_as(&self, actor: Actor) -> Box<dyn Admin + '_> {
        Box::new(self.with_actor(actor))
    }

    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError> {
        let columns = format!(
            "{STATE}, t.route, t.topic, t.`key`, \
             (select count(*) from outbox_parked p where p.route = t.route and p.topic = t.topic and p.order_key = t.`key`), \
             (select p.id from outbox_parked p where p.route = t.route and p.topic = t.topic and p.order_key = t.`key` \
              order by p.position limit 1)"
        );
        self.look("failing_keys", (&KEYS, &columns), filter, |row| {
            let Ok(key) = KeyId::new(&text(row, 9)?, &text(row, 10)?) else { return Ok(None) };
            let mut failing = read_state(row)?.failing_key(route(row, 8)?, key);
            failing.parked = count(row, 11)?;
            failing.first = row.try_get_unchecked::<Option<&[u8]>, _>(12)?.and_then(message_id);
            Ok(Some(failing))
        })
        .await
    }

    async fn browse(&self, view: View, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let (table, own) = match view {
            View::Waiting => return self.waiting_page(filter).await,
            View::Parked => (&PARKED, ""),
            View::DeadLetters => (&DEAD, ", t.reason, t.attempts, t.first_failure, t.last_failure"),
            View::History => (&HISTORY, ""),
            View::Scheduled => (&SCHEDULED, ""),
        };
        let message = match view {
            View::Scheduled => MESSAGE.replacen("t.position", "0", 1).replacen("t.number", "0", 1),
            _ => MESSAGE.to_owned(),
        };
        let columns = format!("{message}, t.route, {}{own}", table.time);
        self.look_at_messages(view.name(), (table, &columns), filter, |row| {
            let listed = Listed::new(route(row, OWN)?, raw(row).presentable(), instant(row, OWN + 1)?);
            if view != View::DeadLetters {
                return Ok(listed);
            }
            Ok(listed.with_death(Death::new(
                text(row, OWN + 2)?,
                attempts(row, OWN + 3)?,
                failure(row, OWN + 4)?,
                failure(row, OWN + 5)?,
            )))
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
        let note = AuditNote::on_messages(self.actor(), archive.operation(), filter);
        match archive {
            Archive::DeadLetters => {
                let mut query = DEAD.select(&format!("{CHOSEN}, t.id"), filter);
                // Two operators at once: the second one finds what the first left.
                query.push(" for update");
                self.requeue_chosen(&note, query).await
            }
            Archive::History => {
                let mut query = HISTORY.select(&format!("{CHOSEN}, t.id"), filter);
                query.push(format!(" offset {}", number(filter.offset)));
                self.replay_chosen(&note, query).await
            }
        }
    }

    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError> {
        const OPERATION: &str = "requeue_edited";
        let columns = format!("{MESSAGE}, t.route, t.entry");
        let note = AuditNote::edited(self.actor(), filter, edit);
        let mut choose = DEAD.select(&columns, &filter.first());
        choose.push(" for update");
        let choose_and_append = async |connection: &mut MySqlConnection| {
            let row = choose.build().persistent(false).fetch_optional(&mut *connection).await?;
            let Some(row) = row else { return Ok(None) };
            let message = match raw(&row).edited(edit) {
                Ok(message) => message,
                Err(wrong) => return Ok(Some(Err(wrong))),
            };
            let entry = row.try_get_unchecked(OWN + 1)?;
            let stripe = StripeId::of(message.topic.as_str(), message.order_key().as_str());
            correct(connection, entry, &message).await?;
            let chosen = [Chosen { entry, route: text(&row, OWN)?, stripe }];
            append_again(connection, &chosen, sql::REQUEUE, Some(sql::REQUEUE_REMOVE)).await?;
            audit::write(connection, &note, 1, &[message.id]).await?;
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
        let mut choose = DEAD.select("t.entry, t.id", filter);
        let note = AuditNote::on_messages(self.actor(), "purge", filter);
        let purge = async |connection: &mut MySqlConnection| {
            // Chosen without a lock, and removed by the primary key: this waits for no other
            // transaction's row.
            let rows = choose.build().persistent(false).fetch_all(&mut *connection).await?;
            let entries: Result<Vec<i64>, _> = rows.iter().map(|row| row.try_get_unchecked(0)).collect();
            let remove = sqlx::query(sql::REQUEUE_REMOVE).bind(sql::numbers(entries?));
            let removed = remove.execute(&mut *connection).await?.rows_affected();
            audit::write_removed(connection, &note, removed, &audit::ids(&rows, 1)?).await?;
            Ok(removed)
        };
        let work = async |connection: &mut MySqlConnection| in_transaction(connection, purge).await;
        self.on("purge", &self.lines().operating, work).await
    }

    async fn set_paused(&self, route: &Route, topic: Option<&Topic>, paused: bool) -> Result<(), StoreError> {
        let note = AuditNote::paused(self.actor(), route, topic, paused);
        let statement = if paused { sql::PAUSE } else { sql::UNPAUSE };
        let topic = topic.map_or("", Topic::as_str);
        self.change(&note, sqlx::query(statement).bind(route.as_str().as_bytes()).bind(topic.as_bytes()))
            .await
    }

    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError> {
        let (note, ids) = (AuditNote::canceled(self.actor()), sql::ids(ids.iter().copied()));
        let cancel = async |connection: &mut MySqlConnection| {
            let there = sqlx::query(sql::CANCEL_IDS).bind(&ids).fetch_all(&mut *connection).await?;
            let remove = sqlx::query(sql::CANCEL_SCHEDULED).bind(&ids);
            let removed = remove.execute(&mut *connection).await?.rows_affected();
            audit::write_removed(connection, &note, removed, &audit::ids(&there, 0)?).await?;
            Ok(removed)
        };
        let work = async |connection: &mut MySqlConnection| in_transaction(connection, cancel).await;
        self.on("cancel_scheduled", &self.lines().operating, work).await
    }

    async fn identity(&self) -> Result<OutboxId, StoreError> {
        self.on("identity", &self.lines().operating, identity::read).await
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
        self.owned(route).await
    }

    async fn routes(&self) -> Result<Vec<RouteStatus>, StoreError> {
        self.all_routes().await
    }

    async fn topics(&self, route: &Route) -> Result<Vec<TopicFigures>, StoreError> {
        self.figures(route).await
    }

    async fn misplaced(&self) -> Result<Vec<Misplaced>, StoreError> {
        let find = async |connection: &mut MySqlConnection| below::find(connection).await;
        self.on("misplaced", &self.lines().operating, find).await
    }

    async fn diagnose(&self) -> Result<Vec<Diagnosis>, StoreError> {
        let kept = self.options().history;
        let find = async |connection: &mut MySqlConnection| {
            let mut found = diagnose::find(connection, diagnose::LIMITS).await?;
            found.extend(history::find(connection, kept).await?);
            Ok(found)
        };
        self.on("diagnose", &self.lines().operating, find).await
    }

    async fn count_handled(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        let count = async |connection: &mut MySqlConnection| handled::count(connection, filter).await;
        self.on("count_handled", &self.lines().operating, count).await
    }

    async fn forget(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        let note = AuditNote::forgotten(self.actor(), filter);
        let forget = async |connection: &mut MySqlConnection| {
            let (removed, ids) = handled::forget(connection, filter).await?;
            audit::write_removed(connection, &note, removed, &ids).await?;
            Ok(removed)
        };
        let work = async |connection: &mut MySqlConnection| in_transaction(connection, forget).await;
        self.on("forget", &self.lines().operating, work).await
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
