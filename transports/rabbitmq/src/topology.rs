//! Exchanges, queues and bindings: made on request, else looked at.

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use outbox_contract::subscription::Unit;
use outbox_contract::{Consumer, Topic, TransportErrorKind};

use crate::arguments::Arguments;
use crate::config::{Config, Topology};
use crate::connection::Connection;
use crate::error::Fault;
use crate::inequivalent::Inequivalent;
use crate::routing::{MOST_NAME_BYTES, problem_of};

/// A queue that is consumed.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) unit: Unit,
    pub(crate) name: ShortString,
    routing_key: ShortString,
}

/// Makes what publishing needs, if anything is to be made.
pub(crate) async fn prepare_publishing(connection: &Connection, config: &Config) -> Result<(), Fault> {
    if config.topology != Topology::Declared {
        return Ok(());
    }
    declare_exchanges(connection, config).await?;
    for (topic, consumers) in &config.consumers {
        for consumer in consumers {
            for queue in queues(config, consumer, topic)? {
                declare_queue(connection, config, &queue).await?;
            }
        }
    }
    Ok(())
}

/// Looks whether what publishing needs is there.
pub(crate) async fn check_publishing(connection: &Connection, config: &Config) -> Result<(), Fault> {
    let channel = connection.channel().await?;
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    let name = config.exchange.clone();
    let asked = channel.exchange_declare(name, ExchangeKind::Direct, options, FieldTable::default());
    connection.answer(format!("exchange {:?}", config.exchange.as_str()), asked).await
}

/// Makes or looks at the queues of a consumer.
pub(crate) async fn prepare_consuming(
    connection: &Connection,
    config: &Config,
    consumer: &Consumer,
    topics: &[Topic],
) -> Result<Vec<Queue>, Fault> {
    if let Some(problem) = problem_of(consumer) {
        return Err(Fault::new(TransportErrorKind::Invalid, "name-not-valid", problem));
    }
    if config.topology == Topology::Declared {
        declare_exchanges(connection, config).await?;
    }
    let mut all = Vec::new();
    for topic in topics {
        for queue in queues(config, consumer, topic)? {
            match config.topology {
                Topology::Declared => declare_queue(connection, config, &queue).await?,
                Topology::Checked => {
                    look_at(connection, &queue).await?;
                    look_into(connection, config, &queue).await?;
                }
                Topology::Trusted => look_at(connection, &queue).await?,
            }
            all.push(queue);
        }
    }
    Ok(all)
}

fn queues(config: &Config, consumer: &Consumer, topic: &Topic) -> Result<Vec<Queue>, Fault> {
    (0..config.partitions.0)
        .map(|number| {
            let name = config.partitions.queue(consumer, topic, number);
            let routing_key = ShortString::try_new(config.partitions.routing_key(topic, number));
            let (Some(name), Ok(routing_key)) = (name, routing_key) else {
                let words = format!(
                    "the queue of consumer {consumer} for topic {topic} would have a name of over {MOST_NAME_BYTES} bytes; shorten one of them"
                );
                return Err(Fault::new(TransportErrorKind::Invalid, "name-not-valid", words));
            };
            Ok(Queue { unit: Unit { topic: topic.clone(), number }, name, routing_key })
        })
        .collect()
}

const DURABLE: QueueDeclareOptions = QueueDeclareOptions {
    passive: false,
    durable: true,
    exclusive: false,
    auto_delete: false,
    nowait: false,
};

async fn declare_exchanges(connection: &Connection, config: &Config) -> Result<(), Fault> {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let exchanges = [
        (Some(&config.exchange), ExchangeKind::Direct),
        (config.dead_letters.as_ref(), ExchangeKind::Fanout),
    ];
    let channel = connection.channel().await?;
    for (name, kind) in exchanges {
        if let Some(name) = name {
            let asked = channel.exchange_declare(name.clone(), kind, options, FieldTable::default());
            connection.answer(format!("exchange {:?}", name.as_str()), asked).await?;
        }
    }
    if let Some(name) = &config.dead_letters {
        let what = format!("queue {:?}", name.as_str());
        let asked = channel.queue_declare(name.clone(), DURABLE, Arguments::of_dead_letters().table());
        connection.answer(&what, asked).await?;
        let options = QueueBindOptions::default();
        let asked = channel.queue_bind(name.clone(), name.clone(), "".into(), options, FieldTable::default());
        connection.answer(&what, asked).await?;
    }
    Ok(())
}

async fn declare_queue(connection: &Connection, config: &Config, queue: &Queue) -> Result<(), Fault> {
    let channel = connection.channel().await?;
    let arguments = Arguments::wanted(config).table();
    let asked = channel.queue_declare(queue.name.clone(), DURABLE, arguments);
    connection.answer(format!("queue {:?}", queue.name.as_str()), asked).await?;
    let options = QueueBindOptions::default();
    let (name, exchange, key) = (queue.name.clone(), config.exchange.clone(), queue.routing_key.clone());
    let asked = channel.queue_bind(name, exchange, key, options, FieldTable::default());
    connection.answer(format!("binding of queue {:?}", queue.name.as_str()), asked).await
}

/// Whether the queue is there.
async fn look_at(connection: &Connection, queue: &Queue) -> Result<(), Fault> {
    let channel = connection.channel().await?;
    let options = QueueDeclareOptions { passive: true, ..DURABLE };
    let asked = channel.queue_declare(queue.name.clone(), options, FieldTable::default());
    connection.answer(format!("queue {:?}", queue.name.as_str()), asked).await.map(drop)
}

/// Whether the queue is one that keeps order and drops nothing in silence.
///
/// Declaring a queue that is there changes nothing: either it is the same, or the broker names the first difference. So the declaration is made alike, one
/// difference after the other, and then is what the queue is.
async fn look_into(connection: &Connection, config: &Config, queue: &Queue) -> Result<(), Fault> {
    // A queue has a dozen arguments in all.
    const MOST_DIFFERENCES: usize = 20;
    let what = format!("queue {:?}", queue.name.as_str());
    let mut arguments = Arguments::wanted(config);
    for _ in 0..MOST_DIFFERENCES {
        // The broker closes a channel with each difference.
        let channel = connection.channel().await?;
        let asked = channel.queue_declare(queue.name.clone(), DURABLE, arguments.table());
        let fault = match connection.answer(&what, asked).await {
            Ok(_) => return arguments.problem().map_or(Ok(()), |problem| Err(unfit(&what, &problem))),
            Err(fault) if fault.kind == TransportErrorKind::NotPermitted => {
                return Err(Fault::new(
                    TransportErrorKind::NotPermitted,
                    fault.class,
                    format!(
                        "{what}: looking into it needs the permission configure; grant it, or say Topology::Trusted and see to the queues yourself: {fault}"
                    ),
                ));
            }
            Err(fault) => fault,
        };
        let Some(difference) = Inequivalent::read(&fault.to_string()) else { return Err(fault) };
        arguments.become_like(&difference).map_err(|problem| unfit(&what, &problem))?;
    }
    Err(unfit(&what, "it has more arguments than are known"))
}

fn unfit(what: &str, problem: &str) -> Fault {
    let words = format!("{what} can't be used: {problem}; delete it when it is empty and make it anew");
    Fault::new(TransportErrorKind::Invalid, "queue-not-fit", words)
}
