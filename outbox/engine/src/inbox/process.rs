//! Handling of messages, whatever the store and the handlers are: the only way into a handler.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_contract::backend::Stored;
use outbox_contract::{Message, Timestamp, Topic};
use tokio::time::Instant;

use super::verdict::{StoreFailure, TransactionError, Verdict};

/// A message that is to be handled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work<'a> {
    pub(crate) message: &'a Message,
    /// Number of this attempt, from 1.
    pub(crate) attempt: u32,
    /// Its row, if it comes from the store.
    pub(crate) stored: Option<&'a Stored>,
}

impl Work<'_> {
    /// Returns what is to be noted as handled of a message that stands in the place of another one
    /// in the store: the fence tells that it is that one's turn, so it is not asked for its own.
    pub(crate) fn without_turn(&self) -> Option<Message> {
        self.stored.filter(|stored| stored.message.id != self.message.id)?;
        let (topic, event_type) = (self.message.topic.clone(), Arc::clone(&self.message.event_type));
        Some(Message::of(self.message.id, topic, event_type))
    }
}

/// Purpose of a transaction.
pub(crate) struct Errand<'a> {
    pub(crate) origin: Origin,
    /// True if the message may take its handler's whole time: its last try came to nothing. Such
    /// never have all turns.
    pub(crate) is_suspect: bool,
    /// Asked when its turn has come: returns false if it is not to be done any more.
    pub(crate) is_wanted: &'a (dyn Fn() -> bool + Send + Sync),
}

/// Origin of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From the broker: a message behind others is stored behind them.
    Broker,
    /// From the store: a message behind others stays where it is. Its caller waits until this
    /// instant, and others wait behind it: so apart from the first, nothing is begun that may not
    /// end by then, and no caller waits long for a busy handler.
    Store { until: Instant },
}

impl Origin {
    /// Returns true if there is time for something that may take this long.
    pub(crate) fn has_time(self, takes: Duration) -> bool {
        match self {
            Self::Broker => true,
            Self::Store { until } => Instant::now() + takes <= until,
        }
    }

    pub(crate) const fn is_store(self) -> bool {
        matches!(self, Self::Store { .. })
    }
}

/// Handles messages, whatever the store and the handlers are.
#[async_trait]
pub(crate) trait Process: Send + Sync + 'static {
    /// Returns the handler that a message goes to, if any.
    fn handler_of(&self, message: &Message) -> Option<usize>;

    /// Handles messages: those of one key in the order given. Several go through one transaction;
    /// if that comes to nothing, each through one of its own. Says what became of each as soon as
    /// it is known; behind one that is not finished, no other of its key is tried.
    ///
    /// Cancellation: what is open is rolled back; a commit on its way may or may not happen.
    async fn process(
        &self,
        errand: &Errand<'_>,
        works: &[Work<'_>],
        said: &mut (dyn FnMut(usize, Verdict) + Send),
    ) -> Result<(), StoreFailure>;

    /// Writes messages behind those that wait in the store for this consumer, in this order, in one
    /// transaction. One that the store refuses to keep is replaced by one that stands for it and
    /// becomes a dead letter.
    ///
    /// After a commit of unknown result it is repeated: the messages may then be stored twice, and
    /// are handled once. Returns false if no transaction was available in time, and not all are
    /// written.
    async fn store(&self, errand: &Errand<'_>, messages: &[&Message]) -> Result<bool, StoreFailure>;

    /// Returns the hour in which the consumer last handled a topic, if the store knows one.
    async fn last_handled(
        &self,
        topic: &Topic,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, TransactionError>;

    /// Notes that the consumer handles topics now.
    async fn note_handled(&self, topics: &[Topic], now: Timestamp) -> Result<(), TransactionError>;
}
