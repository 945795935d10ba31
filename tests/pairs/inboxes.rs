//! Crashes of inboxes: each effect happens once, in the order of its key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Outcome, Outcomes, Position, PublishBatch, RelayId, Stored};
use outbox_contract::{Message, MessageId, Route, Timestamp, Transport, inbox_route};
use outbox_engine::Step;
use outbox_tests::fresh::Fresh;
use outbox_tests::kind::StoreKind::{self, MongoDb, MySql, Postgres};
use outbox_tests::kind::TransportKind::{self, Kafka, RabbitMq, Redis};
use outbox_tests::life::{Knows, Life};
use outbox_tests::record::{PATIENCE, until};
use tokio::time::timeout;

use crate::process::Process;
use crate::world::World;

/// Ten keys, one of which fails at first in each life.
const KEYS: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", Life::FAILING];

const DIRECT: Life = Life { stored: false, batch: 1, crash: None, number: 7, knows: Knows::Everything };
const BATCHES: Life = Life { batch: 10, ..DIRECT };
const STORED: Life = Life { stored: true, ..DIRECT };

/// The world of an inbox, and the messages sent to it.
struct Story {
    _fresh: Fresh,
    world: World,
    relay: Process,
    /// In the order in which they were appended.
    sent: Vec<Message>,
}

impl Story {
    async fn new(store: StoreKind, transport: TransportKind) -> Option<Self> {
        let fresh = Fresh::new(store, transport).await?;
        let world = World::new(fresh.pair.clone()).await;
        let relay = world.relay();
        Some(Self { _fresh: fresh, world, relay, sent: Vec::new() })
    }

    /// Appends this many messages of each key, for the relay to send.
    async fn send(&mut self, of_each_key: usize) {
        let messages = (0..of_each_key).flat_map(|_| KEYS).map(|key| self.world.message(key));
        let messages: Vec<Message> = messages.collect();
        self.world.append(messages.iter().cloned()).await;
        self.sent.extend(messages);
    }

    /// Lets an inbox live until it dies behind a step.
    async fn live(&self, life: Life, step: Step, time: u32) {
        let life = Life { crash: Some((step, time)), ..life };
        Process::inbox(&self.world.pair, life).aborted(&format!("{life:?}")).await;
    }

    /// Lets an inbox live until nothing is left to do, and checks the effects.
    async fn finish(mut self, life: Life) {
        // Behind all other messages of each key: once these are handled, all others are, or are
        // lost.
        self.send(1).await;
        let inbox = Process::inbox(&self.world.pair, life);
        let last: Vec<MessageId> =
            self.sent[self.sent.len() - KEYS.len()..].iter().map(|message| message.id).collect();
        let handled = async || {
            let effects = self.world.ledger.effects().await.unwrap();
            last.iter().all(|id| effects.iter().any(|effect| effect.id == *id))
        };
        until("the last effect of every key", handled).await;
        let route = inbox_route(&self.world.pair.consumer().unwrap());
        until("everything done that waits in the store", async || self.is_done(&route).await).await;
        inbox.stop();
        self.relay.stop();
        let backlog = self.world.ledger.store().backlog(&route).await.unwrap();
        assert_eq!(backlog.dead, 0, "no message is given up");
        let mut found: BTreeMap<String, Vec<(i64, MessageId)>> = BTreeMap::new();
        for effect in self.world.ledger.effects().await.unwrap() {
            found.entry(effect.key).or_default().push((effect.number, effect.id));
        }
        let mut expected: BTreeMap<String, Vec<(i64, MessageId)>> = BTreeMap::new();
        for message in &self.sent {
            let of_key = expected.entry(message.order_key().as_str().to_owned()).or_default();
            of_key.push((of_key.len() as i64 + 1, message.id));
        }
        assert_eq!(found, expected, "the effects of each key");
    }

