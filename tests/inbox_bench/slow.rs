//! Latency of messages of many keys beside a key of which each message takes a second: from the
//! broker's confirmation to the end of their handler.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_contract::{Message, MessageId, Transport};
use outbox_engine::{HandlerContext, HandlerError};
use outbox_store_postgres::PostgresStore;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::bench::Bench;
use crate::broker::Address;
use crate::child::{Child, finished, ready, tell};
use crate::consume::{builder, stop};
use crate::fill::{made, publish};
use crate::report::Table;
use crate::role::Role;
use crate::stats::{median, quantile};
use crate::stock::Stock as _;

/// Messages to send and handle.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Slow {
    pub(crate) store: String,
    pub(crate) broker: Address,
    pub(crate) slow_key: bool,
    /// Messages of other keys for each second.
    pub(crate) rate: u32,
    pub(crate) seconds: u32,
}

/// A handler's time for each message of the slow key.
const SLOW: Duration = Duration::from_secs(1);
/// Number of other keys.
const FAST_KEYS: u64 = 1_000;
/// Interval of sends: some messages at a time, as a relay does.
const TICK: Duration = Duration::from_millis(20);

type Times = Arc<Mutex<HashMap<MessageId, Instant>>>;

impl Slow {
    pub(crate) async fn play(self) {
        let (sent, handled) = (Times::default(), Times::default());
        let ends = Arc::clone(&handled);
        let inbox = builder(PostgresStore::reach(&self.store).await, &self.broker);
        let inbox =
            inbox.on_any(async move |message: Message, context: &mut HandlerContext<'_, PostgresStore>| {
                let key = message.order_key();
                PostgresStore::reserve(context.tx(), key.as_str()).await?;
                if key.as_str() == "slow" {
                    tokio::time::sleep(SLOW).await;
                }
                note(&ends, message.id);
                Ok::<_, HandlerError>(())
            });
        let inbox = inbox.start().await.expect("the inbox starts");
        let transport = self.broker.transport();
        ready().await;
        self.send(&*transport, &sent).await;
        let (sent, mut waits) = (take(&sent), Vec::new());
        let started = Instant::now();
        while waits.len() < sent.len() && started.elapsed() < Duration::from_secs(60) {
            tokio::time::sleep(TICK).await;
            let handled = handled.lock().unwrap_or_else(PoisonError::into_inner);
            let both = sent.iter().filter_map(|(id, sent)| Some((sent, handled.get(id)?)));
            waits = both.map(|(sent, handled)| handled.duration_since(*sent).as_secs_f64() * 1e3).collect();
        }
        tell(&waits);
        finished().await;
        stop(inbox).await;
        transport.close().await;
    }

    /// Sends at the requested rate, and records when each message of a fast key was at the broker.
    /// The first second warms everything.
    async fn send(&self, transport: &dyn Transport, sent: &Times) {
        let (mut tick, topic) = (tokio::time::interval(TICK), self.broker.topic());
        let each = u64::from(self.rate) * u64::try_from(TICK.as_millis()).unwrap_or(1) / 1_000;
        let ticks = u64::from(self.seconds + 1) * 1_000 / u64::try_from(TICK.as_millis()).unwrap_or(1);
        for number in 0..ticks {
            tick.tick().await;
            let from = number * each;
            let mut batch: Vec<_> = (from..from + each)
                .map(|number| made(&topic, number, &format!("key-{}", number % FAST_KEYS)))
                .collect();
            let fast: Vec<MessageId> = batch.iter().map(|stored| stored.message.id).collect();
            // As many as are handled, and some more: there is always one at work.
            if self.slow_key && number % 40 == 0 {
                batch.push(made(&topic, number, "slow"));
            }
            publish(transport, batch).await;
            if number * 20 >= 1_000 {
                fast.into_iter().for_each(|id| note(sent, id));
            }
        }
    }
}

fn note(times: &Times, id: MessageId) {
    times.lock().unwrap_or_else(PoisonError::into_inner).insert(id, Instant::now());
}

fn take(times: &Times) -> HashMap<MessageId, Instant> {
    std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner))
}

pub(crate) fn run(bench: &mut Bench) {
    let (rate, seconds, repetitions) = (500, bench.profile.pick(10, 60), bench.profile.pick(3, 5));
    let mut waits: [Vec<Vec<f64>>; 2] = Default::default();
    for repetition in 1..=repetitions {
        for slow_key in [false, true] {
            let with = if slow_key { "with" } else { "without" };
            bench.say(format!("slow key {repetition}/{repetitions}: {with}"));
            let (store, broker) = (bench.store(), bench.broker.fresh());
            let role = Role::Slow(Slow { store, broker, slow_key, rate, seconds });
            let mut child = Child::start(&role);
            child.go();
            waits[usize::from(slow_key)].push(child.done());
        }
    }
    let about = format!(
        "{rate} messages per second of {FAST_KEYS} keys for {seconds} s; from the broker's confirmation to the end of the handler, in ms; \
         medians of {repetitions} runs"
    );
    let mut table = Table::new("slow key", about, &["messages", "median ms", "p99 ms", "most ms"]);
    for (label, runs) in ["without", "with a key of 1 s per message"].into_iter().zip(&waits) {
        let of =
            |part: f64| median(&runs.iter().filter_map(|waits| quantile(waits, part)).collect::<Vec<_>>());
        let messages = median(&runs.iter().map(|waits| waits.len() as f64).collect::<Vec<_>>());
        table.row(label, [messages, of(0.5), of(0.99), of(1.0)]);
    }
    let ratio = |column| {
        Some(table.value("with a key of 1 s per message", column)? / table.value("without", column)?)
    };
    let ratios = ["messages", "median ms", "p99 ms", "most ms"].map(ratio);
    table.row("with / without", ratios);
    bench.report(table);
}
