//! Each actor of an inbox is killed while it works: what happens, and that it heals with nothing
//! lost, done twice or out of order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_contract::backend::{Clock, Deliveries, Received, Subscription, Tag, TransportLayer, Unit};
use outbox_contract::{Message, MessageId, Timestamp, Transport, TransportError, async_trait};
use outbox_store_memory::MemoryStore;
use outbox_testkit::{Feed, TestClock};
use ractor::{ActorCell, ActorStatus};
use tokio::time::Instant;

use super::acknowledger::Acknowledge;
use super::dispatcher::DispatcherMsg;
use super::receiver::ReceiverMsg;
use super::worker::Assignment;
use super::*;
use crate::health::Status;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Receiver,
    Dispatcher,
    Worker,
    Acknowledger,
    Supervisor,
}

impl Part {
    const ALL: [Self; 5] =
        [Self::Receiver, Self::Dispatcher, Self::Worker, Self::Acknowledger, Self::Supervisor];

    /// The actors of this part that run now.
    fn of(self, inbox: &InboxHandle) -> Vec<ActorCell> {
        let supervisor = inbox.observer.supervisor.as_ref().unwrap().get_cell();
        let below = |cells: &[ActorCell]| cells.iter().flat_map(ActorCell::get_children).collect::<Vec<_>>();
        let first = below(std::slice::from_ref(&supervisor));
        let of = |cells: Vec<ActorCell>, is: fn(&ActorCell) -> Option<bool>| -> Vec<ActorCell> {
            cells.into_iter().filter(|cell| is(cell) == Some(true)).collect()
        };
        match self {
            Self::Supervisor => vec![supervisor],
            Self::Receiver => of(first, ActorCell::is_message_type_of::<ReceiverMsg>),
            Self::Dispatcher => of(first, ActorCell::is_message_type_of::<DispatcherMsg>),
            Self::Worker => of(below(&first), ActorCell::is_message_type_of::<Assignment>),
            Self::Acknowledger => of(below(&first), ActorCell::is_message_type_of::<Acknowledge>),
        }
    }
}

/// A store, a broker, and what handlers did.
#[derive(Clone)]
struct World {
    store: MemoryStore,
    feed: Feed,
    effects: Arc<Mutex<BTreeMap<String, Vec<MessageId>>>>,
    running: Arc<AtomicUsize>,
    highest: Arc<AtomicUsize>,
}

/// Counts a call of a handler for as long as it lasts, however it ends.
struct Call(Arc<AtomicUsize>);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl World {
    fn new() -> Self {
        Self {
            store: MemoryStore::builder().concurrent_writers().build(),
            feed: Feed::new(),
            effects: Arc::default(),
            running: Arc::default(),
            highest: Arc::default(),
        }
    }

    async fn inbox(&self, mode: Mode) -> InboxHandle {
        let world = self.clone();
        let handler = async move |message: Message, context: &mut HandlerContext<'_, MemoryStore>| {
            let (effects, key) = (Arc::clone(&world.effects), message.order_key().as_str().to_owned());
            context.tx().on_commit(move || effects.lock().unwrap().entry(key).or_default().push(message.id));
            world.highest.fetch_max(world.running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let call = Call(Arc::clone(&world.running));
            tokio::time::sleep(MS * 3).await;
            drop(call);
            Ok(())
        };
        let clock: Arc<dyn Clock> = Arc::new(TestClock::starting_at(Timestamp::from_micros(0)));
        let inbox = Inbox::builder(self.store.clone(), SlowToAcknowledge(self.feed.clone()));
        let inbox = inbox.consumer("inventory").topic("orders").clock(clock).seed(1).mode(mode);
        inbox.concurrency(4).on_any(handler).start().await.unwrap()
    }

    fn send(&self, keys: usize, each: usize) -> Vec<Message> {
        let mut sent = Vec::new();
        for _ in 0..each {
            for key in 0..keys {
                let message = Message::new("orders", "order.placed").unwrap();
                sent.push(message.with_key(format!("key-{key}")).unwrap());
            }
        }
        sent.iter().for_each(|message| self.feed.send(message.clone()));
        sent
    }

    fn done(&self) -> usize {
        self.effects.lock().unwrap().values().map(Vec::len).sum()
    }

    #[track_caller]
    fn assert_once_and_in_order(&self, sent: &[Message]) {
        let mut expected: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
        for message in sent {
            expected.entry(message.order_key().as_str().to_owned()).or_default().push(message.id);
        }
        assert_eq!(*self.effects.lock().unwrap(), expected);
    }
}

fn is_over(parts: &[ActorCell]) -> bool {
    parts.iter().all(|cell| cell.get_status() == ActorStatus::Stopped)
}

async fn within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() <= limit, "not within {limit:?}: {what}");
        tokio::time::sleep(MS).await;
    }
}