    /// Returns true if no message waits in the database for this route.
    async fn is_done(&self, route: &Route) -> bool {
        let backlog = self.world.ledger.store().backlog(route).await.unwrap();
        backlog.pending + backlog.parked == 0
    }

    /// Waits until the relay has sent everything.
    async fn relayed(&self) {
        until("everything relayed", async || self.is_done(&Route::default()).await).await;
    }
}

/// Kills it behind every step, this many times in a life.
async fn killed_behind_every_step(store: StoreKind, transport: TransportKind, life: Life, times: &[u32]) {
    let Some(mut story) = Story::new(store, transport).await else { return };
    for time in times {
        for step in Step::ALL {
            // Enough for every expected transaction; but it may arrive in one piece, and be stored
            // as one.
            story.send(3).await;
            let in_pieces = !matches!(step, Step::Received | Step::Acknowledged);
            story.live(life, step, if in_pieces { *time } else { 1 }).await;
        }
    }
    story.finish(life).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_are_once_though_the_inbox_is_killed_behind_every_step() {
    killed_behind_every_step(Postgres, RabbitMq, DIRECT, &[1, 3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_are_once_though_the_inbox_is_killed_in_batches_of_ten() {
    killed_behind_every_step(Postgres, RabbitMq, BATCHES, &[1, 3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_are_once_though_the_inbox_is_killed_while_messages_wait_in_the_store() {
    killed_behind_every_step(Postgres, RabbitMq, STORED, &[1, 3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_are_once_though_the_inbox_is_killed_between_postgresql_and_kafka() {
    killed_behind_every_step(Postgres, Kafka, DIRECT, &[1]).await;
    killed_behind_every_step(Postgres, Kafka, STORED, &[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_are_once_though_the_inbox_is_killed_between_mysql_and_redis() {
    killed_behind_every_step(MySql, Redis, DIRECT, &[1]).await;
    killed_behind_every_step(MySql, Redis, STORED, &[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_are_once_though_the_inbox_is_killed_between_mongodb_and_rabbitmq() {
    killed_behind_every_step(MongoDb, RabbitMq, DIRECT, &[1]).await;
    killed_behind_every_step(MongoDb, RabbitMq, STORED, &[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_come_twice_and_old_ones_behind_newer_ones_have_one_effect_in_order() {
    let Some(mut story) = Story::new(Postgres, RabbitMq).await else { return };
    let transport = story.world.pair.transport().unwrap();
    let source = story.world.ledger.store().identity().await.unwrap().source();
    for (round, life) in [DIRECT, BATCHES, STORED].into_iter().cycle().take(6).enumerate() {
        let before = story.sent.len();
        story.send(3).await;
        story.relayed().await;
        // All messages a second time, then old ones: of every key some that newer ones precede.
        let (old, new) = story.sent.split_at(before);
        publish(&*transport, &source, new).await;
        let stale: Vec<Message> = old.iter().rev().step_by(3).chain(&new[..10]).cloned().collect();
        publish(&*transport, &source, &stale).await;
        story.live(life, Step::ALL[round % Step::ALL.len()], 1).await;
    }
    transport.close().await;
    story.finish(BATCHES).await;
}

/// Publishes messages as a relay of this source does that does not know of an earlier one that sent
/// them. Until all are delivered: any of them may arrive more than once.
async fn publish(transport: &dyn Transport, source: &str, messages: &[Message]) {
    let stored = messages.iter().zip(1..).map(|(message, position)| {
        Arc::new(Stored::new(Position(position), Timestamp::now(), message.clone()))
    });
    let stored: Vec<_> = stored.collect();
    let publishing = async {
        loop {
            let outcomes = Outcomes::new(stored.len());
            let batch =
                PublishBatch::new(Route::default(), RelayId::new(), source.into(), stored.clone(), PATIENCE);
            transport.publish(batch, &outcomes).await;
            if outcomes.take().iter().all(|outcome| *outcome == Some(Outcome::Delivered)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, publishing).await.expect("the broker takes every repeat");
}
