//! Members of a consumer that share its queues: the rate of several, and the order over joins,
//! leaves and kills. The handler takes 5 ms, and a member handles one message at a time.
//!
//! On the oldest RabbitMQ of the tests, whose queues move between members: see the book.

use std::time::{Duration, Instant};

use outbox_contract::Message;
use outbox_contract::backend::Bucket;
use outbox_engine::{HandlerContext, HandlerError, Status};
use outbox_store_postgres::PostgresStore;
use serde::{Deserialize, Serialize};

use crate::bench::Bench;
use crate::broker::{Address, BrokerServer};
use crate::child::{Child, finished, heard, ready, tell};
use crate::consume::{builder, stop};
use crate::fill::Fill;
use crate::report::Table;
use crate::role::Role;
use crate::stats::median;
use crate::stock::Stock as _;

/// Number of queues.
const QUEUES: u32 = 16;
/// Time of the handler.
const TIME: Duration = Duration::from_millis(5);
/// Messages that a member handles in a second, or a little more.
const RATE: u64 = 150;

/// Effects of handlers, in the order of their commits for each key.
const WORK: &str = "create table work (at bigint generated always as identity primary key, done_at timestamptz not null
                                         default clock_timestamp(), member int not null, queue int not null, item text not null,
                                         number bigint not null)";

/// A member of the consumer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) store: String,
    pub(crate) broker: Address,
    pub(crate) number: i32,
}

impl Member {
    /// Reports that it consumes, and when it is asked the number of repeats that it received.
    pub(crate) async fn play(self) {
        let number = self.number;
        let handler = async move |message: Message, context: &mut HandlerContext<'_, PostgresStore>| {
            tokio::time::sleep(TIME).await;
            record(number, &message, context).await
        };
        let inbox = builder(PostgresStore::reach(&self.store).await, &self.broker);
        let inbox = inbox.concurrency(1).on_any(handler);
        ready().await;
        let inbox = inbox.start().await.expect("the inbox starts");
        while inbox.health().status != Status::Healthy {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tell(&());
        if heard().await {
            tell(&inbox.stats().duplicates);
            finished().await;
        }
        stop(inbox).await;
    }
}

async fn record(
    member: i32,
    message: &Message,
    context: &mut HandlerContext<'_, PostgresStore>,
) -> Result<(), HandlerError> {
    let key = message.order_key();
    let bucket = Bucket::of(message.topic.as_str(), key.as_str());
    let queue = i32::from(bucket.0) % i32::try_from(QUEUES)?;
    let body: serde_json::Value = serde_json::from_slice(&message.payload)?;
    let insert = sqlx::query("insert into work (member, queue, item, number) values ($1, $2, $3, $4)");
    let insert = insert.bind(member).bind(queue).bind(key.as_str()).bind(body["n"].as_i64());
    insert.execute(context.tx()).await?;
    Ok(())
}

/// Servers of the members, and a database.
struct Crowd<'b> {
    bench: &'b Bench,
    store: String,
    broker: Address,
    joined: i32,
}

impl<'b> Crowd<'b> {
    fn new(bench: &'b Bench, moving: &BrokerServer) -> Self {
        let (store, mut broker) = (bench.store(), moving.fresh());
        broker.queues = QUEUES;
        bench.database.query(&store, WORK);
        Self { bench, store, broker, joined: 0 }
    }

    /// Starts a member; returns when it consumes.
    fn join(&mut self) -> Child {
        let (store, broker, number) = (self.store.clone(), self.broker.clone(), self.joined);
        let mut child = Child::start(&Role::Member(Member { store, broker, number }));
        child.go();
        child.done::<()>();
        self.joined += 1;
        child
    }

    /// Starts to send this many messages, of 16 keys in each queue or so; returns at once.
    fn send(&self, messages: u64, rate: Option<u32>) -> Child {
        let mut child = Child::start(&Role::Fill(Fill { broker: self.broker.clone(), messages, rate }));
        child.go();
        child
    }

    fn number(&self, sql: &str) -> f64 {
        self.numbers(sql).first().copied().unwrap_or(0.0)
    }

    fn numbers(&self, sql: &str) -> Vec<f64> {
        let answer = self.bench.database.query(&self.store, sql);
        answer.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    }

