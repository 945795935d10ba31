//! The harness: the part that the author of a store implements in addition to [`StoreHarness`], so
//! that inboxes can run on it.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use outbox_contract::{MessageId, Transactional};

use crate::store_suite::StoreHarness;

/// Effect of a handler of the suite: it models a business write of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Effect {
    /// The key of the handled message: text, at most 100 bytes.
    pub key: String,
    /// The message.
    pub message: MessageId,
}

/// Error of writing or reading an [`Effect`]: the driver's error, as a handler returns it.
pub type EffectError = Box<dyn Error + Send + Sync>;

/// Place where handlers of the suite write in the store's own transactions.
///
/// Clones write to the same place: for example a table of its own, with an auto-increment column
/// and **without** a unique constraint. The test must see an effect that is written twice.
pub trait Effects<S: Transactional>: Clone + Send + Sync + 'static {
    /// Writes an effect, in the transaction of this connection and no other.
    ///
    /// # Errors
    ///
    /// The driver's errors, unchanged: the inbox finds out which of them allow a restart of the
    /// transaction.
    fn write(
        &self,
        tx: &mut S::Connection,
        effect: Effect,
    ) -> impl Future<Output = Result<(), EffectError>> + Send;

    /// Returns every committed effect; those of one key in the order in which they were written.
    ///
    /// # Errors
    ///
    /// The driver's errors.
    fn read(&self) -> impl Future<Output = Result<Vec<Effect>, EffectError>> + Send;
}

/// Gives each test of the suite a store of its own, and a place for effects in it.
pub trait InboxHarness: StoreHarness {
    /// The place for effects.
    type Effects: Effects<Self::Store>;

    /// Creates the place, empty, in the database of [`store`](StoreHarness::store). Called once for
    /// each test.
    fn effects(&self) -> impl Future<Output = Self::Effects> + Send;
}

/// The store of a harness, wrapped for fault injection.
pub(super) type Faulty<H> = Arc<crate::ChaosStore<<H as StoreHarness>::Store>>;
