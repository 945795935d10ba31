//! The handle of a running service.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use outbox_contract::{Codec, Json, Outbox, Transactional};

use super::shutdown::{Parts, ShutdownError};
use crate::health::{Health, ReasonKind, Status};
use crate::inbox::{InboxHandle, InboxObserver};
use crate::relay::{RelayHandle, RelayObserver};
use crate::restart::first_ended;

/// A running service. Clones share it: one for each handler of a web server, say.
///
/// [`run_until`](Self::run_until) or [`shutdown`](Self::shutdown) ends it in order. Dropping the
/// last clone without that ends it at once, as a crash would, and logs a warning.
pub struct ServiceHandle<S: Transactional, C: Codec = Json> {
    outbox: Outbox<S, C>,
    running: Arc<Running>,
}

struct Running {
    // `None` from the shutdown on. Held for a few instructions, never across an await.
    parts: Mutex<Option<Parts>>,
    relay: Option<RelayObserver>,
    inboxes: Vec<InboxObserver>,
    shutdown_within: Duration,
    // Result of the shutdown. Held while it takes place, so that others wait for its end.
    ended: tokio::sync::Mutex<Option<Result<(), ShutdownError>>>,
}

impl<S: Transactional, C: Codec> Clone for ServiceHandle<S, C> {
    fn clone(&self) -> Self {
        Self { outbox: self.outbox.clone(), running: Arc::clone(&self.running) }
    }
}

impl<S: Transactional, C: Codec> fmt::Debug for ServiceHandle<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let consumers = self.running.inboxes.iter().map(|inbox| inbox.consumer().as_str());
        f.debug_struct("ServiceHandle")
            .field("relay", &self.running.relay)
            .field("inboxes", &consumers.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl<S: Transactional, C: Codec> ServiceHandle<S, C> {
    pub(crate) fn new(
        outbox: Outbox<S, C>,
        relay: Option<RelayHandle>,
        inboxes: Vec<InboxHandle>,
        shutdown_within: Duration,
    ) -> Self {
        let running = Running {
            relay: relay.as_ref().map(|relay| relay.observer().clone()),
            inboxes: inboxes.iter().map(|inbox| inbox.observer().clone()).collect(),
            parts: Mutex::new(Some(Parts { relay, inboxes })),
            shutdown_within,
            ended: tokio::sync::Mutex::new(None),
        };
        Self { outbox, running: Arc::new(running) }
    }

    /// Returns the outbox, to append to in your transactions. Cheap to clone.
    #[must_use]
    pub fn outbox(&self) -> &Outbox<S, C> {
        &self.outbox
    }

    /// Returns the health of relay and inboxes together (promise P9): the worst status, and every
    /// reason.
    ///
    /// For alarms, not for probes: when the broker is away, every instance is unhealthy at once,
    /// and a probe would take down all of them.
    #[must_use]
    pub fn health(&self) -> Health {
        let mut health = Health::good();
        match &*self.running.parts() {
            Some(Parts { relay, inboxes }) => {
                let of_relay = relay.iter().map(RelayHandle::health);
                of_relay.chain(inboxes.iter().map(InboxHandle::health)).for_each(|part| health.merge(part));
            }
            None => {
                health.add(Status::Unhealthy, ReasonKind::Ended, "the service was shut down".to_owned());
            }
        }
        health
    }

    /// Returns the read-only view of the relay: its statistics, its backlog, routes without a
    /// relay. `None` in a service without a relay.
    #[must_use]
    pub fn relay(&self) -> Option<&RelayObserver> {
        self.running.relay.as_ref()
    }

    /// Returns the view of an inbox: its statistics, its backlog, what the broker has for it, and
    /// the operations that pause it. `None` if no inbox has this name.
    #[must_use]
    pub fn inbox(&self, consumer: &str) -> Option<&InboxObserver> {
        self.running.inboxes.iter().find(|inbox| inbox.consumer().as_str() == consumer)
    }

    /// Runs until the signal completes, then [shuts down](Self::shutdown) within the deadline of
    /// the [builder](super::ServiceBuilder::shutdown_within).
    ///
    /// Any future is a signal: `tokio::signal::ctrl_c()`, `token.cancelled()`, a channel. If a part
    /// has ended before by a bug, the service shuts down too, and the error names it: exit then, so
    /// that the process is started again.
    ///
    /// # Errors
    ///
    /// As [`shutdown`](Self::shutdown).
    pub async fn run_until(&self, signal: impl Future) -> Result<(), ShutdownError> {
        let ended = std::pin::pin!(self.running.root_ended());
        if let Either::Right((part, _)) = select(std::pin::pin!(signal), ended).await
            && self.running.parts().is_some()
        {
            tracing::error!(part, "a supervisor has ended by a bug; shutting the service down");
        }
        self.shutdown(self.running.shutdown_within).await
    }

    /// Drains and stops (promise P8), with one deadline for all parts: inboxes that receive from a
    /// broker, then the relay, which still sends what their handlers published, then inboxes within
    /// the process, which confirm what the relay has in flight.
    ///
    /// A second call waits for the first, and returns its result.
    ///
    /// *Cancellation*: what has not stopped yet ends as after a crash.
    ///
    /// # Errors
    ///
    /// Names the parts that did not finish in time, or had ended before by a bug. All have ended
    /// then, and nothing is lost.
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), ShutdownError> {
        let mut ended = self.running.ended.lock().await;
        if let Some(result) = &*ended {
            return result.clone();
        }
        *ended = Some(Err(ShutdownError::canceled()));
        let parts = self.running.parts().take();
        let result = match parts {
            Some(parts) => parts.stop(deadline).await,
            None => Ok(()),
        };
        *ended = Some(result.clone());
        result
    }
}

