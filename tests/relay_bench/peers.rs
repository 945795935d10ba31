//! Relays of other projects, from the program of `tests/peers`. Each has tables of its own, which
//! it creates and fills itself.

use serde::{Deserialize, Serialize};

use crate::bench::{Bench, KEYS};
use crate::child::Child;
use crate::pair::{Broker, Database};
use crate::role::Role;

/// A relay of another project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Name {
    Oxide,
    Hexeract,
}

/// Work of such a relay, as its program reads it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Peer {
    name: Name,
    store: String,
    broker: String,
    /// Number of workers in the process.
    workers: usize,
    messages: u64,
    keys: u64,
}

/// They take milliseconds for each message of a worker: a part of the messages has to do.
const PART: u64 = 20;
/// Numbers of workers. More than the last gain nothing.
const WORKERS: [usize; 3] = [1, 8, 32];

impl Name {
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Oxide => "oxide-outbox 0.6",
            Self::Hexeract => "hexeract 0.6",
        }
    }
}

/// Returns the relays that are measured on a pair, each with its number of workers.
pub(crate) fn of(bench: &Bench) -> Vec<(Name, usize)> {
    let name = match (bench.pair.database, bench.pair.broker) {
        (Database::Postgres, Broker::Kafka) => Name::Oxide,
        (Database::Postgres, Broker::RabbitMq) => Name::Hexeract,
        _ => return Vec::new(),
    };
    let is_there = bench.peers.is_some();
    WORKERS.into_iter().filter(|_| is_there).map(|workers| (name, workers)).collect()
}

/// Starts one, with its table filled.
pub(crate) fn start(bench: &Bench, name: Name, workers: usize, messages: u64) -> Child {
    let (store, broker) = (bench.database.fresh(), bench.broker.fresh().url);
    let peer = Peer { name, store, broker, workers, messages: messages / PART, keys: KEYS };
    Child::start_by(bench.peers.as_deref(), &Role::Peer(peer))
}
