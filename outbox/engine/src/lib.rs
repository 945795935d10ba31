#![doc = include_str!("../README.md")]

mod relay;

pub use relay::{Health, Relay, RelayBuilder, RelayConfig, RelayHandle, RelayStats, StartError, Status};
