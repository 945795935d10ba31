//! Kill of a relay under load: the number of repeats, and the duration of the interruption.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use outbox_contract::Transport as _;
use outbox_contract::backend::{Received, Subscription};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, KEYS, TOPIC};
use crate::broker::Address;
use crate::child::{Child, finished, ready, tell};
use crate::latency::{Came, Latency};
use crate::ours::{Ours, topic};
use crate::pair::Database;
use crate::report::Table;
use crate::role::Role;
use crate::stats::quantile;

/// Messages to consume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Consume {
    pub(crate) broker: Address,
    pub(crate) messages: usize,
}

impl Consume {
    /// Reports the number of repeated deliveries.
    pub(crate) async fn play(self) {
        let transport = self.broker.transport();
        let subscription =
            Subscription::new(self.broker.consumer(), [topic()]).expect("valid names").with_prefetch(2_000);
        let deliveries = transport.subscribe(subscription).await.expect("subscribed");
        ready().await;
        let (mut came, mut repeats) = (HashSet::new(), 0_u64);
        while came.len() < self.messages {
            let Received::Deliveries(batch) = deliveries.next().await.expect("the broker stays") else {
                continue;
            };
            for message in batch.iter().filter_map(|delivery| delivery.message.as_ref().ok()) {
                repeats += u64::from(!came.insert(message.id));
            }
            let tags: Vec<_> = batch.into_iter().map(|delivery| delivery.tag).collect();
            deliveries.acknowledge(&tags).await.expect("acknowledged");
        }
        // Kafka would wait for a member that leaves silently, and the next part with it.
        deliveries.close().await.expect("closed");
        tell(&repeats);
        finished().await;
        transport.close().await;
    }
}

pub(crate) fn run(bench: &mut Bench) {
    let messages = bench.profile.pick(60_000, 200_000);
    let repetitions = bench.profile.pick(1, 5);
    let about = format!(
        "{}: a relay is killed when a third of {messages} messages is settled, and another one starts at once; its leases last 15 s",
        bench.pair
    );
    let mut table = Table::new("kill", about, &["repeats", "nothing settled for s"]);
    for repetition in 1..=repetitions {
        bench.say(format!("kill {repetition}/{repetitions}"));
        let (store, broker) = (bench.store(), bench.broker.fresh());
        bench.fill(&store, TOPIC, messages, KEYS);
        let expected = usize::try_from(messages).unwrap_or(usize::MAX);
        let mut consumer =
            Child::start(&Role::Consume(Consume { broker: broker.clone(), messages: expected }));
        consumer.go();
        let relay = || {
            Role::Ours(Ours {
                store: store.clone(),
                broker: Some(broker.clone()),
                settings: vec![],
                messages,
            })
        };
        let left = || bench.database.left(&store);
        let mut first = Child::start(&relay());
        first.go();
        bench.until("a third is settled", || left() < messages as f64 * 2.0 / 3.0);
        first.kill();
        let killed = Instant::now();
        let mut second = Child::start(&relay());
        second.go();
        let at_rest = left();
        bench.until("messages flow again", || left() < at_rest);
        let pause = killed.elapsed();
        let repeats: u64 = consumer.done();
        table.row(format!("run {repetition}"), [Some(repeats as f64), Some(pause.as_secs_f64())]);
        bench.until("everything is settled", || left() == 0.0);
        second.kill();
    }
    bench.report(table);
    at_a_rate(bench, repetitions);
}

/// Messages per second while one of two relays is killed. SQLite has one writer at a time, and a
/// stand-in is no database.
const fn rate(database: Database) -> u32 {
    if database.has_usual() { 2_000 } else { 200 }
}
/// Number of their keys.
const FEW_KEYS: u32 = 1_000;

/// Two relays share the keys, and one of them is killed while messages are appended.
fn at_a_rate(bench: &mut Bench, repetitions: usize) {
    let rate = rate(bench.pair.database);
    let about = format!(
        "{}: one of two relays is killed while {rate} messages a second are appended, of {FEW_KEYS} keys; its leases last 15 s",
        bench.pair
    );
    let columns = ["repeats", "out of order", "longest wait s", "p50 ms"];
    let mut table = Table::new("kill at a rate", about, &columns);
    for repetition in 1..=repetitions {
        bench.say(format!("kill at a rate {repetition}/{repetitions}"));
        let (store, broker) = (bench.store(), bench.broker.fresh());
        let relay = || {
            let (store, broker) = (store.clone(), Some(broker.clone()));
            let mut relay = Child::start(&Role::Ours(Ours { store, broker, settings: vec![], messages: 0 }));
            relay.go();
            relay
        };
        let (mut victim, _heir) = (relay(), relay());
        bench.until("the relays share the buckets", || bench.database.shares(&store) == [128, 128]);
        let mut writer = Child::start(&Role::Latency(Latency {
            store: store.clone(),
            broker: broker.clone(),
            rate,
            seconds: 10,
            keys: FEW_KEYS,
        }));
        writer.go();
        std::thread::sleep(Duration::from_secs(6));
        victim.kill();
        let came: Came = writer.done();
        let wait = |part| quantile(&came.waits, part);
        table.row(
            format!("run {repetition}"),
            [Some(came.repeats as f64), Some(came.late as f64), wait(1.0).map(|wait| wait / 1e3), wait(0.5)],
        );
    }
    bench.report(table);
}
