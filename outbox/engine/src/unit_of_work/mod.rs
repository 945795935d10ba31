//! The unit of work: a transaction, and the events that were raised in it.

mod error;
mod event_log;
mod version;

use std::any::Any;
use std::fmt;

use outbox_contract::backend::Committed;
use outbox_contract::{AppendOptions, Codec, DomainEvent, Json, Outgoing, Transactional};
use serde::Serialize;

pub use error::WorkError;
pub(crate) use error::{blame, blame_of_store};
pub use event_log::{Aggregate, EventLog};
pub use version::VersionMismatch;

use crate::mediator::{Cascade, Limits, Mediator};

type Event = Box<dyn Any + Send + Sync>;

/// A transaction and the events raised in it, which commit together or not at all.
///
/// [`tx`](Self::tx) runs queries in it. Events are [published](Self::publish), or
/// [collected](Self::collect) from aggregates. [`commit`](Self::commit) passes them to the handlers
/// of the [`Mediator`], in the same transaction, appends those that have a topic, commits, and
/// wakes the relay.
///
/// Dropping it rolls back.
///
/// # Deadlocks
///
/// Events are appended at the end, all at once and in the order of their keys. Two units of work
/// therefore never wait for each other's keys. An `outbox.append(work.transaction(), …)` in between
/// takes its keys early, and then they can: the database ends one of the two with a conflict.
pub struct UnitOfWork<S: Transactional, C: Codec = Json> {
    mediator: Mediator<S, C>,
    tx: S::Tx<'static>,
    cascade: Cascade<Event>,
    messages: Vec<Outgoing>,
}

impl<S: Transactional, C: Codec> UnitOfWork<S, C> {
    pub(crate) fn new(mediator: Mediator<S, C>, tx: S::Tx<'static>, limits: Limits) -> Self {
        Self { mediator, tx, cascade: Cascade::new(limits), messages: Vec::new() }
    }

    /// Returns the connection of the transaction, for your queries: `query.execute(work.tx())`.
    /// With MongoDB it is the session.
    pub fn tx(&mut self) -> &mut S::Connection {
        S::connection(&mut self.tx)
    }

    /// Returns the driver's own transaction, where its type is needed: to append with another
    /// [`Outbox`](outbox_contract::Outbox), or to open a savepoint. Do not end it: use
    /// [`commit`](Self::commit) or [`rollback`](Self::rollback).
    pub fn transaction(&mut self) -> &mut S::Tx<'static> {
        &mut self.tx
    }

    /// Publishes an event: its handlers receive it before the commit, and if it has a topic it is
    /// appended.
    ///
    /// It is encoded now, and occurs now: `occurred_at` is the time of this call.
    ///
    /// # Errors
    ///
    /// [`WorkError::Append`] for an invalid message, which leaves the unit of work unchanged.
    /// [`WorkError::TooDeep`] and [`WorkError::TooMany`] at the mediator's limits: the unit can no
    /// longer commit.
    pub fn publish<E>(&mut self, event: E) -> Result<(), WorkError>
    where
        E: DomainEvent + Serialize + Send + Sync + 'static,
    {
        self.publish_with(event, AppendOptions::new())
    }

    /// Publishes an event with headers, or at a later time. Its handlers receive it before the
    /// commit; only its message is sent later.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish).
    pub fn publish_with<E>(&mut self, event: E, options: AppendOptions) -> Result<(), WorkError>
    where
        E: DomainEvent + Serialize + Send + Sync + 'static,
    {
        let kind = event.event_type();
        let outgoing = match kind.is_local() {
            true => None,
            false => Some(options.apply(self.mediator.outbox().encode(&event)?)?),
        };
        self.cascade.record(kind.name, Box::new(event))?;
        self.messages.extend(outgoing);
        Ok(())
    }

    /// Publishes the events that an aggregate has recorded, in its order, and takes them out of its
    /// log.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish). Taken events are not put back: read the aggregate again
    /// before another attempt.
    pub fn collect<A: Aggregate>(&mut self, aggregate: &mut A) -> Result<(), WorkError> {
        aggregate.events().take().into_iter().try_for_each(|event| self.publish(event))
    }

    /// Passes the events to their handlers, appends those with a topic, commits, and wakes relays
    /// of this process.
    ///
    /// *Cancellation*: rolled back while handlers run; unknown during the commit.
    ///
    /// # Errors
    ///
    /// Any error but [`WorkError::Unknown`] means that nothing is committed. After `Unknown` the
    /// connection was lost during the commit, which may or may not have happened. Read the database
    /// before you repeat the work.
    pub async fn commit(mut self) -> Result<(), WorkError> {
        if let Err(error) = self.handle_and_append().await {
            let error = self.mediator.classified(error);
            self.rollback().await;
            return Err(error);
        }
        let Self { mediator, tx, .. } = self;
        match mediator.outbox().store().commit(tx).await {
            Committed::Yes => Ok(()),
            Committed::No(error) => Err(mediator.classified(WorkError::Store(error))),
            Committed::Unknown(error) => Err(WorkError::Unknown(error)),
        }
    }

    /// Does what [`commit`](Self::commit) does before the commit, and returns the transaction:
    /// commit it yourself.
    ///
    /// A relay of this process then looks a little later than after `commit`, unless you call
    /// [`wakeup_signal().committed()`](outbox_contract::backend::WakeupSignal::committed) of the
    /// store.
    ///
    /// *Cancellation*: rolled back.
    ///
    /// # Errors
    ///
    /// As `commit`; the transaction is rolled back.
    pub async fn finish(mut self) -> Result<S::Tx<'static>, WorkError> {
        match self.handle_and_append().await {
            Ok(()) => Ok(self.tx),
            Err(error) => {
                let error = self.mediator.classified(error);
                self.rollback().await;
                Err(error)
            }
        }
    }

    /// Rolls back now. Dropping does the same, later on some drivers.
    pub async fn rollback(self) {
        // It is rolled back in any case: at the latest when the database notices the lost
        // connection.
        if let Err(error) = self.mediator.outbox().store().rollback(self.tx).await {
            tracing::debug!(%error, "the rollback of a unit of work was not confirmed");
        }
    }

    async fn handle_and_append(&mut self) -> Result<(), WorkError> {
        while let Some((name, event)) = self.cascade.next() {
            // Cloned, because a handler receives the whole unit of work.
            let mediator = self.mediator.clone();
            for handler in mediator.handlers_of((*event).type_id()) {
                let handled = handler.handle(&*event, self).await;
                // An overrun comes first: a handler that passes it on has only reworded it.
                self.check_overrun()?;
                handled.map_err(|source| WorkError::Handler {
                    event: name,
                    handler: handler.name,
                    source,
                })?;
            }
        }
        self.check_overrun()?;
        if self.messages.is_empty() {
            return Ok(());
        }
        let mut messages = std::mem::take(&mut self.messages);
        // A stable sort: within a key, the order of publishing.
        messages.sort_by_cached_key(|outgoing| outgoing.message.key_id());
        let mediator = self.mediator.clone();
        mediator.outbox().append_messages(&mut self.tx, messages).await?;
        Ok(())
    }

    fn check_overrun(&self) -> Result<(), WorkError> {
        self.cascade.overrun().map_or(Ok(()), |overrun| Err(overrun.clone().into()))
    }
}

impl<S: Transactional, C: Codec> fmt::Debug for UnitOfWork<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnitOfWork").field("messages", &self.messages).finish_non_exhaustive()
    }
}
