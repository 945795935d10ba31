//! The harness: the part that the author of a transport implements, so that the suite can run
//! against it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Topic;
use outbox_contract::backend::Transport;

/// Gives each test of the suite a transport and topics of its own.
///
/// Only [`fresh`](Self::fresh), [`transport`](Self::transport) and [`topic`](Self::topic) are
/// required. The harness owns everything that has to be cleaned up, and cleans it up when it is
/// dropped.
pub trait TransportHarness: Send + Sync + Sized + 'static {
    /// Creates a transport for one test.
    fn fresh() -> impl Future<Output = Self> + Send;

    /// Returns the transport under test. Every call returns the same one.
    fn transport(&self) -> Arc<dyn Transport>;

    /// Returns an unused topic, created on the broker if necessary, with at least two ordering
    /// units unless [`Capabilities::units`] is false.
    fn topic(&self) -> impl Future<Output = Topic> + Send;

    /// Returns the same broker as another process sees it: a transport with connections and memory
    /// of its own. Where there is no such thing, returns the same transport.
    fn as_another_process(&self) -> impl Future<Output = Arc<dyn Transport>> + Send {
        async { self.transport() }
    }

    /// Returns the optional capabilities of this transport.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Returns the span without deliveries after which the suite concludes that none will arrive.
    /// Default 500 milliseconds of tokio's time.
    fn quiet(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// Returns the reason why this transport can't be tested here (the address of its server is not
    /// set). None: it can. A skipped test reports the reason; with `REQUIRE_BACKENDS=1` in the
    /// environment it fails instead.
    #[must_use]
    fn skipped() -> Option<String> {
        None
    }
}

/// Capabilities of a transport beyond the required ones, and parameters that the suite needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// A topic that does not exist on the broker, or that no queue receives. Default: none, and the
    /// tests of such topics are skipped.
    pub unroutable_topic: Option<Topic>,
    /// A payload size, in bytes, that the transport always rejects. Default: none, and the tests of
    /// such messages are skipped.
    pub too_large: Option<usize>,
    /// A large payload size, in bytes, that it accepts. Default 512 KiB.
    pub large: usize,
    /// A topic has several ordering units. Default: yes.
    pub units: bool,
    /// A part of a batch can be seen to have arrived while its publish is still under way. Default:
    /// yes; no where a batch is sent as one, and may be complete before a member sees any of it.
    pub in_parts: bool,
    /// Units move from a living member to one that joins. Default: yes; no where a unit stays until
    /// its owner leaves.
    pub units_move: bool,
}

impl Capabilities {
    /// Sets a topic without receivers.
    #[must_use]
    pub fn with_unroutable_topic(mut self, topic: Topic) -> Self {
        self.unroutable_topic = Some(topic);
        self
    }

    /// Sets a payload size, in bytes, that is always rejected.
    #[must_use]
    pub const fn with_too_large(mut self, bytes: usize) -> Self {
        self.too_large = Some(bytes);
        self
    }

    /// Sets a large payload size, in bytes, that is accepted.
    #[must_use]
    pub const fn with_large(mut self, bytes: usize) -> Self {
        self.large = bytes;
        self
    }

    /// Sets whether a topic has several ordering units.
    #[must_use]
    pub const fn with_units(mut self, units: bool) -> Self {
        self.units = units;
        self
    }

    /// Sets whether batches can be seen to arrive in parts.
    #[must_use]
    pub const fn with_in_parts(mut self, in_parts: bool) -> Self {
        self.in_parts = in_parts;
        self
    }

    /// Sets whether units move to members that join.
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
