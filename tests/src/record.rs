//! Record of a test, shared by writers, consumers and the test itself, and compared with the
//! promises in the end.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use outbox_contract::{Key, Message, MessageId, Outgoing, Topic};
use outbox_testkit::history::{ConsumerId, Fate, History, Moment, Report};
use outbox_testkit::time::eventually;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::ledger::{Effect, Ledger, Written};

/// Time limit of a test's wait. Many times the time needed on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Record of a test's messages.
pub struct Record {
    /// Deliveries from the broker.
    deliveries: History,
    consumer: ConsumerId,
    /// Effects of handlers.
    effects: History,
    handler: ConsumerId,
    /// Maximum number of committed messages in flight before writers wait: load that a machine of
    /// any speed can carry.
    max_on_their_way: usize,
    // A plain mutex: locked to look and to record, never across an await.
    sets: Mutex<Sets>,
    /// First deliveries.
    delivered: AtomicU64,
    /// Notified when anything changes.
    changed: Notify,
    stop: AtomicBool,
    /// Transactions that were rolled back on purpose.
    rolled_back: AtomicU64,
}

/// A moment of deliveries, and one of effects.
pub type Now = (Moment, Moment);

#[derive(Default)]
struct Sets {
    /// Committed for certain, and not delivered yet.
    on_their_way: HashSet<MessageId>,
    /// Committed for certain, and no dead letter.
    committed: HashSet<MessageId>,
    seen: HashSet<MessageId>,
    /// Every message that was to be written, whatever its fate.
    written: HashMap<MessageId, Message>,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("delivered", &self.delivered).finish_non_exhaustive()
    }
}

impl Record {
    /// Creates an empty record. Its writers wait while this many messages are in flight.
    #[must_use]
    pub fn new(max_on_their_way: usize) -> Self {
        let (deliveries, effects) = (History::new(), History::new());
        let (consumer, handler) = (deliveries.consumer("the consumer"), effects.consumer("the handler"));
        Self {
            deliveries,
            consumer,
            effects,
            handler,
            max_on_their_way,
            sets: Mutex::default(),
            delivered: AtomicU64::new(0),
            changed: Notify::new(),
            stop: AtomicBool::new(false),
            rolled_back: AtomicU64::new(0),
        }
    }

    fn sets(&self) -> MutexGuard<'_, Sets> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the moment from which a transaction counts that a test writes itself.
    #[must_use]
    pub fn now(&self) -> Now {
        (self.deliveries.now(), self.effects.now())
    }

    /// Records a transaction that a test has written itself, and that was committing behind this
    /// moment.
    pub fn wrote(&self, appended: &[(Now, &Message)], committing: Option<Now>, written: &Written) {
        let messages: Vec<_> = appended.iter().map(|((began, _), message)| (*began, *message)).collect();
        self.deliveries.record(&messages, committing.map(|now| now.0), fate(written, &self.deliveries));
        let messages: Vec<_> = appended.iter().map(|((_, began), message)| (*began, *message)).collect();
        self.effects.record(&messages, committing.map(|now| now.1), fate(written, &self.effects));
        let mut sets = self.sets();
        for (_, message) in appended {
            sets.written.insert(message.id, (*message).clone());
            if let Written::Yes = written {
                sets.committed.insert(message.id);
                if !sets.seen.contains(&message.id) {
                    sets.on_their_way.insert(message.id);
                }
            }
        }
        drop(sets);
        self.changed.notify_waiters();
    }

    /// Writes messages in a transaction, once. Returns true if they are committed for certain.
    pub async fn write(&self, ledger: &dyn Ledger, messages: &[Outgoing]) -> bool {
        let began: Vec<_> = messages.iter().map(|outgoing| (self.now(), &outgoing.message)).collect();
        let committing = OnceLock::new();
        let told = || {
            committing.get_or_init(|| self.now());
        };
        let written = ledger.write(messages, &told).await;
        self.wrote(&began, committing.get().copied(), &written);
        matches!(written, Written::Yes)
    }

    /// Appends messages in a transaction that is rolled back: none of them may ever arrive.
    pub async fn roll_back(&self, ledger: &dyn Ledger, messages: &[Outgoing]) {
        let began: Vec<_> = messages.iter().map(|outgoing| (self.now(), &outgoing.message)).collect();
        let written = ledger.roll_back(messages).await;
        self.wrote(&began, None, &written);
        self.rolled_back.fetch_add(1, Ordering::SeqCst);
    }