/// A broker that takes its time to acknowledge, so that this can be cut off before and after.
struct SlowToAcknowledge(Feed);

struct SlowDeliveries(Box<dyn Deliveries>);

impl TransportLayer for SlowToAcknowledge {
    type Inner = Feed;

    fn inner(&self) -> &Feed {
        &self.0
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        Ok(Box::new(SlowDeliveries(self.0.subscribe(subscription).await?)))
    }
}

#[async_trait]
impl Deliveries for SlowDeliveries {
    async fn next(&self) -> Result<Received, TransportError> {
        // A delivery that is cut off here was taken from the broker, and is lost to this inbox.
        let received = self.0.next().await;
        tokio::time::sleep(MS).await;
        received
    }

    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError> {
        tokio::time::sleep(MS * 2).await;
        self.0.acknowledge(tags).await?;
        tokio::time::sleep(MS * 2).await;
        Ok(())
    }

    async fn pause(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.0.pause(units).await
    }

    async fn resume(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.0.resume(units).await
    }

    async fn drain(&self) -> Result<(), TransportError> {
        self.0.drain().await
    }

    async fn close(self: Box<Self>) -> Result<(), TransportError> {
        self.0.close().await
    }
}

/// Kills a part a few times while there is work to do. Whether it dies alone says `alone`.
async fn heals(part: Part, mode: Mode, alone: bool) {
    for moment in 0..12_u32 {
        let world = World::new();
        let mut sent = world.send(6, 8);
        let inbox = world.inbox(mode).await;
        tokio::time::sleep(MS * moment).await;
        for _ in 0..3 {
            let parts = part.of(&inbox);
            parts.iter().for_each(ActorCell::kill);
            within(S, "it is over", || parts.iter().all(|cell| cell.get_status() == ActorStatus::Stopped))
                .await;
            tokio::time::sleep(MS * 5).await;
            sent.extend(world.send(6, 1));
        }
        within(S * 60, "all is acknowledged", || world.feed.unacknowledged() == 0).await;
        within(S * 60, "all is handled", || world.done() >= sent.len()).await;
        world.assert_once_and_in_order(&sent);
        let resets = inbox.stats().resets;
        assert_eq!(resets == 0, alone, "{part:?} {mode:?}: {resets} incarnations");
        within(S * 120, "it is healthy", || inbox.health().status == Status::Healthy).await;
        assert!(inbox.stop(S * 20).await, "{part:?} {mode:?}");
    }
}

/// All that it took from the broker is in doubt, and is asked for again.
#[tokio::test(start_paused = true)]
async fn a_receiver_that_is_killed_begins_a_new_subscription() {
    heals(Part::Receiver, Mode::Direct, false).await;
    heals(Part::Receiver, Mode::Stored, false).await;
}

/// The core is gone with it.
#[tokio::test(start_paused = true)]
async fn a_dispatcher_that_is_killed_begins_a_new_subscription() {
    heals(Part::Dispatcher, Mode::Direct, false).await;
    heals(Part::Dispatcher, Mode::Stored, false).await;
}

/// The core knows what it had in hand.
#[tokio::test(start_paused = true)]
async fn a_worker_that_is_killed_is_replaced_and_its_messages_are_tried_again() {
    heals(Part::Worker, Mode::Direct, true).await;
    heals(Part::Worker, Mode::Stored, true).await;
}

#[tokio::test(start_paused = true)]
async fn an_acknowledger_that_is_killed_is_replaced_and_tells_again() {
    heals(Part::Acknowledger, Mode::Direct, true).await;
    heals(Part::Acknowledger, Mode::Stored, true).await;
}

/// Killed in the middle of their transactions, and while they wait for a turn: the pool has all of
/// its turns back, and the rights to run a handler too.
#[tokio::test(start_paused = true)]
async fn turns_of_workers_that_are_killed_go_back_to_the_transaction_pool() {
    let world = World::new();
    let inbox = world.inbox(Mode::Direct).await;
    let mut sent = Vec::new();
    for moment in 0..40 {
        sent.extend(world.send(12, 1));
        tokio::time::sleep(MS * (moment % 5)).await;
        Part::Worker.of(&inbox).iter().for_each(ActorCell::kill);
        tokio::time::sleep(MS).await;
    }
    within(S * 60, "all is acknowledged", || world.feed.unacknowledged() == 0).await;
    world.highest.store(0, Ordering::SeqCst);
    sent.extend(world.send(12, 10));
    within(S * 60, "all is acknowledged", || world.feed.unacknowledged() == 0).await;
    within(S * 60, "all is handled", || world.done() >= sent.len()).await;
    world.assert_once_and_in_order(&sent);
    assert_eq!(world.highest.load(Ordering::SeqCst), 4, "as many at once as may be");
    assert_eq!(inbox.stats().resets, 0);
    assert!(inbox.stop(S * 20).await);
}

