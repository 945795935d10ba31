//! The harness: what the author of a transport fills in, so that the suite can run against it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::{Topic, Transport};

/// Gives each test of the suite a transport and topics of its own.
///
/// Only [`fresh`](Self::fresh), [`transport`](Self::transport) and [`topic`](Self::topic) must be written. Whatever has to
/// be cleaned up is owned by the harness and cleaned up when it is dropped.
pub trait TransportHarness: Send + Sync + Sized + 'static {
    /// A transport for one test.
    fn fresh() -> impl Future<Output = Self> + Send;

    /// The transport under test. Every call gives the same one.
    fn transport(&self) -> Arc<dyn Transport>;

    /// A topic that nobody has used, made on the broker if it must be, with at least two ordering units unless
    /// [`Capabilities::units`] says otherwise.
    fn topic(&self) -> impl Future<Output = Topic> + Send;

    /// The same broker as another process sees it: a transport with connections and memory of its own. Where there is no
    /// such thing, the same transport.
    fn as_another_process(&self) -> impl Future<Output = Arc<dyn Transport>> + Send {
        async { self.transport() }
    }

    /// What this transport can do beyond what every transport must.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// How long nothing must come before the suite believes that nothing does. Default 500 milliseconds of tokio's time.
    fn quiet(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// Why this transport can't be tested here (the address of its server is not set). None: it can. A test that is skipped says so;
    /// with `REQUIRE_BACKENDS=1` in the environment it fails instead.
    #[must_use]
    fn skipped() -> Option<String> {
        None
    }
}

/// What a transport can do beyond what every transport must, and what the suite needs to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// A topic that does not exist on the broker, or that no queue gets. Default: none, and what is said of such topics
    /// is skipped.
    pub unroutable_topic: Option<Topic>,
    /// A size of payload, in bytes, that the transport never takes. Default: none, and what is said of such messages is skipped.
    pub too_large: Option<usize>,
    /// A size of payload, in bytes, that it does take. Default 512 KiB.
    pub large: usize,
    /// A topic has several ordering units. Default: yes.
    pub units: bool,
    /// Some of a chunk can be seen to have arrived while its publish is still under way. Default: yes; no where a chunk is sent as one, and may
    /// be through before a member sees any of it.
    pub in_parts: bool,
    /// Units move from a living member to one that joins. Default: yes; no where a unit stays until its owner leaves.
    pub units_move: bool,
}

impl Capabilities {
    /// Names a topic that reaches nobody.
    #[must_use]
    pub fn with_unroutable_topic(mut self, topic: Topic) -> Self {
        self.unroutable_topic = Some(topic);
        self
    }

    /// Says how large, in bytes, a payload is that is never taken.
    #[must_use]
    pub const fn with_too_large(mut self, bytes: usize) -> Self {
        self.too_large = Some(bytes);
        self
    }

    /// Says how large, in bytes, a payload is that is taken.
    #[must_use]
    pub const fn with_large(mut self, bytes: usize) -> Self {
        self.large = bytes;
        self
    }

    /// Says whether a topic has several ordering units.
    #[must_use]
    pub const fn with_units(mut self, units: bool) -> Self {
        self.units = units;
        self
    }

    /// Says whether chunks can be seen to arrive in parts.
    #[must_use]
    pub const fn with_in_parts(mut self, in_parts: bool) -> Self {
        self.in_parts = in_parts;
        self
    }

    /// Says whether units move to members that join.
    #[must_use]
    pub const fn with_units_move(mut self, units_move: bool) -> Self {
        self.units_move = units_move;
        self
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            unroutable_topic: None,
            too_large: None,
            large: 512 * 1024,
            units: true,
            in_parts: true,
            units_move: true,
        }
    }
}
