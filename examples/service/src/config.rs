//! Command-line arguments, and the configuration file of relay and inbox.

use std::fs::File;
use std::io::BufReader;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use outbox::inbox::InboxConfig;
use outbox::relay::RelayConfig;
use serde::Deserialize;

use crate::Failed;

/// Takes orders over HTTP, and sends a mail for each.
#[derive(Parser)]
pub(crate) struct Args {
    /// Address to listen on; port 0 picks a free one
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    /// The database: sqlite:FILE, or postgres://… with `--features postgres`
    #[arg(long, value_name = "URL", default_value = "sqlite:orders.db?mode=rwc")]
    pub(crate) store: String,
    /// The broker: memory: within the process, or kafka://HOST:PORT with `--features kafka`
    #[arg(long, value_name = "URL", default_value = "memory:")]
    pub(crate) transport: String,
    /// Settings of relay and inbox, as JSON; default: their defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Maximum seconds for a stop, in total; anything unsent by then is sent after the next start
    #[arg(long, value_name = "S", default_value_t = 20)]
    pub(crate) stop_within: u32,
}

// ANCHOR: config
/// Settings from a file: `{"relay": {"lease": "30s"}, "inbox": {"concurrency": 4}}`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) relay: RelayConfig,
    pub(crate) inbox: InboxConfig,
}
// ANCHOR_END: config

impl Args {
    /// Reads the configuration file, if there is one.
    pub(crate) fn config(&self) -> Result<Config, Failed> {
        let Some(path) = &self.config else { return Ok(Config::default()) };
        let file = File::open(path).map_err(|error| format!("could not read {}: {error}", path.display()))?;
        let config = serde_json::from_reader(BufReader::new(file));
        config.map_err(|error| format!("{}: {error}", path.display()).into())
    }
}
