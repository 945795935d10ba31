#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod chaos_store;
pub mod feed;
pub mod history;
#[cfg(feature = "inbox")]
pub mod inbox_suite;
pub mod store_suite;
mod suite;
pub mod time;
pub mod warnings;

pub mod chaos_transport;
pub mod null_transport;
pub mod recording_transport;
pub mod scenario;
pub mod transport_suite;

pub use chaos_store::{ChaosStore, CommitFault, StoreFault, StoreFaultCounts, StoreFaultRates};
pub use chaos_transport::{ChaosTransport, Fault, FaultCounts, FaultRates};
pub use feed::Feed;
pub use history::{History, KeySequences, Report};
pub use null_transport::NullTransport;
pub use outbox_contract::backend::StoreCall;
pub use recording_transport::RecordingTransport;
pub use scenario::{Expect, Scenario};
pub use time::{Ids, TestClock, eventually, until_owned};
pub use warnings::Warnings;
