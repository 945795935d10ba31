//! Points between the steps of handling, for tests that stop a process at each of them.

use std::fmt;
use std::sync::Arc;

/// A step that is over. A process that dies right behind any of them must leave each effect done
/// once, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[cfg_attr(not(feature = "test-util"), expect(unreachable_pub, reason = "public with the feature only"))]
pub enum Step {
    /// Messages came in.
    Received,
    /// A transaction was begun.
    Begun,
    /// The ids are noted in it.
    Deduplicated,
    /// The handlers have written.
    Handled,
    /// Emitted messages, and those that go behind others, are appended.
    Appended,
    /// It is committed.
    Committed,
    /// The broker was told.
    Acknowledged,
}

impl Step {
    /// Every step, in order.
    #[cfg(feature = "test-util")]
    pub const ALL: [Self; 7] = [
        Self::Received,
        Self::Begun,
        Self::Deduplicated,
        Self::Handled,
        Self::Appended,
        Self::Committed,
        Self::Acknowledged,
    ];
}

/// Listener to the steps.
#[derive(Clone, Default)]
pub(crate) struct Steps(Option<Arc<dyn Fn(Step) + Send + Sync>>);

impl Steps {
    #[cfg(feature = "test-util")]
    pub(crate) fn new(told: impl Fn(Step) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(told)))
    }

    pub(crate) fn over(&self, step: Step) {
        if let Some(told) = &self.0 {
            told(step);
        }
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Steps").field(&self.0.is_some()).finish()
    }
}
