//! The checker: compares committed messages with the messages that consumers saw (promises P1 to
//! P4).
//!
//! A test records the operations of its writers and the deliveries of its consumers in a
//! [`History`] and asks it for a [`Report`]. Real time decides order. Message A is before message B
//! of the same topic and key if A's commit had returned before B's append began. The same holds if
//! one transaction appended both, A first. Positions and time stamps never decide, because they are
//! under test. Messages of which neither is before the other may arrive in any order. Only *first*
//! deliveries can be out of order; a repeat behind a newer message is a *stale repeat*, any other
//! repeat a *duplicate*.
//!
//! A commit with an unknown result makes messages that may be delivered and may be missing. A
//! delivery before the transaction began to commit is a phantom: this finds readers that see
//! uncommitted messages.
//!
//! A dead letter may be missing. It keeps its place in the order as long as it was certainly not
//! dead: deliveries ahead of it until then are out of order, because an undelivered message leaves
//! its key before its follower is sent. A requeued dead letter must be delivered again.
//!
//! The checker uses about 60 bytes for a message and 32 for a delivery, and 64 more for a message
//! during the check. Where writers number the messages of each key themselves, [`KeySequences`]
//! finds the same defects in a few bytes for a key.

mod merge;
mod report;
mod sequences;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outbox_contract::{Key, Message, MessageId, Topic};

pub use report::{Example, Found, Report};
pub use sequences::KeySequences;

use merge::{Check, Merged};

/// A point in the order of events. Compared, never subtracted.
///
/// [`History::now`] returns moments for one process. The parts of a history that several processes
/// recorded use one clock that all of them can read, such as the nanoseconds of the machine's
/// monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

/// One of the consumers of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConsumerId(usize);

/// Fate of a transaction, as far as its writer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The commit had returned at this moment.
    Committed(Moment),
    /// The transaction was rolled back: none of its messages may ever be delivered.
    RolledBack,
    /// The result is unknown: the messages may be delivered, and may be missing.
    Unknown,
}

/// A recorded transaction.
#[derive(Clone, Copy, Debug)]
struct Transaction {
    /// Before this moment no part of the transaction can be committed. None: not recorded; then the
    /// append of each message counts.
    committing: Option<Moment>,
    fate: Fate,
}

/// Record of the writers' operations and the consumers' deliveries.
///
/// Shared by reference among the tasks of a test. Recording takes a lock for less than a
/// microsecond.
///
/// ```
/// use outbox_contract::{Message, Topic};
/// use outbox_testkit::history::History;
///
/// let history = History::new();
/// let consumer = history.consumer("inventory");
/// let message = Message::new("orders", "order.placed")?.with_key("order-1")?;
///
/// let mut writing = history.begin();
/// writing.append(&message); // before the store is asked to
/// writing.committing(); // before the store is asked to commit
/// writing.committed(); // after its commit returned
/// history.delivered(consumer, &message);
///
/// history.check().assert_exactly_once();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct History {
    // Ahead of everything recorded so far: taking the next moment orders the events of different
    // tasks.
    clock: AtomicU64,
    // A plain mutex: locked for a push, never across an await. Written by every task of the test,
    // read by `check`.
    events: Mutex<Events>,
}

#[derive(Debug, Default)]
struct Events {
    keys: HashMap<OrderKey, u32>,
    transactions: Vec<Transaction>,
    appended: Vec<Appended>,
    consumers: Vec<Consumer>,
    dead: Vec<Died>,
    requeued: Vec<Requeued>,
}

/// A message that became a dead letter, at this moment or later.
#[derive(Clone, Copy, Debug)]
struct Died {
    id: MessageId,
    since: Moment,
    key: u32,
}

/// A dead letter that joined its key again, at this moment or later.
#[derive(Clone, Copy, Debug)]
struct Requeued {
    id: MessageId,
    since: Moment,
}

/// One append of one message. An id may have several: a restarted transaction appends it again.
#[derive(Clone, Debug)]
struct Appended {
    id: MessageId,
    began: Moment,
    key: u32,
    transaction: u32,
    order: u32,
    scheduled: bool,
}

#[derive(Debug)]
struct Consumer {
    name: String,
    topics: Vec<Topic>,
    deliveries: Vec<Delivered>,
}

#[derive(Clone, Copy, Debug)]
struct Delivered {
    id: MessageId,
    at: Moment,
    key: u32,
}

/// Key of the order; messages of a topic without a key are unordered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OrderKey {
    topic: Topic,
    key: Option<Key>,
}

