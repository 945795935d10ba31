//! The verbs of operators.
//!
//! Each that changes something is one transaction; those on a key lock the key's row first and make
//! the key's next version.

use outbox_contract::admin::{
    Actor, AuditEntry, Diagnosis, Edit, FailingKey, Filter, HandledFilter, Misplaced, OutboxId, Ownership,
    RouteStatus, TopicFigures,
};
use outbox_contract::backend::rules::failing_key::{self, KeyState};
use outbox_contract::backend::{Archive, AuditNote, Death, KeyOperation, Listed, Steered, StripeId, View};
use outbox_contract::{
    Admin, KeyId, Message, MessageId, Route, StoreError, StoreErrorKind, Topic, async_trait,
};
use sqlx::Row;
use sqlx::mysql::MySqlConnection;

use crate::again::{CHOSEN, Chosen, append_again};
use crate::browse::{
    DEAD, HISTORY, KEYS, MESSAGE, OWN, PARKED, SCHEDULED, attempts, count, instant, route, text,
};
use crate::due::failure;
use crate::fetch::number;
use crate::handled;
use crate::key::{KeyIn, MAX_DISCARDED, STATE, message_id, read_state, take_versions};
use crate::lease::now;
use crate::line::in_transaction;
use crate::row::raw;
use crate::store::MySqlStore;
use crate::{audit, below, diagnose, history, identity, sql};

impl MySqlStore {
    /// Does something with a key that is failing or held, and commits it.
    async fn with_key<T>(
        &self,
        operation: &'static str,
        (route, key): (&Route, &KeyId),
        change: impl AsyncFnOnce(&mut KeyIn<'_>, KeyState) -> Result<T, sqlx::Error>,
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
        change: impl AsyncFnOnce(&mut KeyIn<'_>, KeyState) -> Result<T, sqlx::Error>,
    ) -> Result<Option<T>, StoreError> {
        self.in_key(operation, key, async |key| match key.state().await? {
            Some(state) => change(key, state).await.map(Some),
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
                let bucket = key.bucket();
                change(&mut KeyIn { connection, route, key, bucket, now, next_version }).await
            })
            .await
        };
        self.on(operation, &self.lines().operating, work).await
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
            Ok(listed.with_death(Death {
                reason: text(row, OWN + 2)?,
                attempts: attempts(row, OWN + 3)?,
                first_failure: failure(row, OWN + 4)?,
                last_failure: failure(row, OWN + 5)?,
            }))
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
        let limit = self.options().counting_limit;
        let find = async |connection: &mut MySqlConnection| below::find(connection, limit).await;
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

impl MySqlStore {
    async fn hold_key(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.in_key("hold", (route, key), async |key| {
            let state = key.state().await?;
            let held = failing_key::hold(state.clone(), key.next_version, key.instant());
            key.put(state.as_ref(), Some(&held)).await?;
            key.note(self.actor(), KeyOperation::Hold, 0, &[]).await
        })
        .await
    }

    async fn release_key(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.with_key("release", (route, key), async |key, state| {
            key.put(None, Some(&state.release(key.next_version, key.instant()))).await?;
            key.note(self.actor(), KeyOperation::Release, 0, &[]).await
        })
        .await
    }

    async fn skip_first(&self, route: &Route, key: &KeyId) -> Result<Option<MessageId>, StoreError> {
        self.with_key("skip", (route, key), async |key, state| {
            let first = key.first_parked().await?;
            if let Some(id) = first {
                key.parked_to_dead("skipped", 1).await?;
                key.put(None, Some(&state.skip(key.next_version, key.instant()))).await?;
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
        let mut all = self.with_key("discard", (route, key), discard).await?;
        let mut last = all;
        while last == MAX_DISCARDED {
            // A key that flows by now has nothing parked.
            last = self.in_open_key("discard", (route, key), discard).await?.unwrap_or_default();
            all += last;
        }
        Ok(all)
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
