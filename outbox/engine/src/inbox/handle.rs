//! The handle of a running inbox.

use std::time::Duration;

use futures_util::future::join;

use super::observer::InboxObserver;
use super::stats::InboxStats;
use super::supervisor::InboxMsg;
use crate::health::Health;
use crate::relay::RelayHandle;

/// A running inbox. Dropping it ends the inbox at once, like a crash: running handlers are rolled
/// back, and unacknowledged messages are delivered again. Call [`stop`](Self::stop) for a clean
/// end.
#[derive(Debug)]
#[must_use = "dropping the handle ends the inbox"]
pub struct InboxHandle {
    pub(super) observer: InboxObserver,
    pub(super) drain: Option<RelayHandle>,
}

impl InboxHandle {
    /// Takes no more messages, finishes and acknowledges those in progress, returns its leases,
    /// then stops (promise P8).
    ///
    /// Returns true if everything was done within the deadline. If not, the inbox was ended as by a
    /// kill: nothing is lost, and unacknowledged messages are delivered again. Dropping the future
    /// has the same effect.
    pub async fn stop(mut self, deadline: Duration) -> bool {
        let receiving = async {
            let Some(supervisor) = &self.observer.supervisor else { return true };
            let answer = supervisor.call(InboxMsg::Stop, Some(deadline)).await;
            matches!(answer, Ok(ractor::rpc::CallResult::Success(true)))
        };
        let drain = self.drain.take();
        let draining = async {
            match drain {
                Some(drain) => drain.stop(deadline).await,
                None => true,
            }
        };
        let (received, drained) = join(receiving, draining).await;
        received && drained
    }

    /// Returns the view of the inbox, with everything that is known of it, and with the operations
    /// that pause it.
    #[must_use]
    pub fn observer(&self) -> &InboxObserver {
        &self.observer
    }

    /// Returns counters since the start of the inbox, and its deliveries in memory.
    #[must_use]
    pub fn stats(&self) -> InboxStats {
        self.observer.stats()
    }

    /// Returns the health of the inbox (promise P9).
    #[must_use]
    pub fn health(&self) -> Health {
        self.observer.health()
    }
}

impl Drop for InboxHandle {
    fn drop(&mut self) {
        if let Some(supervisor) = &self.observer.supervisor {
            supervisor.get_cell().kill();
        }
    }
}
