//! An Apache Kafka of several brokers.

use std::thread;

use super::node::{Listener, Role};
use super::{Kafka, KafkaServer};
use crate::missing::Missing;

/// Number of brokers of a cluster: with two of them in sync a write is accepted.
const BROKERS: u32 = 3;

/// Three brokers, and a controller with a process of its own: without it no broker would notice, or
/// be notified of, a dead broker. Clones are the same cluster.
#[derive(Clone, Debug)]
pub struct KafkaCluster {
    brokers: Vec<KafkaServer>,
    controller: KafkaServer,
}

impl KafkaCluster {
    pub(super) fn start(wish: &Kafka) -> Result<Self, Missing> {
        let controller = wish.start_node(Role::Controller)?;
        let port = controller.port(controller.node.index(Listener::Controller).unwrap_or_default());
        // At once, as each spends most of its time on itself.
        let brokers = thread::scope(|scope| {
            let starting: Vec<_> = (0..BROKERS)
                .map(|number| scope.spawn(move || wish.start_node(Role::Broker { number, controller: port })))
                .collect();
            let started = starting
                .into_iter()
                .map(|broker| broker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            started.collect::<Result<Vec<_>, Missing>>()
        })?;
        Ok(Self { brokers, controller })
    }

    /// Returns the addresses of all brokers for clients:
    /// `127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094`.
    #[must_use]
    pub fn url(&self) -> String {
        self.joined(KafkaServer::url)
    }

    /// Returns their addresses with TLS. For a cluster that was requested with [`Kafka::tls`]. Each
    /// broker has an authority of its own: see `authorities` of a [`KafkaServer`].
    ///
    /// # Panics
    ///
    /// If it does not speak TLS.
    #[must_use]
    #[track_caller]
    pub fn tls_url(&self) -> String {
        self.joined(KafkaServer::tls_url)
    }

    /// Returns the number of brokers, dead ones included.
    #[must_use]
    pub fn size(&self) -> usize {
        self.brokers.len()
    }

    /// Returns a broker, from 0 on: its number is its node's id.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    #[must_use]
    #[track_caller]
    pub fn broker(&self, number: usize) -> &KafkaServer {
        let broker = self.brokers.get(number);
        broker.unwrap_or_else(|| panic!("the cluster has no broker {number}: they are 0 to {}", BROKERS - 1))
    }

    /// Returns the controller, which clients never connect to.
    #[must_use]
    pub fn controller(&self) -> &KafkaServer {
        &self.controller
    }

    #[track_caller]
    fn joined(&self, url: impl Fn(&KafkaServer) -> String) -> String {
        self.brokers.iter().map(url).collect::<Vec<_>>().join(",")
    }
}
