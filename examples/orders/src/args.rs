//! Command-line arguments of `orders`.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::PathBuf;

use clap::Parser;

use crate::generate::Generator;
use crate::input::{InputError, Step, Steps};

/// The bundled orders.
const INCLUDED: &str = include_str!("../orders.jsonl");

/// Writes orders and their events to a database, relays the events, books each once in a second
/// database, and checks the result.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  orders                                            the orders that come with it
  orders my-orders.jsonl                            yours: one JSON object a line
  generate | orders -                               from standard input
  orders --orders 100000 --customers 10000 --kill-relay
                                                    many, while relays are killed at random moments
  orders --store postgres://me@host/db --transport redis://host
                                                    on servers of yours (cargo run --features postgres,redis …)

A line looks like this; kinds are place, pay, ship and cancel:
  {\"kind\":\"place\",\"order_id\":\"o-1\",\"customer\":\"c-ada\",\"items\":[{\"sku\":\"tea\",\"quantity\":2,\"cents\":690}]}

RUST_LOG=outbox_engine=info shows what the relays do.")]
pub(crate) struct Args {
    /// JSON Lines to read; `-` for standard input. Default: the bundled orders.
    pub(crate) file: Option<PathBuf>,
    /// Generate this many orders instead of reading them. Each has one to three steps.
    #[arg(long, conflicts_with = "file", value_name = "N")]
    pub(crate) orders: Option<u64>,
    /// Number of customers of the generated orders; a customer's events keep their order.
    #[arg(long, default_value_t = 1_000, value_name = "N", requires = "orders")]
    pub(crate) customers: u64,
    /// Seed of the generated orders, and of the moments of `--kill-relay`.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) seed: u64,
    /// Kill relays at random moments, without a drain, and start others.
    #[arg(long)]
    pub(crate) kill_relay: bool,
    /// Write everything before the first relay starts.
    #[arg(long)]
    pub(crate) backlog_first: bool,
    /// Database of the shop and of the ledger: postgres://, mysql://, mongodb://. Default: two of
    /// SQLite, a file each.
    #[arg(long, value_name = "URL", conflicts_with = "dir")]
    pub(crate) store: Option<String>,
    /// Broker of the events: amqp:// (RabbitMQ), redis://, kafka://HOST:PORT (the topic `orders`
    /// must exist). It must hold no other program's events. Default: within this process.
    #[arg(long, value_name = "URL", default_value = "memory:")]
    pub(crate) transport: String,
    /// Keep the databases in this folder. Default: a temporary one.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
}

impl Args {
    /// Returns the requested steps, one at a time.
    pub(crate) fn steps(&self) -> io::Result<Box<dyn Iterator<Item = Result<Step, InputError>> + Send>> {
        let read = |step: Result<(u64, Step), InputError>| step.map(|(_, step)| step);
        Ok(match (&self.file, self.orders) {
            (_, Some(orders)) => Box::new(Generator::new(orders, self.customers, self.seed).map(Ok)),
            (None, None) => Box::new(Steps::new(INCLUDED.as_bytes()).map(read)),
            (Some(file), None) if file.as_os_str() == "-" => {
                Box::new(Steps::new(BufReader::new(io::stdin())).map(read))
            }
            (Some(file), None) => {
                let open = File::open(file).map_err(|error| {
                    io::Error::new(error.kind(), format!("could not read {}: {error}", file.display()))
                })?;
                Box::new(Steps::new(BufReader::new(open)).map(read))
            }
        })
    }

    /// Returns the approximate number of expected steps, if known.
    pub(crate) fn expected(&self) -> Option<u64> {
        match (&self.file, self.orders) {
            // 70 of 100 orders have three steps, 10 two, 8 three, 12 one: see the generator.
            (_, Some(orders)) => Some(orders * 266 / 100),
            (None, None) => Some(INCLUDED.lines().count() as u64),
            (Some(_), None) => None,
        }
    }
}
