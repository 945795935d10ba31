//! What the engine shows of itself: spans that belong to the trace of the messages that they are about.

mod propagation;

pub use propagation::consume_span;
pub(crate) use propagation::publish_span;