/// Parts of the relay that handles what is stored, by their depth below its roots: its supervisor,
/// the actors below, the publishers that run handlers.
fn of_drain(inbox: &InboxHandle, depth: usize) -> Vec<ActorCell> {
    let (_, supervisor) = inbox.drain.as_ref().unwrap().observer().roots().swap_remove(0);
    (0..depth).fold(vec![supervisor], |cells, _| cells.iter().flat_map(ActorCell::get_children).collect())
}

/// The handlers that it runs are rolled back, and what they had is handled again.
#[tokio::test(start_paused = true)]
async fn parts_of_the_drain_that_are_killed_are_replaced_alone_or_with_its_route() {
    for (depth, alone) in [(1, false), (2, true)] {
        for moment in 0..12_usize {
            let world = World::new();
            let mut sent = world.send(6, 8);
            let inbox = world.inbox(Mode::Stored).await;
            tokio::time::sleep(MS * 12 + MS * u32::try_from(moment).unwrap()).await;
            for _ in 0..3 {
                within(S * 60, "it runs", || !of_drain(&inbox, depth).is_empty()).await;
                let mut parts = of_drain(&inbox, depth);
                // One at a time: they end together, or alone.
                let part = parts.swap_remove(moment % parts.len());
                part.kill();
                within(S, "it is over", || is_over(std::slice::from_ref(&part))).await;
                tokio::time::sleep(MS * 5).await;
                sent.extend(world.send(6, 1));
            }
            within(S * 60, "all is acknowledged", || world.feed.unacknowledged() == 0).await;
            within(S * 60, "all is handled", || world.done() >= sent.len()).await;
            world.assert_once_and_in_order(&sent);
            let stats = inbox.drain.as_ref().unwrap().stats();
            assert_eq!((stats.resets == 0, stats.restarts > 0), (alone, alone), "{stats:?}");
            assert_eq!(inbox.stats().resets, 0, "what is received is still stored");
            within(S * 120, "it is healthy", || inbox.health().status == Status::Healthy).await;
            assert!(inbox.stop(S * 20).await);
        }
    }
}

/// Received messages are still stored, and health reports that they are not handled.
#[tokio::test(start_paused = true)]
async fn a_drain_whose_supervisor_is_killed_leaves_what_is_stored_to_the_next_inbox() {
    let world = World::new();
    let mut sent = world.send(6, 8);
    let inbox = world.inbox(Mode::Stored).await;
    tokio::time::sleep(MS * 15).await;
    let supervisor = of_drain(&inbox, 0);
    supervisor[0].kill();
    within(S, "it is over", || is_over(&supervisor)).await;
    sent.extend(world.send(6, 1));
    within(S * 60, "all is acknowledged", || world.feed.unacknowledged() == 0).await;
    let health = inbox.health();
    assert_eq!(health.status, Status::Unhealthy);
    assert!(health.reasons.iter().any(|it| it.text.contains("its supervisor has ended")), "{health:?}");
    assert!(!inbox.stop(S * 20).await, "it says that it did not drain");
    let next = world.inbox(Mode::Stored).await;
    within(S * 60, "all is handled", || world.done() >= sent.len()).await;
    world.assert_once_and_in_order(&sent);
    assert!(next.stop(S * 20).await);
}

/// Only the program starts it again; health says so, and the next inbox has all that was not
/// acknowledged.
#[tokio::test(start_paused = true)]
async fn a_supervisor_that_is_killed_leaves_everything_to_the_next_inbox() {
    for mode in [Mode::Direct, Mode::Stored] {
        for moment in 0..12_u32 {
            let world = World::new();
            let sent = world.send(6, 8);
            let inbox = world.inbox(mode).await;
            tokio::time::sleep(MS * moment).await;
            let parts: Vec<ActorCell> = Part::ALL.iter().flat_map(|part| part.of(&inbox)).collect();
            let observer = inbox.observer().clone();
            let ended = tokio::spawn(async move { observer.ended().await });
            tokio::task::yield_now().await;
            assert!(!ended.is_finished());
            Part::Supervisor.of(&inbox).iter().for_each(ActorCell::kill);
            within(S, "all parts are over", || is_over(&parts)).await;
            let ended = tokio::time::timeout(S * 60, ended).await.expect("the end is noticed");
            assert_eq!(ended.unwrap(), "inbox inventory: receiving");
            let health = inbox.health();
            assert_eq!(health.status, Status::Unhealthy);
            assert!(health.reasons.iter().any(|reason| reason.text.contains("restart it")), "{health:?}");
            let next = world.inbox(mode).await;
            within(S * 60, "all is acknowledged", || world.feed.unacknowledged() == 0).await;
            within(S * 60, "all is handled", || world.done() >= sent.len()).await;
            world.assert_once_and_in_order(&sent);
            drop(inbox);
            assert!(next.stop(S * 20).await);
        }
    }
}
