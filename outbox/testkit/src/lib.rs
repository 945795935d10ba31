#![doc = include_str!("../README.md")]

pub mod history;
pub mod store_suite;

pub mod chaos_transport;
pub mod null_transport;
pub mod recording_transport;
pub mod transport_suite;

pub use chaos_transport::{ChaosTransport, Fault, FaultCounts, FaultRates};
pub use null_transport::NullTransport;
pub use recording_transport::RecordingTransport;
