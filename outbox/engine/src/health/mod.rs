//! Health of a relay, an inbox or a service: a status with its reasons.

mod reason;

pub use reason::{Reason, ReasonKind};

/// Health status of a relay or an inbox. These three are all: programs may match them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// The relay works.
    Healthy,
    /// The relay works, but something needs attention: a held key, one that keeps failing, a dead
    /// letter, a topic or transport that is unavailable, messages of a route that no running relay serves, or messages
    /// below the position up to which the relay had read.
    Degraded,
    /// Messages are not delivered.
    Unhealthy,
}

/// Health of a relay, with every reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Worst status of the reasons.
    pub status: Status,
    /// One for each problem. Empty when the relay is healthy.
    pub reasons: Vec<Reason>,
}

impl Health {
    /// Returns the health of something without a problem.
    pub(crate) const fn good() -> Self {
        Self { status: Status::Healthy, reasons: Vec::new() }
    }

    /// Adds what another part reports. Several parts may report the same of one store.
    pub(crate) fn merge(&mut self, other: Self) {
        self.status = self.status.max(other.status);
        for reason in other.reasons {
            if !self.reasons.contains(&reason) {
                self.reasons.push(reason);
            }
        }
    }

    pub(crate) fn add(&mut self, status: Status, kind: ReasonKind, text: String) {
        self.status = self.status.max(status);
        self.reasons.push(Reason { kind, status, text });
    }
}
