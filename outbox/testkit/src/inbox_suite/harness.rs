//! The harness: what the author of a store fills in besides [`StoreHarness`], so that inboxes can run on it.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::{MessageId, Transactional};

use crate::store_suite::StoreHarness;

/// What a handler of the suite has done: what a business write is in a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Effect {
    /// The key of the message that was handled: text, at most 100 bytes.
    pub key: String,
    /// The message.
    pub message: MessageId,
}

/// What an [`Effect`] can't be written or read for: the driver's error, as a handler returns it.
pub type EffectError = Box<dyn Error + Send + Sync>;

/// Where handlers of the suite write in the store's own transactions.
///
/// Clones write to the same place: a table of its own, say, with a column that counts up, and **without** a unique one: an effect that
/// is written twice has to be seen twice.
pub trait Effects<S: Transactional>: Clone + Send + Sync + 'static {
    /// Writes an effect, in this transaction and no other.
    ///
    /// # Errors
    ///
    /// Those of the driver, as they are: the inbox finds out which of them say that the transaction can be started again.
    fn write(
        &self,
        tx: &mut S::Tx<'static>,
        effect: Effect,
    ) -> impl Future<Output = Result<(), EffectError>> + Send;

    /// Every effect that is committed; those of one key in the order in which they were written.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    fn read(&self) -> impl Future<Output = Result<Vec<Effect>, EffectError>> + Send;
}

/// Gives each test of the suite a store of its own, and a place for effects in it.
pub trait InboxHarness: StoreHarness {
    /// The place.
    type Effects: Effects<Self::Store>;

    /// Makes the place, empty, in the database of [`store`](StoreHarness::store). Called once for each test.
    fn effects(&self) -> impl Future<Output = Self::Effects> + Send;

    /// For how long the store keeps admitted ids, where the test can let that much time go by with [`advance`](StoreHarness::advance). None:
    /// it can't, as with a real clock. Then it is not tested that they are forgotten at last.
    fn admissions_kept(&self) -> Option<Duration> {
        None
    }
}

/// The store of a harness, with faults to be had.
pub(super) type Faulty<H> = Arc<crate::ChaosStore<<H as StoreHarness>::Store>>;
