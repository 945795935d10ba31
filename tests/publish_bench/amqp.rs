//! The broker's cost of a message in RabbitMQ, taken apart: each variant differs from the first, a
//! message as the transport publishes it, in one thing. With the client library alone, so that
//! everything can be varied.

use std::time::Instant;

use clap::Args;
use futures_util::future::try_join_all;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use outbox_servers::{RabbitMq, RabbitMqServer};

/// The broker's share of publishing to RabbitMQ, by headers, exchanges, queues and frames.
#[derive(Clone, Debug, Args)]
pub(crate) struct Amqp {
    /// Number of messages of each run.
    #[arg(long, default_value_t = 20_000)]
    messages: usize,
    /// Number of rounds, in which the variants take turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

#[derive(Clone, Copy, Debug)]
enum Headers {
    /// Those of CloudEvents, as the transport writes them.
    CloudEvents,
    /// The same values, with names of two letters.
    Short,
    /// As many more.
    Double,
    None,
}

/// A message, its way and its queue.
#[derive(Clone, Debug)]
struct Variant {
    label: &'static str,
    headers: Headers,
    /// None: the default exchange.
    exchange: Option<ExchangeKind>,
    /// Queues that the messages are spread over.
    queues: usize,
    queue_type: &'static str,
    mandatory: bool,
    message_id: bool,
    confirms: bool,
    connections: usize,
    payload: usize,
    frame_max: u32,
}

fn variants() -> Vec<Variant> {
    let usual = Variant {
        label: "as published",
        headers: Headers::CloudEvents,
        exchange: Some(ExchangeKind::Direct),
        queues: 1,
        queue_type: "quorum",
        mandatory: true,
        message_id: true,
        confirms: true,
        connections: 2,
        payload: 300,
        frame_max: 0,
    };
    let with = |label, change: fn(&mut Variant)| {
        let mut variant = Variant { label, ..usual.clone() };
        change(&mut variant);
        variant
    };
    vec![
        usual.clone(),
        with("headers with short names", |it| it.headers = Headers::Short),
        with("twice as many headers", |it| it.headers = Headers::Double),
        with("no headers", |it| it.headers = Headers::None),
        with("no headers, no message id", |it| (it.headers, it.message_id) = (Headers::None, false)),
        with("default exchange", |it| it.exchange = None),
        with("topic exchange", |it| it.exchange = Some(ExchangeKind::Topic)),
        with("not mandatory", |it| it.mandatory = false),
        with("no confirmations", |it| it.confirms = false),
        with("1 connection", |it| it.connections = 1),
        with("4 connections", |it| it.connections = 4),
        with("4 queues", |it| it.queues = 4),
        with("16 queues", |it| it.queues = 16),
        with("frames of 8 KiB", |it| it.frame_max = 8_192),
        with("frames of 1 MiB", |it| it.frame_max = 1 << 20),
        with("payload of 30 bytes", |it| it.payload = 30),
        with("payload of 3,000 bytes", |it| it.payload = 3_000),
        with("classic queue", |it| it.queue_type = "classic"),
        with("stream", |it| it.queue_type = "stream"),
        with("stream, no headers, default exchange", |it| {
            (it.queue_type, it.headers, it.exchange) = ("stream", Headers::None, None);
        }),
    ]
}

/// Measures all variants; returns false if there is no broker.
pub(crate) async fn run(part: &Amqp) -> bool {
    let server = match RabbitMq::newest().as_shipped().start() {
        Ok(server) => server,
        Err(missing) => {
            eprintln!("{missing}");
            return false;
        }
    };
    let variants = variants();
    let mut runs: Vec<Vec<[f64; 3]>> = vec![Vec::new(); variants.len()];
    for round in 1..=part.rounds {
        for (variant, runs) in variants.iter().zip(&mut runs) {
            let figures = one(&server, variant, part.messages).await.expect("the broker answers");
            eprintln!("round {round}: {}: broker {:.1} us", variant.label, figures[0]);
            runs.push(figures);
        }
    }
    println!("{}: {} messages; medians of {} rounds\n", server.name(), part.messages, part.rounds);
    println!("{:<40} {:>10} {:>10} {:>12}", "", "broker us", "client us", "messages/s");
    for (variant, runs) in variants.iter().zip(&runs) {
        let of = |at: usize| {
            let mut all: Vec<f64> = runs.iter().map(|run| run[at]).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        println!("{:<40} {:>10.1} {:>10.1} {:>12.0}", variant.label, of(0), of(1), of(2));
    }
    true
}

/// Name of the exchange, and of the first part of every queue's name.
const NAME: &str = "bench";
/// Messages of a publish, and publishes side by side.
const BATCH: usize = 500;
const AT_ONCE: usize = 8;

/// Returns the broker's and the client's processor time for each message in microseconds, and
/// messages per second.
async fn one(server: &RabbitMqServer, variant: &Variant, messages: usize) -> lapin::Result<[f64; 3]> {
    let mut url = server.fresh_vhost();
    if variant.frame_max > 0 {
        url.push_str(&format!("?frame_max={}", variant.frame_max));
    }
    let connect =
        (0..variant.connections).map(|_| Connection::connect(&url, ConnectionProperties::default()));
    let connections = try_join_all(connect).await?;
    let mut channels = Vec::new();
    for connection in &connections {
        let channel = connection.create_channel().await?;
        if variant.confirms {
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
        }
        channels.push(channel);
    }
    declare(&channels[0], variant).await?;
    publish(&channels, variant, messages / 10).await?;
    let (started, before) = (Instant::now(), (server.usage().cpu, crate::process::cpu()));
    publish(&channels, variant, messages).await?;
    let seconds = started.elapsed().as_secs_f64();
    if !variant.confirms {
        // The broker's answer to a question on the same channel comes behind everything.
        for channel in &channels {
            channel
                .exchange_declare("amq.topic".into(), ExchangeKind::Topic, passive(), FieldTable::default())
                .await?;
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    let each = |time: std::time::Duration| time.as_secs_f64() * 1e6 / messages as f64;
    let used = (server.usage().cpu - before.0, crate::process::cpu() - before.1);
    for connection in connections {
        connection.close(200, "OK".into()).await?;
    }
    Ok([each(used.0), each(used.1), messages as f64 / seconds])
}

fn passive() -> ExchangeDeclareOptions {
    ExchangeDeclareOptions { passive: true, durable: true, ..ExchangeDeclareOptions::default() }
}

async fn declare(channel: &Channel, variant: &Variant) -> lapin::Result<()> {
    if let Some(kind) = &variant.exchange {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare(NAME.into(), kind.clone(), options, FieldTable::default()).await?;
    }
    for number in 0..variant.queues {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(variant.queue_type.into()));
        if variant.queue_type == "quorum" {
            arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        }
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(key(number).as_str().into(), options, arguments).await?;
        if variant.exchange.is_some() {
            let (queue, exchange, key) = (key(number), NAME.into(), key(number));
            let options = QueueBindOptions::default();
            channel
                .queue_bind(
                    queue.as_str().into(),
                    exchange,
                    key.as_str().into(),
                    options,
                    FieldTable::default(),
                )
                .await?;
        }
    }
    Ok(())
}

/// Name of a queue, and routing key of its messages.
fn key(number: usize) -> String {
    format!("{NAME}.{number}")
}

async fn publish(channels: &[Channel], variant: &Variant, messages: usize) -> lapin::Result<()> {
    let payload = vec![b'x'; variant.payload];
    let mut sent = 0;
    while sent < messages {
        let batches = (0..AT_ONCE).map(|lane| {
            let (channel, payload) = (&channels[lane % channels.len()], &payload);
            async move {
                let send = (0..BATCH).map(|at| send(channel, variant, at, payload));
                for confirmation in try_join_all(try_join_all(send).await?).await? {
                    assert!(!confirmation.is_nack(), "the broker takes everything");
                }
                Ok::<_, lapin::Error>(())
            }
        });
        try_join_all(batches).await?;
        sent += AT_ONCE * BATCH;
    }
    Ok(())
}

async fn send(
    channel: &Channel,
    variant: &Variant,
    at: usize,
    payload: &[u8],
) -> lapin::Result<lapin::PublisherConfirm> {
    let exchange = if variant.exchange.is_some() { NAME } else { "" };
    let options = BasicPublishOptions { mandatory: variant.mandatory, immediate: false };
    let key = key(at % variant.queues);
    channel.basic_publish(exchange.into(), key.as_str().into(), options, payload, properties(variant)).await
}

/// Name, name of two letters, and value of each header of CloudEvents.
const HEADERS: [(&str, &str, &str); 7] = [
    ("cloudEvents:specversion", "sv", "1.0"),
    ("cloudEvents:id", "id", "0199f3a1-7c2e-7d31-9a55-1c0de0000001"),
    ("cloudEvents:source", "so", "/bench"),
    ("cloudEvents:type", "ty", "bench.made"),
    ("cloudEvents:time", "ti", "2026-11-26T12:00:00.000000Z"),
    ("cloudEvents:sequence", "se", "00000000000000012345"),
    ("cloudEvents:partitionkey", "pk", "key-1234"),
];

fn properties(variant: &Variant) -> BasicProperties {
    let mut headers = FieldTable::default();
    let mut put = |name: &str, value: &str| {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    };
    for (name, short, value) in HEADERS {
        match variant.headers {
            Headers::None => {}
            Headers::Short => put(short, value),
            Headers::CloudEvents => put(name, value),
            Headers::Double => {
                put(name, value);
                put(&format!("more-{name}"), value);
            }
        }
    }
    let mut properties =
        BasicProperties::default().with_content_type("application/json".into()).with_delivery_mode(2);
    if variant.message_id {
        properties = properties.with_message_id("0199f3a1-7c2e-7d31-9a55-1c0de0000001".into());
    }
    properties.with_headers(headers)
}
