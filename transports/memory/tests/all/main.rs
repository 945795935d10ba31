//! Every test of the transport.

mod conformance;
mod memory_only;
mod sabotage;