    /// Writes one more message to each written key, and waits until they have arrived. Returns true
    /// if they have, before [`PATIENCE`] was over.
    ///
    /// A wrongly sent message of a key arrives before its last message: so it is seen, even if it
    /// arrives late.
    ///
    /// # Panics
    ///
    /// The same as of [`write_for_certain`](Self::write_for_certain).
    pub async fn close_every_key(&self, ledger: &dyn Ledger) -> bool {
        let keys: BTreeMap<(Topic, Key), Message> = {
            let written = &self.sets().written;
            let keyed = written.values().filter_map(|message| Some((message, message.key.clone()?)));
            keyed.map(|(message, key)| ((message.topic.clone(), key), message.clone())).collect()
        };
        for ((topic, key), like) in keys {
            let mut last = Message::new(topic, &*like.event_type).expect("valid names");
            last.key = Some(key);
            self.write_for_certain(ledger, &[last.into()]).await;
        }
        self.all_delivered().await
    }

    /// Writes messages in a transaction that is started again after a failure, as after a conflict.
    ///
    /// # Panics
    ///
    /// If they are not committed after [`PATIENCE`].
    pub async fn write_for_certain(&self, ledger: &dyn Ledger, messages: &[Outgoing]) {
        let writing = async {
            while !self.write(ledger, messages).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(timeout(PATIENCE, writing).await.is_ok(), "the database takes no message");
    }

    /// Starts writers that commit one to three messages of one of this many keys at a time, as fast
    /// as they are delivered, until they are [stopped](Self::stop_writing). They lock nothing of
    /// their own, and roll back one transaction in ten.
    pub fn writers(
        self: &Arc<Self>,
        ledger: &Arc<dyn Ledger>,
        writers: u64,
        keys: u64,
        message: impl Fn(&str) -> Message + Clone + Send + Sync + 'static,
    ) -> Vec<JoinHandle<()>> {
        let start = |writer| {
            let (record, ledger, message) = (Arc::clone(self), Arc::clone(ledger), message.clone());
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(writer);
                while !record.stop.load(Ordering::SeqCst) {
                    let room = || {
                        record.sets().on_their_way.len() < record.max_on_their_way
                            || record.stop.load(Ordering::SeqCst)
                    };
                    if !record.until(room).await {
                        return;
                    }
                    let key = format!("key-{}", random.u64(..keys));
                    let messages: Vec<Outgoing> =
                        (0..random.usize(1..=3)).map(|_| message(&key).into()).collect();
                    if random.u8(..10) == 0 {
                        record.roll_back(&*ledger, &messages).await;
                    } else if !record.write(&*ledger, &messages).await {
                        // The database is unavailable, or there was a conflict: other messages
                        // replace them.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            })
        };
        (0..writers).map(start).collect()
    }

    /// Lets writers finish their current work.
    ///
    /// # Panics
    ///
    /// If one panicked or does not end.
    pub async fn stop_writing(&self, writers: impl IntoIterator<Item = JoinHandle<()>>) {
        self.stop.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
        for writer in writers {
            let ended = timeout(PATIENCE, writer).await;
            assert!(matches!(ended, Ok(Ok(()))), "a writer did not end well: {ended:?}");
        }
    }

    /// Records that a message arrived from the broker.
    pub fn delivered(&self, message: &Message) {
        self.deliveries.delivered(self.consumer, message);
        let mut sets = self.sets();
        sets.on_their_way.remove(&message.id);
        let first = sets.seen.insert(message.id);
        drop(sets);
        if first {
            self.delivered.fetch_add(1, Ordering::SeqCst);
            self.changed.notify_waiters();
        }
    }

    /// Records effects in place of deliveries, where no test receives from the broker.
    pub fn saw_effects(&self, effects: &[Effect]) {
        let new: Vec<Message> = {
            let sets = self.sets();
            let new = effects.iter().filter(|effect| !sets.seen.contains(&effect.id));
            // A message may be handled before its writer knows that it is committed.
            new.filter_map(|effect| sets.written.get(&effect.id)).cloned().collect()
        };
        new.iter().for_each(|message| self.delivered(message));
    }

    /// Records that a message became a dead letter of the relay behind this moment, so that neither
    /// a delivery nor an effect will arrive.
    pub fn never_sent(&self, message: &Message, since: Now) {
        self.deliveries.dead_lettered(message, since.0);
        self.sets().on_their_way.remove(&message.id);
        self.changed.notify_waiters();
        self.never_handled(message, since);
    }

    /// Records that a message became a dead letter of the inbox behind this moment, so that it will
    /// have no effect.
    pub fn never_handled(&self, message: &Message, since: Now) {
        self.effects.dead_lettered(message, since.1);
        self.sets().committed.remove(&message.id);
    }

    /// Returns the number of transactions rolled back on purpose.
    #[must_use]
    pub fn rolled_back(&self) -> u64 {
        self.rolled_back.load(Ordering::SeqCst)
    }

    /// Returns true if a message arrived from the broker.
    #[must_use]
    pub fn is_delivered(&self, id: MessageId) -> bool {
        self.sets().seen.contains(&id)
    }

    /// Waits until every committed message has arrived. Returns true if all have, before
    /// [`PATIENCE`] was over.
    pub async fn all_delivered(&self) -> bool {
        self.until(|| self.sets().on_their_way.is_empty()).await
    }

    /// Waits until all of these have arrived. Returns true if they have, before this time was over.
    pub async fn come_within(&self, limit: Duration, ids: &[MessageId]) -> bool {
        self.until_within(limit, || ids.iter().all(|id| self.is_delivered(*id))).await
    }

    /// Waits until this many more messages have arrived for the first time.
    ///
    /// # Panics
    ///
    /// If they have not arrived after [`PATIENCE`].
    #[track_caller]
    pub fn more(&self, count: u64) -> impl Future<Output = ()> {
        let goal = self.delivered.load(Ordering::SeqCst) + count;
        let here = std::panic::Location::caller();
        async move {
            let arrived = self.until(|| self.delivered.load(Ordering::SeqCst) >= goal).await;
            let delivered = self.delivered.load(Ordering::SeqCst);
            assert!(arrived, "{here}: {delivered} of {goal} messages have come after {PATIENCE:?}");
        }
    }

    /// Waits until a condition is true; returns true if it was before [`PATIENCE`] was over.
    async fn until(&self, so: impl Fn() -> bool) -> bool {
        self.until_within(PATIENCE, so).await
    }

    async fn until_within(&self, limit: Duration, so: impl Fn() -> bool) -> bool {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                // Listening before looking: a change in between is not missed.
                changed.as_mut().enable();
                if so() {
                    return;
                }
                changed.await;
            }
        };
        timeout(limit, waiting).await.is_ok()
    }

    /// Returns true if every committed message that is no dead letter has left an effect.
    #[must_use]
    pub fn all_handled(&self, effects: &[Effect]) -> bool {
        let handled: HashSet<MessageId> = effects.iter().map(|effect| effect.id).collect();
        self.sets().committed.is_subset(&handled)
    }

    /// Compares deliveries with commits.
    #[must_use]
    pub fn deliveries(&self) -> Report {
        self.deliveries.check()
    }

    /// Compares effects with commits. Each message must have exactly one effect, in the order of
    /// its key. Call it once.
    ///
    /// # Errors
    ///
    /// An effect is not where its number says.
    pub fn effects(&self, effects: &[Effect]) -> Result<Report, String> {
        let sets = self.sets();
        let mut last: Option<&Effect> = None;
        for effect in effects {
            let before = last.filter(|last| last.key == effect.key).map_or(0, |last| last.number);
            if effect.number != before + 1 {
                return Err(format!("behind effect {before} of its key comes {effect:?}"));
            }
            last = Some(effect);
            let message = sets
                .written
                .get(&effect.id)
                .ok_or_else(|| format!("of a message that was never appended: {effect:?}"))?;
            self.effects.delivered(self.handler, message);
        }
        Ok(self.effects.check())
    }
}

fn fate(written: &Written, history: &History) -> Fate {
    match written {
        Written::Yes => Fate::Committed(history.now()),
        Written::No(_) => Fate::RolledBack,
        Written::Unknown(_) => Fate::Unknown,
    }
}

/// Polls until a condition is true.
///
/// # Panics
///
/// If it is not after [`PATIENCE`].
pub async fn until(what: &str, so: impl AsyncFn() -> bool) {
    assert!(eventually(PATIENCE, || so()).await, "not {what} after {PATIENCE:?}");
}
