//! An operator who tries every verb, at random.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use outbox_contract::admin::Filter;
use outbox_contract::{Admin, AdminExt, KeyId, Route};
use outbox_store_memory::MemoryStore;
use outbox_testkit::History;

use super::deaths::Deaths;
use super::plan::Plan;
use super::tally::Tally;
use super::trace::Trace;
use super::writers::{key, topic};

pub(crate) struct Operator {
    pub(crate) plan: Plan,
    pub(crate) store: MemoryStore,
    pub(crate) history: Arc<History>,
    pub(crate) trace: Arc<Trace>,
    pub(crate) deaths: Arc<Deaths>,
    pub(crate) tally: Arc<Tally>,
    /// Number of messages that it has skipped and discarded.
    pub(crate) buried: u64,
    pub(crate) rng: Rng,
}

impl Operator {
    pub(crate) async fn act(&mut self) {
        let route = Route::default();
        let topic = topic(self.rng.usize(..self.plan.topics));
        let key = KeyId { topic: topic.clone(), key: key(self.rng.usize(..self.plan.keys)) };
        let verb = ["hold", "release", "skip", "discard", "requeue", "pause", "resume", "replay"];
        let verb = verb[self.rng.usize(..verb.len())];
        self.trace.say(format!("operator: {verb} {key}"));
        self.deaths.look().await;
        // A verb on a key that neither fails nor is held is refused, and that is right.
        match verb {
            "hold" => drop(self.store.hold(&route, &key).await),
            "release" => drop(self.store.release(&route, &key).await),
            "skip" => self.buried += u64::from(matches!(self.store.skip(&route, &key).await, Ok(Some(_)))),
            "discard" => self.buried += self.store.discard(&route, &key).await.unwrap_or_default(),
            "requeue" => self.requeue().await,
            "pause" => {
                let whole = self.rng.bool();
                self.store.pause(&route, (!whole).then_some(&topic)).await.unwrap();
                tokio::time::sleep(Duration::from_millis(self.rng.u64(1..3_000))).await;
                self.store.resume(&route, (!whole).then_some(&topic)).await.unwrap();
            }
            "replay" => {
                // It may meet a deadlock with a writer, and is not started again then.
                let few = Filter { limit: Some(3), ..Filter::all_routes() };
                let _ = self.store.replay(&few).await;
            }
            _ => self.store.resume(&route, Some(&topic)).await.unwrap(),
        }
        self.deaths.look().await;
    }

    async fn requeue(&mut self) {
        let ids = self.deaths.look().await;
        if ids.is_empty() {
            return;
        }
        let since = self.history.now();
        // As above: an operator would ask again.
        let requeued = self.store.requeue(&Filter { ids: Some(ids.clone()), ..Filter::all_routes() }).await;
        if requeued.is_ok_and(|requeued| requeued == ids.len() as u64) {
            self.tally.add("dead letters requeued", ids.len() as u64);
            ids.into_iter().for_each(|id| self.history.requeued(id, since));
        }
    }

    /// Ends everything that an operator began.
    pub(crate) async fn settle_down(&self) {
        let route = Route::default();
        self.store.resume(&route, None).await.unwrap();
        for number in 0..self.plan.topics {
            self.store.resume(&route, Some(&topic(number))).await.unwrap();
        }
    }

    /// Lets held keys go on.
    pub(crate) async fn release_held(&self) {
        for failing in self.store.failing_keys(&Filter::all_routes()).await.unwrap() {
            if failing.held {
                // It may flow by now.
                let _ = self.store.release(&failing.route, &failing.key).await;
            }
        }
    }
}
