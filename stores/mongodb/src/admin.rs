//! The verbs of operators.
//!
//! Each that changes something of a key is one transaction behind a [`Fence`], and makes the key's
//! next version.

use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, doc};
use outbox_contract::admin::{
    Actor, AuditEntry, Diagnosis, Edit, FailingKey, Filter, HandledFilter, Misplaced, OutboxId, Ownership,
    RouteStatus, TopicFigures,
};
use outbox_contract::backend::rules::failing_key;
use outbox_contract::backend::{Archive, AuditNote, KeyOperation, Listed, Requeue, Steered, View};
use outbox_contract::{Admin, KeyId, MessageId, Route, StoreError, StoreErrorKind, Topic, async_trait};

use crate::again::{Again, at_once};
use crate::audit::{self, Change, Noted};
use crate::browse::{self, by_death, by_delivery, matching};
use crate::database::Database;
use crate::error::{Failed, is_refusal};
use crate::fence::Fence;
use crate::handled;
use crate::keys::KeyIn;
use crate::row;
use crate::store::MongoDbStore;
use crate::transaction::{Work, transact};
use crate::{below, diagnose, figures, identity};

/// The most messages that are discarded in one transaction: what it writes is kept in memory by the
/// server until it commits, and one that takes a minute is aborted.
const MAX_DISCARDED: i64 = 500;

struct OnKey<'a> {
    actor: &'a Actor,
    operation: KeyOperation,
    /// True if earlier transactions of this discard are committed.
    began: bool,
    route: &'a Route,
    key: &'a KeyId,
}

/// Result of an operation on a key.
#[derive(Default)]
struct Done {
    /// The messages that became dead letters.
    dead: Vec<MessageId>,
    /// True if more of them are left for the next transaction.
    more: bool,
    /// True if anything changed.
    changed: bool,
}

impl Done {
    /// Of an operation on the key alone.
    const KEY: Self = Self { dead: Vec::new(), more: false, changed: true };
}

#[async_trait]
impl Work for OnKey<'_> {
    type Done = Done;

    async fn run(&self, database: &Database, session: &mut ClientSession) -> Result<Done, Failed> {
        let mut fence = Fence::open(database, session, self.route).await?;
        let (route, now, step) = (self.route, fence.ownership().now(), fence.step());
        let (key, bucket) = (self.key, self.key.bucket());
        let key = KeyIn { database, session: &mut *session, route, key, bucket, now, step };
        let done = self.step(key).await?;
        if done.changed {
            let note = AuditNote::on_key(self.actor, self.operation, route, self.key);
            audit::write(database, session, &note, now, (done.dead.len(), &done.dead)).await?;
        }
        fence.close(database, session, route).await?;
        Ok(done)
    }
}

impl OnKey<'_> {
    async fn step(&self, mut key: KeyIn<'_>) -> Result<Done, Failed> {
        let (state, version, now) = (key.state().await?, key.step, key.instant());
        if self.operation == KeyOperation::Hold {
            let held = failing_key::hold(state.clone(), version, now);
            key.put(state.as_ref(), Some(&held)).await?;
            return Ok(Done::KEY);
        }
        let Some(state) = state else {
            if self.began {
                // Somebody else has done the rest.
                return Ok(Done::default());
            }
            return Err(failing_key::flows(self.operation, self.route, self.key).into());
        };
        match self.operation {
            KeyOperation::Hold | KeyOperation::Release => {
                key.put(None, Some(&state.release(version, now))).await?;
                Ok(Done::KEY)
            }
            KeyOperation::Skip => {
                let dead = key.bury_parked(&state, "skipped", 1).await?;
                if !dead.is_empty() {
                    key.put(None, Some(&state.skip(version, now))).await?;
                }
                Ok(Done { changed: !dead.is_empty(), dead, more: false })
            }
            KeyOperation::Discard => {
                let dead = key.bury_parked(&state, "discarded", MAX_DISCARDED).await?;
                let more = key.first_parked().await?.is_some();
                let next = more.then(|| state.clone().discard_in_part(version, now));
                key.put(Some(&state), next.as_ref()).await?;
                Ok(Done { dead, more, changed: true })
            }
        }
    }
}

impl MongoDbStore {
    /// Performs an operation that changes no key.
    async fn change(&self, work: Noted<'_>) -> Result<u64, StoreError> {
        transact(self.database(), work.note.operation, &work).await
    }

