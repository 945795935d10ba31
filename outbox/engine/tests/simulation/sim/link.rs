//! A relay's link to the store: it stands still while the relay does, and a call that was given up may have its effect later.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::admin::{DeadLetter, Edit, FailingKey, Filter, Past};
use outbox_contract::fetch::{Due, DueRequest, FetchedRow, Ordering, RowId, Writers};
use outbox_contract::maintain::Maintained;
use outbox_contract::transition::Step;
use outbox_contract::wakeup::Wakeup;
use outbox_contract::{
    Admin, Backlog, BucketSet, FetchRequest, Fetched, KeyId, KeyTransition, Lease, LeaseRequest, Leased,
    LowWater, Message, MessageId, RelayId, Route, Store, StoreError, StoreErrorKind, Stored, StripeMark,
    Timestamp, Topic, Transitioned, Unserved, async_trait,
};
use outbox_store_memory::MemoryStore;

use super::deaths::Deaths;
use super::held::Held;
use super::line::{Gate, Luck};
use super::tally::Tally;
use super::trace::Trace;

/// The link, below the faults of the test kit.
pub(crate) struct Link {
    pub(crate) store: MemoryStore,
    pub(crate) relay: usize,
    pub(crate) gate: Arc<Gate>,
    pub(crate) luck: Arc<Luck>,
    pub(crate) trace: Arc<Trace>,
    pub(crate) deaths: Arc<Deaths>,
    pub(crate) held: Arc<Held>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) migrated: bool,
}

impl Link {
    /// A call that changes something: it may be given up by the relay and happen all the same, later.
    async fn write<T, F>(&self, call: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.gate.passed().await;
        self.luck.panic(&self.tally);
        if let Some(late) = self.luck.late_by() {
            self.tally.add("late writes", 1);
            tokio::spawn(async move {
                tokio::time::sleep(late).await;
                // Nobody is left to hear what became of it.
                let _ = call.await;
            });
            return std::future::pending().await;
        }
        let answer = call.await;
        tokio::time::sleep(self.luck.answer()).await;
        // The relay may stand still between the effect and the answer too.
        self.gate.passed().await;
        answer
    }

    async fn read<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.gate.passed().await;
        self.luck.panic(&self.tally);
        let answer = call.await;
        // The world goes on while the answer is under way.
        tokio::time::sleep(self.luck.answer()).await;
        self.gate.passed().await;
        answer
    }
}

#[async_trait]
impl Store for Link {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn ordering(&self) -> Ordering {
        self.store.ordering()
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        self.store.migrate().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        if !self.migrated {
            let message = "its tables are not there; run the migrations first";
            return Err(StoreError::new(StoreErrorKind::NotMigrated, "check", message));
        }
        self.read(self.store.check()).await
    }

    async fn lease(&self, request: &LeaseRequest) -> Result<Leased, StoreError> {
        self.trace.say(format!("relay {} beats, its mark is {}", self.relay, request.low_water.position));
        let (store, request) = (self.store.clone(), request.clone());
        let leased = self.write(async move { store.lease(&request).await }).await?;
        self.tally
            .add("leases taken over", leased.leases.iter().filter(|lease| lease.epoch.0 > 1).count() as u64);
        self.trace.say(format!("relay {} owns {} buckets", self.relay, leased.leases.len()));
        Ok(leased)
    }

    async fn give_back(
        &self,
        relay: RelayId,
        route: &Route,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
    ) -> Result<(), StoreError> {
        self.trace.say(format!("relay {} gives {} buckets back", self.relay, leases.len()));
        let (store, route, leases) = (self.store.clone(), route.clone(), leases.to_vec());
        let low_water = low_water.clone();
        self.write(async move { store.give_back(relay, &route, &leases, &low_water, leaving).await }).await
    }