impl Running {
    /// Waits until an actor without a parent has ended. Returns its name.
    async fn root_ended(&self) -> String {
        let roots = self.parts().as_ref().map(Parts::roots).unwrap_or_default();
        first_ended(roots).await
    }

    fn parts(&self) -> MutexGuard<'_, Option<Parts>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.parts().is_some() {
            tracing::warn!(
                "a service was dropped without a shutdown: it ends as after a crash, and what was in flight is repeated; call `shutdown` or `run_until`"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::future::pending;

    use outbox_contract::Message;
    use outbox_store_memory::MemoryStore;
    use outbox_testkit::Feed;

    use super::*;
    use crate::inbox::HandlerContext;
    use crate::mediator::HandlerError;
    use crate::service::Service;

    async fn nothing(_: Message, _: &mut HandlerContext<'_, MemoryStore>) -> Result<(), HandlerError> {
        Ok(())
    }

    async fn service() -> ServiceHandle<MemoryStore> {
        let service = Service::builder("shop", MemoryStore::new(), Feed::new());
        let service = service.inbox("billing", |inbox| inbox.topic("orders").on_any(nothing));
        service.start().await.unwrap()
    }

    fn roots(service: &ServiceHandle<MemoryStore>) -> Vec<(String, ractor::ActorCell)> {
        service.running.parts().as_ref().map(Parts::roots).unwrap_or_default()
    }

    /// An actor without a parent is restarted by no one, so its end must not go unnoticed.
    #[tokio::test(start_paused = true)]
    async fn a_service_ends_when_a_supervisor_without_a_parent_is_killed() {
        let names: Vec<String> = roots(&service().await).into_iter().map(|(name, _)| name).collect();
        let unique: BTreeSet<&String> = names.iter().collect();
        assert_eq!((names.len(), unique.len()), (5, 5), "{names:?}");
        for (at, name) in names.iter().enumerate() {
            let service = service().await;
            let running = tokio::spawn({
                let service = service.clone();
                async move { service.run_until(pending::<()>()).await }
            });
            tokio::time::sleep(Duration::from_secs(30)).await;
            assert!(!running.is_finished());
            roots(&service)[at].1.kill();
            let ended = tokio::time::timeout(Duration::from_secs(60), running).await;
            let error = ended.expect("the end is noticed").unwrap().unwrap_err();
            let part = if name.starts_with("relay") { "relay" } else { "inbox billing" };
            assert_eq!(error.unfinished(), [part], "{name}");
            assert!(roots(&service).is_empty(), "it has shut down");
        }
    }

    /// Whoever wants to wait for as long as it takes says so with the longest duration.
    #[tokio::test(start_paused = true)]
    async fn a_shutdown_may_take_as_long_as_it_takes() {
        let service = service().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        service.shutdown(Duration::MAX).await.unwrap();
    }

    /// Another clone shuts down: that is no bug.
    #[tokio::test(start_paused = true)]
    async fn a_run_ends_with_the_result_of_a_shutdown_elsewhere() {
        let service = service().await;
        let running = tokio::spawn({
            let service = service.clone();
            async move { service.run_until(pending::<()>()).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        service.shutdown(Duration::from_secs(20)).await.unwrap();
        running.await.unwrap().unwrap();
    }
}