    async fn on_key(&self, work: OnKey<'_>) -> Result<Done, StoreError> {
        let operation = work.operation.name();
        self.know_route(operation, work.route).await?;
        transact(self.database(), operation, &work).await
    }

    /// Appends documents again, in the order in which they stood in their keys.
    async fn append_page(&self, archive: Archive, filter: &Filter) -> Result<u64, StoreError> {
        let (operation, were_dead) = (archive.operation(), archive == Archive::DeadLetters);
        let database = self.database();
        let failed = |failed: Failed| failed.in_step(operation);
        let (collection, at, sort) = if were_dead {
            (database.dead(), "died_at", by_death())
        } else {
            (database.history(), "delivered_at", by_delivery())
        };
        let mut session = database.session().await.map_err(failed)?;
        let wanted = matching(filter, "order_key", at);
        // Dead letters are removed, so the next call begins with what is left.
        let offset = if were_dead { 0 } else { filter.offset };
        let mut rows = browse::page(&mut session, collection, wanted, sort, filter, offset, doc! {})
            .await
            .map_err(failed)?;
        rows.sort_by_key(|row| crate::keys::number(row, "position"));
        let mut wrong = Vec::new();
        if were_dead {
            rows.retain(|row| match row::Raw::new(row.clone()).edited(&Edit::default()) {
                Ok(_) => true,
                Err(words) => {
                    wrong.push((letter(row), words));
                    false
                }
            });
        }
        let mut requeue = Requeue::in_steps(rows, at_once);
        wrong.into_iter().for_each(|(letter, words)| requeue.leave_out(letter, words));
        let note = AuditNote::on_messages(self.actor(), operation, filter);
        let done = self.append_in_steps(&note, were_dead, &mut requeue).await;
        if requeue.count() > 0 {
            self.bell().committed();
        }
        done?;
        requeue.result()
    }