    fn until_handled(&self, messages: u64) {
        let started = Instant::now();
        while self.number("select count(*) from work") < messages as f64 {
            assert!(started.elapsed() < Duration::from_secs(600), "not handled within ten minutes");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Number of messages that were handled behind a later one of their key.
    fn out_of_order(&self) -> f64 {
        self.number(
            "select count(*) from (select number < lag(number) over (partition by item order by at) as late from work) pairs
             where late",
        )
    }
}

pub(crate) fn run(bench: &mut Bench) {
    let moving = BrokerServer::moving().expect("the oldest RabbitMQ of the tests starts");
    rates(bench, &moving);
    coming_and_going(bench, &moving);
}

const COLUMNS: [&str; 6] =
    ["messages/s", "times one", "to the end", "times one", "most queues", "fewest queues"];

fn rates(bench: &mut Bench, moving: &BrokerServer) {
    let (seconds, repetitions) = (bench.profile.pick(10, 60), bench.profile.pick(3, 5));
    let counts = [1, 2, 4];
    let mut runs: Vec<Vec<[f64; 4]>> = vec![Vec::new(); counts.len()];
    for repetition in 1..=repetitions {
        for (members, runs) in counts.iter().zip(&mut runs) {
            bench.say(format!("members {repetition}/{repetitions}: {members}"));
            runs.push(one(bench, moving, *members, seconds * members * RATE));
        }
    }
    let about = format!(
        "{}: handlers of {} ms, one at a time in each member; {QUEUES} quorum queues; while every member has work, and to the end; \
         medians of {repetitions}",
        moving.name(),
        TIME.as_millis()
    );
    let of = |runs: &[[f64; 4]], at: usize| median(&runs.iter().map(|run| run[at]).collect::<Vec<_>>());
    let mut table = Table::new("members", about, &COLUMNS);
    for (members, all) in counts.iter().zip(&runs) {
        let times = |at| Some(of(all, at)? / of(&runs[0], at)?);
        table.row(members.to_string(), [of(all, 0), times(0), of(all, 1), times(1), of(all, 2), of(all, 3)]);
    }
    bench.report(table);
}

/// Returns the rate of so many members while all have work, and to the end; the largest and the
/// smallest number of queues.
fn one(bench: &Bench, moving: &BrokerServer, members: u64, messages: u64) -> [f64; 4] {
    let mut crowd = Crowd::new(bench, moving);
    let children: Vec<Child> = (0..members).map(|_| crowd.join()).collect();
    let mut sending = crowd.send(messages, None);
    crowd.until_handled(messages);
    sending.done::<()>();
    assert_eq!(crowd.number("select count(*) from work"), messages as f64, "{members} members: effects");
    let rate = |until: &str| {
        crowd.number(&format!(
            "select (count(*) / extract(epoch from max(done_at) - min(done_at)))::float8 from work where done_at <= ({until})"
        ))
    };
    let all = "select min(last) from (select max(done_at) as last from work group by member) ends";
    let shares = crowd.numbers("select count(distinct queue) from work group by member order by 1");
    let (busy, whole) = (rate(all), rate("select max(done_at) from work"));
    drop(children);
    [busy, whole, shares.last().copied().unwrap_or(0.0), shares.first().copied().unwrap_or(0.0)]
}

/// Messages per second while members come and go.
const SENT: u32 = 200;

fn coming_and_going(bench: &mut Bench, moving: &BrokerServer) {
    let repetitions = bench.profile.pick(1, 5);
    let about = format!(
        "{}: {SENT} messages per second; one member, joined by two, then one leaves, one is killed, one joins, one is killed, one joins, \
         three seconds apart",
        moving.name()
    );
    let columns = ["messages", "handled twice", "out of order", "repeats received", "longest pause s"];
    let mut table = Table::new("members that come and go", about, &columns);
    for repetition in 1..=repetitions {
        bench.say(format!("members that come and go {repetition}/{repetitions}"));
        let mut crowd = Crowd::new(bench, moving);
        let messages = u64::from(SENT) * 24;
        let mut members = vec![crowd.join()];
        let mut sending = crowd.send(messages, Some(SENT));
        for step in [None, None, Some(false), Some(true), None, Some(true), None] {
            std::thread::sleep(Duration::from_secs(3));
            match step {
                None => members.push(crowd.join()),
                Some(false) => drop(members.remove(0)),
                Some(true) => members.remove(0).kill(),
            }
        }
        sending.done::<()>();
        crowd.until_handled(messages);
        let repeats: u64 = members
            .iter_mut()
            .map(|member| {
                member.go();
                member.done::<u64>()
            })
            .sum();
        let twice = crowd.number("select count(*) - count(distinct number) from work");
        let pause = crowd.number(
            "select extract(epoch from max(pause))::float8 from (select done_at - lag(done_at) over (partition by queue order by done_at) as pause from work) pauses",
        );
        table.row(
            format!("run {repetition}"),
            [
                Some(messages as f64),
                Some(twice),
                Some(crowd.out_of_order()),
                Some(repeats as f64),
                Some(pause),
            ],
        );
    }
    bench.report(table);
}
