//! Kills each actor of a relay while it works. Nothing is lost or overtaken, and the relay heals:
//! alone, with its route, or by the next relay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Clock, Position};
use outbox_contract::{Message, MessageId, Outgoing, Timestamp, Transactional};
use outbox_store_memory::MemoryStore;
use outbox_testkit::{ChaosTransport, FaultRates, RecordingTransport, TestClock};
use ractor::{ActorCell, ActorStatus};
use tokio::time::Instant;

use super::lease_keeper::LeaseKeeperMsg;
use super::maintenance::MaintenanceMsg;
use super::poller::PollerMsg;
use super::publisher::Publish;
use super::route::CoreMsg;
use super::settler::SettlerMsg;
use super::supervisor::RouteMsg;
use super::transitions::TransitionsMsg;
use super::*;
use crate::health::Status;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
/// Milliseconds after the start at which a part is killed first.
const MOMENTS: [u32; 4] = [0, 3, 6, 11];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Poller,
    Publisher,
    Settler,
    Transitions,
    LeaseKeeper,
    Route,
    Jobs,
    Supervisor,
    Maintenance,
}

impl Part {
    /// Returns the actors of this part that run now.
    fn of(self, relay: &RelayHandle) -> Vec<ActorCell> {
        let roots: Vec<ActorCell> = relay.observer().roots().into_iter().map(|(_, root)| root).collect();
        let below = |cells: &[ActorCell]| cells.iter().flat_map(ActorCell::get_children).collect::<Vec<_>>();
        let is: fn(&ActorCell) -> Option<bool> = match self {
            Self::Poller => ActorCell::is_message_type_of::<PollerMsg>,
            Self::Publisher => ActorCell::is_message_type_of::<Publish>,
            Self::Settler => ActorCell::is_message_type_of::<SettlerMsg>,
            Self::Transitions => ActorCell::is_message_type_of::<TransitionsMsg>,
            Self::LeaseKeeper => ActorCell::is_message_type_of::<LeaseKeeperMsg>,
            Self::Route => ActorCell::is_message_type_of::<CoreMsg>,
            Self::Supervisor => ActorCell::is_message_type_of::<RouteMsg>,
            Self::Maintenance => ActorCell::is_message_type_of::<MaintenanceMsg>,
            Self::Jobs => return below(std::slice::from_ref(&relay.observer().maintenance)),
        };
        let first = below(&roots);
        let all = roots.iter().chain(&first).cloned().chain(below(&first));
        all.filter(|cell| is(cell) == Some(true)).collect()
    }

    /// Kills its actors, and waits until all below them have ended, too.
    async fn kill(self, relay: &RelayHandle) {
        let mut cells = self.of(relay);
        cells.iter().for_each(ActorCell::kill);
        cells.extend(cells.iter().flat_map(ActorCell::get_children).collect::<Vec<_>>());
        within(S * 60, "its actors end", || {
            cells.iter().all(|cell| cell.get_status() == ActorStatus::Stopped)
        })
        .await;
    }
}

/// A store, a broker that takes its time and fails now and then, and what was appended.
struct World {
    store: MemoryStore,
    broker: Arc<RecordingTransport>,
    transport: Arc<ChaosTransport>,
    appended: Vec<Message>,
}

impl World {
    fn new(seed: u64) -> Self {
        let broker = Arc::new(RecordingTransport::new());
        let rates =
            FaultRates { failed: 0.05, unknown_with_effect: 0.02, delay: MS * 5, ..FaultRates::default() };
        let transport =
            ChaosTransport::new(Arc::<RecordingTransport>::clone(&broker), seed).with_rates(rates);
        let store = MemoryStore::builder().concurrent_writers().build();
        Self { store, broker, transport: Arc::new(transport), appended: Vec::new() }
    }

    async fn relay(&self) -> RelayHandle {
        let clock: Arc<dyn Clock> = Arc::new(TestClock::starting_at(Timestamp::from_micros(0)));
        let relay = Relay::builder(self.store.clone(), Arc::clone(&self.transport));
        // Small batches, so that several are unconfirmed at any moment.
        relay.clock(clock).seed(1).publish_batch(4).start().await.unwrap()
    }

    async fn append(&mut self, keys: usize, each: usize) {
        let mut tx = self.store.begin().await.unwrap();
        for n in 0..keys * each {
            let message = Message::new("orders", "order.placed").unwrap();
            let message = message.with_key(format!("key-{}", n % keys)).unwrap();
            self.store.append(&mut tx, &[Outgoing::from(message.clone())]).await.unwrap();
            self.appended.push(message);
        }
        self.store.commit(tx).await.into_result().unwrap();
    }

    fn waiting(&self) -> usize {
        let tables = self.store.snapshot();
        tables.hot.len() + tables.parked.len()
    }

