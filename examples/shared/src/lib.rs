//! Code that several examples share. An example to copy from is whole in its own folder, but for the brokers in [`transports`].

pub mod program;
#[cfg(feature = "transports")]
pub mod transports;
