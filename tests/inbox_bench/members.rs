//! Messages per second of several members of a consumer, which share its queues. The handler takes
//! 5 ms, and a member handles one message at a time.

use std::time::{Duration, Instant};

use outbox_contract::Message;
use outbox_engine::{HandlerContext, HandlerError, Inbox, Status};
use outbox_store_postgres::PostgresStore;
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, UPDATE, consumer, partitioned, store, topic};
use crate::child::{Child, Role, finished, ready, run as run_child, tell};
use crate::consume::stop;
use crate::fill::Fill;
use crate::report::Table;
use crate::stats::median;

/// Number of queues.
const PARTITIONS: u32 = 16;
/// Time of the handler.
const TIME: Duration = Duration::from_millis(5);

/// A member of the consumer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) store: String,
    pub(crate) broker: String,
}

impl Member {
    pub(crate) async fn play(self) {
        let transport = partitioned(&self.broker, PARTITIONS);
        let inbox = Inbox::builder(store(&self.store).await, transport);
        let inbox = inbox.consumer(consumer().as_str()).topic(topic()).concurrency(1).on_any(add);
        ready().await;
        let inbox = inbox.start().await.expect("the inbox starts");
        while inbox.health().status != Status::Healthy {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tell(&());
        finished().await;
        stop(inbox).await;
    }
}

async fn add(message: Message, context: &mut HandlerContext<'_, PostgresStore>) -> Result<(), HandlerError> {
    tokio::time::sleep(TIME).await;
    sqlx::query(UPDATE).bind(message.order_key().as_str()).execute(context.tx()).await?;
    Ok(())
}

pub(crate) fn run(bench: &mut Bench) {
    let (seconds, repetitions) = (bench.profile.pick(10, 60), bench.profile.pick(3, 5));
    let counts = [1, 2, 4];
    let mut rates = vec![Vec::new(); counts.len()];
    for repetition in 1..=repetitions {
        for (members, rates) in counts.iter().zip(&mut rates) {
            bench.say(format!("members {repetition}/{repetitions}: {members}"));
            rates.push(one(bench, *members, seconds * members * 150));
        }
    }
    let about = format!(
        "handlers of {} ms, one at a time in each member; {PARTITIONS} quorum queues; medians of {repetitions}",
        TIME.as_millis()
    );
    let mut table = Table::new("members", about, &["messages/s", "times one member"]);
    let alone = median(&rates[0]);
    for (members, rates) in counts.iter().zip(&rates) {
        let rate = median(rates);
        table.row(members.to_string(), [rate, rate.zip(alone).map(|(rate, alone)| rate / alone)]);
    }
    bench.report(table);
}

/// Returns the rate of so many members, from the first message at the broker to the last effect.
fn one(bench: &Bench, members: u64, messages: u64) -> f64 {
    let (store, broker) = (bench.store(), bench.broker.fresh_vhost());
    let mut children = Vec::new();
    for _ in 0..members {
        let mut child = Child::start(&Role::Member(Member { store: store.clone(), broker: broker.clone() }));
        child.go();
        child.done::<()>();
        children.push(child);
    }
    let started = Instant::now();
    run_child::<()>(&Role::Fill(Fill { broker, messages, partitions: PARTITIONS }));
    while bench.effects(&store) < messages {
        std::thread::sleep(Duration::from_millis(50));
    }
    let seconds = started.elapsed().as_secs_f64();
    assert_eq!(bench.effects(&store), messages, "{members} members: effects");
    messages as f64 / seconds
}