impl History {
    /// Creates an empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the next moment.
    pub fn now(&self) -> Moment {
        Moment(self.clock.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Begins to record a transaction. If it is dropped without a verdict, its fate is unknown, as
    /// that of a canceled commit is.
    pub fn begin(&self) -> Writing<'_> {
        let mut events = self.events();
        let transaction = index(events.transactions.len());
        events.transactions.push(Transaction { committing: None, fate: Fate::Unknown });
        Writing { history: self, transaction, order: 0 }
    }

    /// Records a whole transaction that another process reports: its messages in order, with the
    /// moment at which the append of each began; a moment before it began to commit, if known; and
    /// its fate.
    pub fn record(&self, appended: &[(Moment, &Message)], committing: Option<Moment>, fate: Fate) {
        let mut writing = self.begin();
        for (began, message) in appended {
            writing.push(message, *began, false);
        }
        self.events().transactions[writing.transaction as usize] = Transaction { committing, fate };
    }

    /// Adds a consumer that must receive every message.
    pub fn consumer(&self, name: impl Into<String>) -> ConsumerId {
        self.consumer_of(name, &[])
    }

    /// Adds a consumer that must receive every message of these topics, and of no other, if any is
    /// named.
    pub fn consumer_of(&self, name: impl Into<String>, topics: &[Topic]) -> ConsumerId {
        let mut events = self.events();
        events.consumers.push(Consumer {
            name: name.into(),
            topics: topics.to_vec(),
            deliveries: Vec::new(),
        });
        ConsumerId(events.consumers.len() - 1)
    }

    /// Records that a consumer received a message, now. Call it in the order of reception.
    pub fn delivered(&self, consumer: ConsumerId, message: &Message) {
        self.delivered_id(consumer, message.id, &message.topic, message.key.as_ref(), None);
    }

    /// Records that a consumer received a message of this id, topic and key; at this moment, or
    /// now.
    ///
    /// # Panics
    ///
    /// If the consumer belongs to another history.
    pub fn delivered_id(
        &self,
        consumer: ConsumerId,
        id: MessageId,
        topic: &Topic,
        key: Option<&Key>,
        at: Option<Moment>,
    ) {
        let mut events = self.events();
        // Read under the lock, so that deliveries and their moments are in one order.
        let at = at.unwrap_or_else(|| self.now());
        let key = events.key(topic, key);
        let consumer =
            events.consumers.get_mut(consumer.0).expect("the consumer was introduced to this history");
        consumer.deliveries.push(Delivered { id, at, key });
    }

    /// Records that a message became a dead letter: it may be missing, and no longer has a place in
    /// the order.
    ///
    /// `since` is a moment at which the message was not dead yet, the later the better: deliveries
    /// ahead of it until then are out of order. A poller of dead letters passes a moment before its
    /// last look that did not show the message.
    pub fn dead_lettered(&self, message: &Message, since: Moment) {
        let mut events = self.events();
        let key = events.key(&message.topic, message.key.as_ref());
        events.dead.push(Died { id: message.id, since, key });
    }

    /// Records that a dead letter was requeued: it joins the end of its key again and must be
    /// delivered once more, delivered before or not. `since` is a moment before the request to the
    /// store.
    pub fn requeued(&self, id: MessageId, since: Moment) {
        self.events().requeued.push(Requeued { id, since });
    }

    /// Compares the committed messages with each consumer's deliveries. Runs in O(n log n) time;
    /// recording may continue afterwards.
    #[must_use]
    pub fn check(&self) -> Report {
        let mut events = self.events();
        let events = &mut *events;
        events.appended.sort_unstable_by_key(|appended| (appended.id, appended.transaction, appended.order));
        let keys = events.keys_by_number();
        let mut merged = Merged::of(&events.appended, &events.transactions, &keys);
        let made_up = merged.bury(&events.dead, &events.requeued);
        let mut check = Check::new(&merged, &keys, &made_up);
        for consumer in &events.consumers {
            check.consumer(consumer);
        }
        check.report
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        // A task that panics while it holds the lock leaves whole entries only: each is pushed at
        // once.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Events {
    fn key(&mut self, topic: &Topic, key: Option<&Key>) -> u32 {
        let next = index(self.keys.len());
        *self.keys.entry(OrderKey { topic: topic.clone(), key: key.cloned() }).or_insert(next)
    }

    fn keys_by_number(&self) -> Vec<OrderKey> {
        let mut keys: Vec<(&OrderKey, u32)> = self.keys.iter().map(|(key, number)| (key, *number)).collect();
        keys.sort_unstable_by_key(|(_, number)| *number);
        keys.into_iter().map(|(key, _)| key.clone()).collect()
    }
}

/// Converts a length to an index. Histories have fewer than 4 billion of anything: each entry takes
/// some bytes.
fn index(len: usize) -> u32 {
    u32::try_from(len).expect("a history has fewer than 2^32 entries of a kind")
}

/// A transaction that is being recorded.
#[derive(Debug)]
#[must_use = "a transaction without a verdict is one whose fate is unknown"]
pub struct Writing<'h> {
    history: &'h History,
    transaction: u32,
    order: u32,
}

impl Writing<'_> {
    /// Records that the append of this message begins now. Call it *before* the store's append.
    pub fn append(&mut self, message: &Message) {
        self.push(message, self.history.now(), false);
    }

    /// Like [`append`](Self::append), for a message that is due later. The store decides when it
    /// joins its key, so it has no place in the order.
    pub fn schedule(&mut self, message: &Message) {
        self.push(message, self.history.now(), true);
    }

    /// Records that the transaction is about to commit. Call it *before* the store's commit: an
    /// earlier delivery was of an uncommitted message.
    pub fn committing(&mut self) {
        let now = self.history.now();
        self.history.events().transactions[self.transaction as usize].committing = Some(now);
    }

    /// Records that the commit has returned, now.
    pub fn committed(self) {
        let now = self.history.now();
        self.end(Fate::Committed(now));
    }

    /// Records that the transaction was rolled back, or that its commit certainly failed.
    pub fn rolled_back(self) {
        self.end(Fate::RolledBack);
    }

    /// Records that the result of the commit is unknown.
    pub fn unknown(self) {
        self.end(Fate::Unknown);
    }

    fn end(self, fate: Fate) {
        self.history.events().transactions[self.transaction as usize].fate = fate;
    }

    fn push(&mut self, message: &Message, began: Moment, scheduled: bool) {
        let mut events = self.history.events();
        let key = events.key(&message.topic, message.key.as_ref());
        events.appended.push(Appended {
            id: message.id,
            began,
            key,
            transaction: self.transaction,
            order: self.order,
            scheduled,
        });
        self.order += 1;
    }
}
