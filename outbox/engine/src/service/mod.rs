//! The service: outbox, relay and inboxes of one program, wired once and stopped together.

mod builder;
mod handle;
mod shutdown;

pub use builder::{Service, ServiceBuilder};
pub use handle::ServiceHandle;
pub use shutdown::ShutdownError;
