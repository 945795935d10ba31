//! Rolling deploys under load: relays and inboxes of an old and a new program side by side, and
//! messages that only the new one knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_contract::{Message, Route, inbox_route};
use outbox_tests::fresh::Fresh;
use outbox_tests::kind::StoreKind::{self, MySql, Postgres};
use outbox_tests::kind::TransportKind::{self, Kafka, RabbitMq};
use outbox_tests::life::{Knows, Life};
use outbox_tests::pair::Pair;
use outbox_tests::record::until;
use tokio::task::JoinHandle;

use crate::process::Process;
use crate::world::World;

/// The world of a deploy. Effects count in place of deliveries.
struct Deploy {
    _fresh: Fresh,
    world: World,
    writers: Vec<JoinHandle<()>>,
    watcher: JoinHandle<()>,
    /// True when writers are of the new program.
    is_new: Arc<AtomicBool>,
}

impl Deploy {
    async fn new(store: StoreKind, transport: TransportKind) -> Option<Self> {
        let fresh = Fresh::new(store, transport).await?;
        // The minimum of a broker by its defaults.
        let pair = Pair { session: Some(Duration::from_secs(6)), ..fresh.pair.clone() };
        let world = World::new(pair).await;
        let (record, ledger) = (Arc::clone(&world.record), Arc::clone(&world.ledger));
        let watcher = tokio::spawn(async move {
            loop {
                match ledger.effects().await {
                    Ok(effects) => record.saw_effects(&effects),
                    Err(error) => eprintln!("the effects can't be read: {error}; trying again"),
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        let is_new = Arc::<AtomicBool>::default();
        Some(Self { _fresh: fresh, world, writers: Vec::new(), watcher, is_new })
    }

    fn inbox(&self, knows: Knows, number: u32) -> Process {
        let life = Life { stored: false, batch: 8, crash: None, number, knows };
        Process::inbox(&self.world.pair, life)
    }

    /// Starts writers of twenty keys. Every fourth message of the new program is one that the old
    /// one does not know.
    fn write(&mut self) {
        let (topic, is_new) = (self.world.pair.topic.clone(), Arc::clone(&self.is_new));
        let message = move |key: &str| {
            let (event_type, version) = match fastrand::u8(..8) {
                0 if is_new.load(Ordering::SeqCst) => (Life::CANCELED, 1),
                1 if is_new.load(Ordering::SeqCst) => (Life::PLACED, 2),
                _ => (Life::PLACED, 1),
            };
            let message = Message::new(topic.clone(), event_type).unwrap().with_schema_version(version);
            message.with_key(key).unwrap()
        };
        self.writers = self.world.record.writers(&self.world.ledger, 4, 20, message);
    }

    /// Stops the writers, waits for every effect, and asserts that each message had exactly one, in
    /// the order of its key, and that none became a dead letter.
    async fn finish(self) {
        let World { record, ledger, pair, .. } = &self.world;
        record.stop_writing(self.writers).await;
        let all = record.close_every_key(&**ledger).await;
        self.watcher.abort();
        for route in [Route::default(), inbox_route(&pair.consumer().unwrap())] {
            assert_eq!(ledger.store().backlog(&route).await.unwrap().dead, 0, "dead letters of {route}");
        }
        let report = record.effects(&ledger.effects().await.unwrap()).unwrap();
        assert!(all, "not everything was handled\n{report}");
        println!("{report}");
        report.assert_exactly_once();
    }
}

/// Replaces an old program by a new one, process by process, and producers first.
async fn rolled_out(store: StoreKind, transport: TransportKind) {
    let Some(mut deploy) = Deploy::new(store, transport).await else { return };
    let (first, second) = (deploy.inbox(Knows::Old, 1), deploy.inbox(Knows::Old, 2));
    let old = deploy.world.relay();
    deploy.write();
    deploy.world.more(150).await;

    // Messages come that no running consumer knows: their keys wait, and others go on.
    deploy.is_new.store(true, Ordering::SeqCst);
    let route = inbox_route(&deploy.world.pair.consumer().unwrap());
    until("keys wait for the new program", async || {
        deploy.world.ledger.store().backlog(&route).await.is_ok_and(|backlog| backlog.parked > 0)
    })
    .await;

    let (new, third) = (deploy.world.relay(), deploy.inbox(Knows::New, 3));
    first.stop();
    deploy.world.more(100).await;
    let fourth = deploy.inbox(Knows::New, 4);
    second.kill();
    old.stop();
    deploy.world.more(150).await;
    deploy.finish().await;
    for inbox in [third, fourth] {
        inbox.stop();
    }
    new.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_deploy_between_postgresql_and_kafka_keeps_order_and_makes_no_dead_letter() {
    rolled_out(Postgres, Kafka).await;
}

mod other_pairs {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_rolling_deploy_between_postgresql_and_rabbitmq_keeps_order_and_makes_no_dead_letter() {
        rolled_out(Postgres, RabbitMq).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_rolling_deploy_between_mysql_and_kafka_keeps_order_and_makes_no_dead_letter() {
        rolled_out(MySql, Kafka).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_rolling_deploy_between_mysql_and_rabbitmq_keeps_order_and_makes_no_dead_letter() {
        rolled_out(MySql, RabbitMq).await;
    }
}
