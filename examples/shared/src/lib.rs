//! Code that several examples share. Each example is complete in its own folder, ready to copy,
//! except for the brokers in [`transports`].

pub mod program;
#[cfg(feature = "transports")]
pub mod transports;