    async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        let fetch = async {
            let mut fetched = self.store.fetch(request).await?;
            // Counted from the database on: also while the answer is under way.
            self.held.count_rows(&mut fetched.rows);
            Ok(fetched)
        };
        let fetched = self.read(fetch).await?;
        let rows: Vec<i64> = fetched.rows.iter().map(|row| row.position().0).collect();
        if !rows.is_empty() {
            let (scope, after) = (&request.scope, request.after);
            self.trace.say(format!("relay {} reads {scope:?} behind {after}: {rows:?}", self.relay));
        }
        let aside = fetched.rows.iter().filter(|row| matches!(row, FetchedRow::Failing(_))).count();
        if aside > 0 {
            self.trace.say(format!("relay {} is to park {aside} rows", self.relay));
        }
        Ok(fetched)
    }

    async fn writers(&self) -> Result<Writers, StoreError> {
        self.read(self.store.writers()).await
    }

    async fn stripes(&self, route: &Route, buckets: &BucketSet) -> Result<Vec<StripeMark>, StoreError> {
        self.read(self.store.stripes(route, buckets)).await
    }

    async fn due(&self, request: &DueRequest) -> Result<Due, StoreError> {
        let due = async {
            let mut due = self.store.due(request).await?;
            self.held.count_due(&mut due);
            Ok(due)
        };
        self.read(due).await
    }

    async fn settle(&self, route: &Route, delivered: &[RowId]) -> Result<(), StoreError> {
        let positions: Vec<i64> = delivered.iter().map(|row| row.position.0).collect();
        self.trace.say(format!("relay {} settles {positions:?}", self.relay));
        let (store, route, delivered) = (self.store.clone(), route.clone(), delivered.to_vec());
        self.write(async move { store.settle(&route, &delivered).await }).await
    }

    async fn transition(&self, transitions: &[KeyTransition]) -> Result<Vec<Transitioned>, StoreError> {
        let (store, steps, trace, relay) =
            (self.store.clone(), transitions.to_vec(), Arc::clone(&self.trace), self.relay);
        let deaths = Arc::clone(&self.deaths);
        self.write(async move {
            let buries = steps.iter().any(|transition| matches!(transition.step, Step::Bury { .. }));
            if buries {
                deaths.look().await;
            }
            let answers = store.transition(&steps).await?;
            if buries {
                deaths.look().await;
            }
            for (transition, answer) in steps.iter().zip(&answers) {
                let step = format!("{:?}", transition.step).replace(|c: char| c.is_ascii_control(), " ");
                trace.say(format!(
                    "relay {relay} transitions {} v{:?}: {step:.160}: {answer:?}",
                    transition.key, transition.version
                ));
            }
            Ok(answers)
        })
        .await
    }

    async fn elect(&self, role: &str, relay: RelayId, lasts: Duration) -> Result<bool, StoreError> {
        self.read(self.store.elect(role, relay, lasts)).await
    }

    async fn maintain(&self, limit: usize) -> Result<Maintained, StoreError> {
        self.read(self.store.maintain(limit)).await
    }

    async fn backlog(&self, route: &Route) -> Result<Backlog, StoreError> {
        self.read(self.store.backlog(route)).await
    }

    async fn unserved(&self, after: Duration) -> Result<Vec<Unserved>, StoreError> {
        self.read(self.store.unserved(after)).await
    }

    fn wakeups(&self) -> futures_util::stream::BoxStream<'static, Wakeup> {
        self.store.wakeups()
    }
}

/// Relays use no verb of operators; the trait wants them all the same.
macro_rules! verbs {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Admin for Link {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$answer, StoreError> {
                self.store.$name($($arg),*).await
            })*
        }
    };
}

verbs! {
    failing_keys(filter: &Filter) -> Vec<FailingKey>;
    parked(filter: &Filter) -> Vec<Arc<Stored>>;
    dead_letters(filter: &Filter) -> Vec<DeadLetter>;
    history(filter: &Filter) -> Vec<Past>;
    hold(route: &Route, key: &KeyId) -> ();
    release(route: &Route, key: &KeyId) -> ();
    skip(route: &Route, key: &KeyId) -> Option<MessageId>;
    discard(route: &Route, key: &KeyId) -> u64;
    requeue(filter: &Filter) -> u64;
    requeue_edited(filter: &Filter, edit: &Edit) -> Option<MessageId>;
    purge(filter: &Filter) -> u64;
    replay(filter: &Filter) -> u64;
    pause(route: &Route, topic: Option<&Topic>) -> ();
    resume(route: &Route, topic: Option<&Topic>) -> ();
    scheduled(filter: &Filter) -> Vec<(Timestamp, Message)>;
    cancel_scheduled(ids: &[MessageId]) -> u64;
}