    async fn append_in_steps(
        &self,
        note: &AuditNote,
        were_dead: bool,
        requeue: &mut Requeue<Document>,
    ) -> Result<(), StoreError> {
        let (database, operation) = (self.database(), note.operation);
        while let Some(rows) = requeue.next() {
            for row in rows {
                let route = Route::new(row.get_str("route").unwrap_or_default()).unwrap_or_default();
                self.know_stripes(operation, &route).await?;
            }
            let leave = were_dead.then(|| database.dead());
            match transact(database, operation, &Again { rows, leave, note: Some(note) }).await {
                Ok(done) => requeue.appended(u64::try_from(done).unwrap_or_default()),
                Err(error) if were_dead && is_refusal(&error) => requeue.refused(error.to_string(), letter),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A dead letter by its id, if that is one.
fn letter(row: &Document) -> String {
    row::message_id(row.get("id"))
        .map_or_else(|| format!("one with the id {:?}", row.get("id")), |id| id.to_string())
}

#[async_trait]
impl Admin for MongoDbStore {
    fn acting_as(&self, actor: Actor) -> Box<dyn Admin + '_> {
        Box::new(self.with_actor(actor))
    }

    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError> {
        browse::failing_keys(self.database(), filter).await.map_err(|failed| failed.in_step("failing_keys"))
    }

    async fn browse(&self, view: View, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        browse::listed(self.database(), view, filter).await.map_err(|failed| failed.in_step(view.name()))
    }

    /// Discards in several transactions where much is parked; the key is held between them, and
    /// stays so if this does not come to its end.
    async fn steer(
        &self,
        route: &Route,
        key: &KeyId,
        operation: KeyOperation,
    ) -> Result<Steered, StoreError> {
        let (mut steered, mut began) = (Steered::NOTHING, false);
        loop {
            let mut done = self.on_key(OnKey { actor: self.actor(), operation, began, route, key }).await?;
            steered.buried += u64::try_from(done.dead.len()).unwrap_or_default();
            if operation == KeyOperation::Skip {
                steered.skipped = done.dead.pop();
            }
            if !done.more {
                return Ok(steered);
            }
            began = true;
        }
    }

    async fn append_again(&self, archive: Archive, filter: &Filter) -> Result<u64, StoreError> {
        self.append_page(archive, filter).await
    }

    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError> {
        const OPERATION: &str = "requeue_edited";
        let database = self.database();
        let failed = |failed: Failed| failed.in_step(OPERATION);
        let (edited, filter) = (filter, filter.first());
        let wanted = matching(&filter, "order_key", "died_at");
        let mut session = database.session().await.map_err(failed)?;
        let rows = browse::page(&mut session, database.dead(), wanted, by_death(), &filter, 0, doc! {});
        let Some(row) = rows.await.map_err(failed)?.pop() else { return Ok(None) };
        let row = row::Raw::new(row)
            .edited(edit)
            .map_err(|wrong| StoreError::new(StoreErrorKind::Invalid, OPERATION, wrong))?;
        let route = Route::new(row.get_str("route").unwrap_or_default()).unwrap_or_default();
        self.know_stripes(OPERATION, &route).await?;
        let id = row::message_id(row.get("id"));
        let note = AuditNote::edited(self.actor(), edited, edit);
        let again = Again { rows: &[row], leave: Some(database.dead()), note: Some(&note) };
        // None: somebody else was faster.
        if transact(database, OPERATION, &again).await? == 0 {
            return Ok(None);
        }
        self.bell().committed();
        Ok(id)
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        let chosen = async {
            let mut session = self.database().session().await?;
            let wanted = matching(filter, "order_key", "died_at");
            let (dead, names_alone) = (self.database().dead(), doc! { "_id": 1 });
            let rows = browse::page(&mut session, dead, wanted, by_death(), filter, 0, names_alone).await?;
            Ok::<Vec<Bson>, Failed>(rows.iter().filter_map(|row| row.get("_id").cloned()).collect())
        };
        let names = chosen.await.map_err(|failed| failed.in_step("purge"))?;
        let note = AuditNote::on_messages(self.actor(), "purge", filter);
        self.change(Noted { note, change: Change::Purge(&names) }).await
    }

    async fn set_paused(&self, route: &Route, topic: Option<&Topic>, paused: bool) -> Result<(), StoreError> {
        let note = AuditNote::paused(self.actor(), route, topic, paused);
        self.know_route(note.operation, route).await?;
        let change = Change::Pause { route, topic: topic.map_or("", Topic::as_str), paused };
        self.change(Noted { note, change }).await.map(drop)
    }

    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError> {
        if ids.is_empty() {
            return Ok(0);
        }
        let ids: Vec<Bson> = ids.iter().flat_map(|id| row::ids(*id)).collect();
        let note = AuditNote::canceled(self.actor());
        self.change(Noted { note, change: Change::Cancel(&ids) }).await
    }

    async fn identity(&self) -> Result<OutboxId, StoreError> {
        identity::read(self.database()).await.map_err(|failed| failed.in_step("identity"))
    }

    async fn renew_identity(&self) -> Result<OutboxId, StoreError> {
        let identity = OutboxId::new();
        let note = AuditNote::identity(self.actor(), identity);
        self.change(Noted { note, change: Change::Identity(identity) }).await?;
        Ok(identity)
    }

    async fn audit(&self, filter: &Filter) -> Result<Vec<AuditEntry>, StoreError> {
        audit::listed(self.database(), filter).await.map_err(|failed| failed.in_step("audit"))
    }

    async fn ownership(&self, route: &Route) -> Result<Ownership, StoreError> {
        figures::ownership(self.database(), route).await.map_err(|failed| failed.in_step("ownership"))
    }

    async fn routes(&self) -> Result<Vec<RouteStatus>, StoreError> {
        figures::routes(self.database()).await.map_err(|failed| failed.in_step("routes"))
    }

    async fn topics(&self, route: &Route) -> Result<Vec<TopicFigures>, StoreError> {
        figures::topics(self.database(), route).await.map_err(|failed| failed.in_step("topics"))
    }

    async fn misplaced(&self) -> Result<Vec<Misplaced>, StoreError> {
        below::find(self.database()).await.map_err(|failed| failed.in_step("misplaced"))
    }

    async fn diagnose(&self) -> Result<Vec<Diagnosis>, StoreError> {
        diagnose::find(self.database()).await.map_err(|failed| failed.in_step("diagnose"))
    }

    async fn count_handled(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        handled::count(self.database(), filter).await.map_err(|failed| failed.in_step("count_handled"))
    }

    async fn forget(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        let names = handled::to_forget(self.database(), filter).await;
        let names = names.map_err(|failed| failed.in_step("forget"))?;
        let note = AuditNote::forgotten(self.actor(), filter);
        self.change(Noted { note, change: Change::Forget(&names) }).await
    }
}
