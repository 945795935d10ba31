//! Arguments of `verify` and `bench`.

use std::time::Duration;

use clap::Args;
use outbox::{Route, Topic};

use crate::time;

/// Numbered messages, once or again and again.
#[derive(Args, Clone, Debug)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) canary: CanaryArgs,
    /// Do it again after this time, until a signal
    #[arg(long, value_name = "TIME", value_parser = time::span)]
    pub(crate) every: Option<Duration>,
    /// With --every: serve /live and /metrics here; a port alone is on 127.0.0.1
    #[arg(long, value_name = "ADDRESS", requires = "every", num_args = 0..=1, default_missing_value = "127.0.0.1:9465")]
    pub(crate) http: Option<String>,
}

/// Numbered messages through the whole chain.
#[derive(Args, Clone, Debug)]
pub(crate) struct CanaryArgs {
    /// Topic of the messages; no other program should use it
    #[arg(long, default_value = "outbox-canary")]
    pub(crate) topic: Topic,
    /// Route of the messages
    #[arg(long, default_value = "default")]
    pub(crate) route: Route,
    /// Number of messages
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    pub(crate) messages: u32,
    /// Number of keys that they are divided over
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) keys: u32,
    /// Bytes of a payload
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) bytes: usize,
    /// Give up after this time
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time::span)]
    pub(crate) within: Duration,
    /// Run a relay in this program, instead of relying on one that runs
    #[arg(long)]
    pub(crate) with_relay: bool,
}
