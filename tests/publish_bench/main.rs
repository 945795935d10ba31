//! Cost of publishing for this process, independent of both sides: `cargo bench -p outbox-tests
//! --bench publish -- --help`

mod amqp;
mod subjects;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};
use outbox_contract::backend::{Outcome, Outcomes, Position, PublishBatch, RelayId, Stored};
use outbox_contract::{Message, Route, Timestamp, Topic, Transport};
use outbox_tests::bench::process;
use subjects::Subject;

/// Publishes messages of 300 bytes from memory, and reports the cost of each for this process:
/// microseconds of processor time.
#[derive(Parser)]
#[command(name = "publish", after_help = HELP, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    part: Option<Part>,
    /// The broker, a real one, started here on a free port.
    #[arg(value_enum, default_values_t = Broker::value_variants().iter().copied())]
    brokers: Vec<Broker>,
    /// Number of messages in each row.
    #[arg(long, default_value_t = 100_000)]
    messages: usize,
    /// Number of messages in each call.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 250, 500])]
    batch: Vec<usize>,
    /// Number of concurrent calls.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4])]
    under_way: Vec<usize>,
    // Cargo passes it to each benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Debug, Subcommand)]
enum Part {
    /// The broker's share of publishing to RabbitMQ, by headers, exchanges, queues and frames.
    Amqp(amqp::Amqp),
}

const HELP: &str = "\
Rates say something of the machine, processor time of the code. The brokers come from the folder that tests/servers/prepare makes
(target/servers, or what OUTBOX_SERVERS_DIR names).

  cargo bench -p outbox-tests --bench publish -- kafka --batch 250,1000 --under-way 2
  cargo bench -p outbox-tests --bench publish -- amqp
";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Broker {
    /// A topic of four partitions on one broker.
    Kafka,
    /// A quorum queue.
    Rabbitmq,
    /// The streams of one topic.
    Redis,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(Part::Amqp(part)) = &cli.part {
        return if amqp::run(part).await { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    println!("{:<10} {:>6} {:>10} {:>10} {:>12}", "broker", "batch", "under way", "us CPU", "messages/s");
    let mut missing = false;
    for broker in cli.brokers {
        let Some(subject) = Subject::start(broker).await else {
            missing = true;
            continue;
        };
        for batch in &cli.batch {
            for under_way in &cli.under_way {
                let (cpu, rate) = measure(&subject, *batch, *under_way, cli.messages).await;
                let name = subject.name();
                println!("{name:<10} {batch:>6} {under_way:>10} {cpu:>10.1} {rate:>12.0}");
            }
        }
    }
    if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Returns microseconds of processor time for each message, and messages a second.
async fn measure(subject: &Subject, batch: usize, under_way: usize, messages: usize) -> (f64, f64) {
    let topic = Topic::new("bench").expect("a valid topic");
    let transport = subject.transport(&topic);
    let stored: Vec<_> = (0..batch * under_way).map(|at| message(&topic, at)).collect();
    let lanes: Vec<_> = stored.chunks(batch).map(<[_]>::to_vec).collect();
    // Connections are opened, and the broker knows the producer, before the round that counts.
    run(&transport, &lanes, batch * under_way).await;
    let (started, before) = (Instant::now(), process::cpu());
    let sent = run(&transport, &lanes, messages).await as f64;
    let (wall, cpu) = (started.elapsed(), process::cpu() - before);
    transport.close().await;
    (cpu.as_secs_f64() * 1e6 / sent, sent / wall.as_secs_f64())
}

/// Publishes each lane's batch repeatedly, the lanes side by side; returns the number of messages.
async fn run(transport: &Arc<dyn Transport>, lanes: &[Vec<Arc<Stored>>], messages: usize) -> usize {
    let rounds = messages.div_ceil(lanes.iter().map(Vec::len).sum());
    let tasks = lanes.iter().cloned().map(|lane| {
        let transport = Arc::clone(transport);
        tokio::spawn(async move {
            for _ in 0..rounds {
                let (outcomes, limit) = (Outcomes::new(lane.len()), Duration::from_secs(60));
                let relay = RelayId::new();
                let batch = PublishBatch::new(Route::default(), relay, "/bench".into(), lane.clone(), limit);
                transport.publish(batch, &outcomes).await;
                let delivered = outcomes.take().iter().all(|outcome| *outcome == Some(Outcome::Delivered));
                assert!(delivered, "a message was not delivered");
            }
            rounds * lane.len()
        })
    });
    let mut sent = 0;
    for task in tasks.collect::<Vec<_>>() {
        sent += task.await.expect("it does not panic");
    }
    sent
}

fn message(topic: &Topic, at: usize) -> Arc<Stored> {
    let message = Message::new(topic.clone(), "bench.event")
        .expect("valid names")
        .with_key(format!("key-{at}"))
        .expect("a valid key");
    let position = Position(i64::try_from(at).unwrap_or(i64::MAX - 1) + 1);
    Arc::new(Stored::new(position, Timestamp::now(), message.with_payload(vec![b'x'; 300])))
}
