//! A relay's link to the store: it stands still while the relay does, and a call that was given up
//! may have its effect later.

use std::sync::Arc;

use outbox_contract::backend::{
    Due, DueRequest, FetchRequest, Fetched, FetchedRow, KeyTransition, Lease, LeaseRequest, Leased, LowWater,
    RelayId, RowId, Step, StoreCall, StoreLayer, Transitioned,
};
use outbox_contract::{Route, Store, StoreError, StoreErrorKind};
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
    /// A call that changes something: it may be given up by the relay and happen all the same,
    /// later.
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
                // The caller is gone, and its outcome is of no interest.
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

    async fn read<T, E>(&self, call: impl Future<Output = Result<T, E>> + Send) -> Result<T, E> {
        self.gate.passed().await;
        self.luck.panic(&self.tally);
        let answer = call.await;
        // The world goes on while the answer is under way.
        tokio::time::sleep(self.luck.answer()).await;
        self.gate.passed().await;
        answer
    }
}

impl StoreLayer for Link {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.store
    }

    async fn around<T: Send, E: From<StoreError> + Send>(
        &self,
        _call: StoreCall,
        effect: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        self.read(effect).await
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

    async fn fetch_below(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        StoreLayer::fetch(self, request).await
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
}
