//! Contract of backends: traits and types that only authors of stores and transports meet.

mod frontier;
mod layer;
mod operate;

pub use frontier::{Frontier, OpenWriters, StripeMarks};
pub use layer::{StoreCall, StoreLayer, TransactionalLayer, TransportLayer};
pub use operate::{Archive, Death, KeyOperation, Listed, Steered, View};
