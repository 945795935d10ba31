//! The harness: the part that the author of a transport implements, so that the suite can run
//! against it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Topic;
use outbox_contract::backend::Transport;

/// Gives each test of the suite a transport and topics of its own.
///
/// Every method without a default is required, and so is each that a [`Capability`] names, unless
/// [`LACKS`](Self::LACKS) has it: without either, the properties that need it fail. The harness owns
/// everything that has to be cleaned up, and cleans it up when it is dropped.
pub trait TransportHarness: Send + Sync + Sized + 'static {
    /// Capabilities that the transport lacks. The suite does not test the properties that need them.
    /// Default: none.
    const LACKS: &'static [Capability] = &[];

    /// Creates a transport for one test.
    fn fresh() -> impl Future<Output = Self> + Send;

    /// Returns the transport under test. Every call returns the same one.
    fn transport(&self) -> Arc<dyn Transport>;

    /// Returns an unused topic, created on the broker if necessary, with at least two ordering
    /// units unless [`Capability::Units`] is lacking.
    fn topic(&self) -> impl Future<Output = Topic> + Send;

    /// Returns the same broker as another process sees it: a transport with connections and memory
    /// of its own. Where there is no such thing, returns the same transport.
    fn as_another_process(&self) -> impl Future<Output = Arc<dyn Transport>> + Send {
        async { self.transport() }
    }

    /// Returns a topic that does not exist on the broker, or that no queue receives. See
    /// [`Capability::UnroutableTopic`].
    fn unroutable_topic(&self) -> Topic {
        missing(Capability::UnroutableTopic)
    }

    /// Returns a payload size, in bytes, that the transport always rejects. See
    /// [`Capability::SizeLimit`].
    fn too_large(&self) -> usize {
        missing(Capability::SizeLimit)
    }

    /// Returns a large payload size, in bytes, that it accepts. Default 512 KiB.
    fn large(&self) -> usize {
        512 * 1024
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

/// Something that not every transport has. Every property of the suite is tested unless
/// [`TransportHarness::LACKS`] names what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capability {
    /// A topic may have no receivers: [`TransportHarness::unroutable_topic`].
    UnroutableTopic,
    /// A message may be too large: [`TransportHarness::too_large`].
    SizeLimit,
    /// A topic has several ordering units.
    Units,
    /// Units move from a living member to one that joins. Lacking where a unit stays until its owner
    /// leaves.
    MovingUnits,
    /// A part of a batch can be seen to have arrived while its publish is still under way. Lacking
    /// where a batch is sent as one, and may be complete before a member sees any of it.
    BatchesInParts,
}

/// Returns true if a harness does not lack this capability.
pub(super) fn has<H: TransportHarness>(capability: Capability) -> bool {
    !H::LACKS.contains(&capability)
}

fn missing<T>(capability: Capability) -> T {
    panic!("implement the method of the harness that Capability::{capability:?} names, or add it to LACKS")
}
