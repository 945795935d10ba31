//! Shutdown of a service: the order, and one deadline for all of it.

use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;
use ractor::ActorCell;
use tokio::time::Instant;

use crate::inbox::InboxHandle;
use crate::relay::RelayHandle;

/// The running parts of a service.
pub(crate) struct Parts {
    pub(crate) relay: Option<RelayHandle>,
    pub(crate) inboxes: Vec<InboxHandle>,
}

impl Parts {
    /// Returns the actors without a parent, with their names.
    pub(crate) fn roots(&self) -> Vec<(String, ActorCell)> {
        let relay = self.relay.iter().flat_map(|relay| relay.observer().roots());
        let relay = relay.map(|(name, root)| (format!("relay: {name}"), root));
        relay.chain(self.inboxes.iter().flat_map(|inbox| inbox.observer().roots())).collect()
    }

    /// Stops everything in order. Dropping the future ends the rest as a crash would.
    ///
    /// Inboxes on a broker come first, because the relay still sends what their handlers published.
    /// Inboxes within the process come last, because the relay's messages are confirmed by them.
    pub(crate) async fn stop(self, deadline: Duration) -> Result<(), ShutdownError> {
        let begun = Instant::now();
        // No instant of the end: a deadline may be beyond any clock.
        let share = |others_follow| share(deadline.saturating_sub(begun.elapsed()), others_follow);
        let (within, of_brokers): (Vec<_>, Vec<_>) =
            self.inboxes.into_iter().partition(|inbox| inbox.observer().is_in_process());
        let mut unfinished = stop_all(of_brokers, share(true)).await;
        if let Some(relay) = self.relay
            && !relay.stop(share(!within.is_empty())).await
        {
            unfinished.push("relay".to_owned());
        }
        unfinished.extend(stop_all(within, share(false)).await);
        if unfinished.is_empty() {
            Ok(())
        } else {
            Err(ShutdownError { unfinished, deadline: Some(deadline) })
        }
    }
}

/// Returns the time that a step may take: two thirds of the rest if others follow.
fn share(rest: Duration, others_follow: bool) -> Duration {
    if others_follow { rest / 3 * 2 } else { rest }
}

/// Stops inboxes side by side. Returns those that did not finish.
async fn stop_all(inboxes: Vec<InboxHandle>, deadline: Duration) -> Vec<String> {
    let stops = inboxes.into_iter().map(|inbox| async move {
        let name = format!("inbox {}", inbox.observer().consumer());
        (!inbox.stop(deadline).await).then_some(name)
    });
    join_all(stops).await.into_iter().flatten().collect()
}

/// Error of a service that did not finish before its deadline, or of which a part had ended by a
/// bug. It has ended nevertheless, as after
/// a crash: nothing is lost, and messages in flight are sent or handled again.
#[derive(Clone, PartialEq, Eq)]
pub struct ShutdownError {
    unfinished: Vec<String>,
    deadline: Option<Duration>,
}

impl ShutdownError {
    /// Error of a shutdown that was canceled half-way.
    pub(crate) fn canceled() -> Self {
        Self { unfinished: Vec::new(), deadline: None }
    }

    /// Returns the stable code of this error, as the book's page on errors lists it.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "OBX-SHUTDOWN-UNFINISHED"
    }

    /// Returns the parts that did not finish, or had ended, such as `relay` and `inbox billing`.
    /// Empty after a shutdown that was canceled.
    #[must_use]
    pub fn unfinished(&self) -> &[String] {
        &self.unfinished
    }
}

impl fmt::Display for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.deadline {
            Some(deadline) => {
                let parts = self.unfinished.join(", ");
                write!(f, "not drained within {deadline:?}, or ended before: {parts}")?;
            }
            None => f.write_str("the shutdown was canceled before it was done")?,
        }
        write!(f, "; nothing is lost: what was in flight is sent or handled again [{}]", self.code())
    }
}

/// The text: a `main` that returns an error prints it so.
impl fmt::Debug for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ShutdownError {}