    /// Everything arrived, and the first arrivals of each key are in order, by position too.
    #[track_caller]
    fn assert_arrived_in_order(&self) {
        let by_key = |ids: &mut dyn Iterator<Item = (String, MessageId)>| {
            let mut keys: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
            ids.for_each(|(key, id)| keys.entry(key).or_default().push(id));
            keys
        };
        let mut seen = BTreeSet::new();
        let published = self.broker.published();
        let mut firsts = published
            .iter()
            .filter(|it| seen.insert(it.id))
            .map(|it| (it.key.key.as_str().to_owned(), it.id));
        let mut appended = self.appended.iter().map(|it| (it.order_key().as_str().to_owned(), it.id));
        assert_eq!(by_key(&mut firsts), by_key(&mut appended));
        // A consumer that keeps the last position of each key takes none for a repeat.
        let mut last: BTreeMap<_, (Position, BTreeSet<MessageId>)> = BTreeMap::new();
        for it in &published {
            let (position, handled) = last.entry(it.key.clone()).or_default();
            if it.position > *position {
                *position = it.position;
                handled.insert(it.id);
            }
            assert!(handled.contains(&it.id), "{:?} at {} came after {position}", it.id, it.position);
        }
    }
}

async fn within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() <= limit, "not within {limit:?}: {what}");
        tokio::time::sleep(MS * 20).await;
    }
}

/// Kills a part a few times while there is work to do. The relay heals by itself: in `alone`, the
/// part is replaced and nothing in memory is dropped.
async fn heals(part: Part, alone: bool) {
    for moment in MOMENTS {
        let mut world = World::new(u64::from(moment));
        world.append(20, 10).await;
        let relay = world.relay().await;
        tokio::time::sleep(MS * moment).await;
        for _ in 0..3 {
            within(S * 60, "it runs", || !part.of(&relay).is_empty()).await;
            part.kill(&relay).await;
            tokio::time::sleep(MS * 5).await;
            world.append(20, 1).await;
        }
        within(S * 120, "nothing waits", || world.waiting() == 0).await;
        world.assert_arrived_in_order();
        let stats = relay.stats();
        assert_eq!((stats.resets == 0, stats.restarts > 0), (alone, alone), "{part:?}: {stats:?}");
        within(S * 120, "it is healthy", || relay.health().status == Status::Healthy).await;
        assert!(relay.stop(S * 20).await, "{part:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_poller_that_is_killed_restarts_the_route() {
    heals(Part::Poller, false).await;
}

/// The core knows what it had sent: that is of unknown outcome.
#[tokio::test(start_paused = true)]
async fn a_publisher_that_is_killed_is_replaced_and_its_batch_is_sent_again() {
    heals(Part::Publisher, true).await;
}

/// Removals that it had not done yet are sent again.
#[tokio::test(start_paused = true)]
async fn a_settler_that_is_killed_restarts_the_route() {
    heals(Part::Settler, false).await;
}

#[tokio::test(start_paused = true)]
async fn transitions_that_are_killed_restart_the_route() {
    heals(Part::Transitions, false).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_keeper_that_is_killed_restarts_the_route() {
    heals(Part::LeaseKeeper, false).await;
}

/// The core is gone with it, and all that is in flight.
#[tokio::test(start_paused = true)]
async fn a_route_actor_that_is_killed_restarts_the_route() {
    heals(Part::Route, false).await;
}

#[tokio::test(start_paused = true)]
async fn maintenance_jobs_that_are_killed_are_replaced() {
    heals(Part::Jobs, true).await;
}

/// Only the program starts it again. Health says so at once, and the next relay takes over what was
/// in flight.
#[tokio::test(start_paused = true)]
async fn a_route_supervisor_that_is_killed_leaves_everything_to_the_next_relay() {
    for moment in MOMENTS {
        let mut world = World::new(u64::from(moment));
        world.append(20, 10).await;
        let relay = world.relay().await;
        let observer = relay.observer();
        tokio::time::sleep(MS * moment).await;
        let parts = [Part::Poller, Part::Publisher, Part::Settler, Part::LeaseKeeper, Part::Route];
        let below: Vec<ActorCell> = parts.iter().flat_map(|part| part.of(&relay)).collect();
        let ended = tokio::spawn({
            let observer = observer.clone();
            async move { observer.ended().await }
        });
        assert!(!ended.is_finished());
        Part::Supervisor.kill(&relay).await;
        assert_eq!(ended.await.unwrap(), "route default");
        within(S * 60, "nothing runs", || below.iter().all(|cell| cell.get_status() == ActorStatus::Stopped))
            .await;
        let health = observer.health();
        assert_eq!(health.status, Status::Unhealthy);
        assert!(health.reasons.iter().any(|it| it.text.contains("start the relay again")), "{health:?}");
        let next = world.relay().await;
        within(S * 120, "nothing waits", || world.waiting() == 0).await;
        world.assert_arrived_in_order();
        assert!(!relay.stop(S * 20).await, "it says that it did not drain");
        assert!(next.stop(S * 20).await);
    }
}

/// Messages flow, and health says that scheduled ones wait.
#[tokio::test(start_paused = true)]
async fn a_maintenance_supervisor_that_is_killed_is_reported_while_messages_flow() {
    let mut world = World::new(1);
    let relay = world.relay().await;
    Part::Maintenance.kill(&relay).await;
    assert_eq!(relay.observer().ended().await, "maintenance");
    assert!(Part::Jobs.of(&relay).is_empty());
    world.append(20, 10).await;
    within(S * 120, "nothing waits", || world.waiting() == 0).await;
    world.assert_arrived_in_order();
    let health = relay.health();
    assert_eq!(health.status, Status::Unhealthy);
    assert!(health.reasons.iter().any(|it| it.text.contains("maintenance has ended")), "{health:?}");
    assert!(!relay.stop(S * 20).await);
}
