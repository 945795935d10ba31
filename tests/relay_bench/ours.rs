//! The relay of this workspace, in a process of its own.

use std::time::Duration;

use outbox_contract::Topic;
use outbox_engine::{Relay, RelayHandle};
use outbox_store_postgres::{PostgresOptions, PostgresStore};
use outbox_testkit::NullTransport;
use serde::{Deserialize, Serialize};

use crate::bench::TOPIC;
use crate::broker::Address;
use crate::child::{finished, measured, ready, tell};
use crate::database::open;
use crate::publish::answers;
use crate::tuned::{Setting, apply};

/// Work of the relay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ours {
    pub(crate) store: String,
    /// None: a transport that confirms at once, so that fetch and settle are left.
    pub(crate) broker: Option<Address>,
    /// Empty: the defaults.
    pub(crate) settings: Vec<Setting>,
    /// Number of settled messages after which it is done; with 0 it runs until it is ended.
    pub(crate) messages: u64,
}

impl Ours {
    pub(crate) async fn play(self) {
        let store = open(&self.store).await;
        let relay = match &self.broker {
            Some(broker) => {
                let transport = broker.transport();
                answers(&*transport).await;
                Relay::builder(store, transport)
            }
            None => Relay::builder(store, NullTransport::new()),
        };
        let relay = apply(&self.settings, relay);
        if self.messages == 0 {
            let relay = relay.start().await.expect("the relay starts");
            ready().await;
            finished().await;
            stop(relay).await;
            return;
        }
        ready().await;
        let mut running = None;
        let done = measured(self.messages, async {
            let relay = running.insert(relay.start().await.expect("the relay starts"));
            // A message without a confirmation in time is parked and leaves by a step: it is never
            // settled.
            while settled_or_parked(relay) < self.messages {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        let done = done.await;
        tell(&done);
        finished().await;
        if let Some(relay) = running {
            stop(relay).await;
        }
    }
}

fn settled_or_parked(relay: &RelayHandle) -> u64 {
    let stats = relay.stats();
    stats.settled + stats.parked
}

async fn stop(relay: RelayHandle) {
    if !relay.stop(Duration::from_secs(10)).await {
        eprintln!("the relay did not drain in time");
    }
}

pub(crate) async fn store(url: &str) -> PostgresStore {
    PostgresStore::connect(url).await.expect("the database answers")
}

/// A store without wake-ups for its writes.
pub(crate) async fn silent_store(url: &str) -> PostgresStore {
    let mut options = PostgresOptions::default();
    options.notify_interval = None;
    PostgresStore::connect_with(url, options).await.expect("the database answers")
}

pub(crate) fn topic() -> Topic {
    Topic::new(TOPIC).expect("a valid name")
}
