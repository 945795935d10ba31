//! Exchanges, queues and bindings: made on request, else looked at.

use std::collections::BTreeMap;

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use outbox_contract::subscription::Unit;
use outbox_contract::{Consumer, Topic, TransportErrorKind};

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

const DURABLE: QueueDeclareOptions =
    QueueDeclareOptions { passive: false, durable: true, exclusive: false, auto_delete: false, nowait: false };

async fn declare_exchanges(connection: &Connection, config: &Config) -> Result<(), Fault> {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let exchanges = [(Some(&config.exchange), ExchangeKind::Direct), (config.dead_letters.as_ref(), ExchangeKind::Fanout)];
    let channel = connection.channel().await?;
    for (name, kind) in exchanges {
        if let Some(name) = name {
            let asked = channel.exchange_declare(name.clone(), kind, options, FieldTable::default());
            connection.answer(format!("exchange {:?}", name.as_str()), asked).await?;
        }
    }
    if let Some(name) = &config.dead_letters {
        let what = format!("queue {:?}", name.as_str());
        let asked = channel.queue_declare(name.clone(), DURABLE, table(Arguments::of_dead_letters()));
        connection.answer(&what, asked).await?;
        let options = QueueBindOptions::default();
        let asked = channel.queue_bind(name.clone(), name.clone(), "".into(), options, FieldTable::default());
        connection.answer(&what, asked).await?;
    }
    Ok(())
}

async fn declare_queue(connection: &Connection, config: &Config, queue: &Queue) -> Result<(), Fault> {
    let channel = connection.channel().await?;
    let arguments = table(Arguments::wanted(config));
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
        let asked = channel.queue_declare(queue.name.clone(), DURABLE, table(arguments.clone()));
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

fn table(arguments: Arguments) -> FieldTable {
    arguments.0.into_iter().map(|(name, value)| (ShortString::from(name), value)).collect::<BTreeMap<_, _>>().into()
}

/// The arguments of a queue.
#[derive(Clone, Debug, PartialEq)]
struct Arguments(BTreeMap<String, AMQPValue>);

const KIND: &str = "x-queue-type";
const SINGLE: &str = "x-single-active-consumer";
const LIMIT: &str = "x-delivery-limit";
const DEAD_LETTERS: &str = "x-dead-letter-exchange";
const LENGTH: &str = "x-max-length";
const OVERFLOW: &str = "x-overflow";

impl Arguments {
    fn text(value: &str) -> AMQPValue {
        AMQPValue::LongString(value.into())
    }

    fn of_dead_letters() -> Self {
        Self(BTreeMap::from([(KIND.to_owned(), Self::text("quorum")), (LIMIT.to_owned(), AMQPValue::LongInt(-1))]))
    }

    /// What a queue of ours is declared with.
    fn wanted(config: &Config) -> Self {
        let mut arguments = Self::of_dead_letters().0;
        arguments.insert(SINGLE.to_owned(), AMQPValue::Boolean(true));
        if let Some(limit) = config.delivery_limit {
            arguments.insert(LIMIT.to_owned(), AMQPValue::LongLongInt(limit.into()));
        }
        if let Some(most) = config.most_waiting {
            arguments.insert(LENGTH.to_owned(), AMQPValue::LongLongInt(most.into()));
            arguments.insert(OVERFLOW.to_owned(), Self::text("reject-publish"));
        }
        if let Some(exchange) = &config.dead_letters {
            arguments.insert(DEAD_LETTERS.to_owned(), Self::text(exchange.as_str()));
        }
        Self(arguments)
    }

    /// Takes over what the queue that is there has; refuses what can't be lived with.
    fn become_like(&mut self, difference: &Inequivalent) -> Result<(), String> {
        let Inequivalent { argument, current, value } = difference;
        let shown = current.as_deref().unwrap_or("not set");
        match argument.as_str() {
            KIND => Err(format!("its {KIND} is {shown}; only quorum queues keep what they confirmed and know a limit of deliveries")),
            SINGLE => Err(format!("its {SINGLE} is {shown}; without it several members get messages of one key at once")),
            "durable" | "exclusive" | "auto_delete" => Err(format!("{argument} is {shown}; it should be durable and nothing else")),
            _ if current.is_none() => {
                self.0.remove(argument);
                Ok(())
            }
            _ => match value {
                Some(value) => {
                    self.0.insert(argument.clone(), value.clone());
                    Ok(())
                }
                None => Err(format!("its {argument} is {shown}, which can't be judged")),
            },
        }
    }

    /// How a queue like this would lose messages without a word, if it would.
    fn problem(&self) -> Option<String> {
        if self.0.contains_key("x-expires") {
            return Some("it has x-expires, which deletes the queue with all that is in it".to_owned());
        }
        if self.0.contains_key(DEAD_LETTERS) {
            return None;
        }
        let limit = self.0.get(LIMIT).and_then(number);
        if limit.is_none_or(|limit| limit >= 0) {
            let shown = limit.map_or("not set, which means 20".to_owned(), |limit| limit.to_string());
            return Some(format!(
                "its {LIMIT} is {shown}, and it has no {DEAD_LETTERS}: what is delivered more often, be it by lost connections, is dropped in \
                 silence; it should be -1, or have a {DEAD_LETTERS}"
            ));
        }
        if self.0.contains_key("x-message-ttl") {
            return Some(format!("it has x-message-ttl and no {DEAD_LETTERS}: what waits longer is dropped in silence"));
        }
        let bounded = [LENGTH, "x-max-length-bytes"].iter().any(|argument| self.0.contains_key(*argument));
        (bounded && self.0.get(OVERFLOW) != Some(&Self::text("reject-publish"))).then(|| {
            format!("its length is bounded, and its {OVERFLOW} is not reject-publish: when it is full it drops the oldest messages in silence")
        })
    }
}

fn number(value: &AMQPValue) -> Option<i64> {
    match value {
        AMQPValue::LongInt(value) => Some((*value).into()),
        AMQPValue::LongLongInt(value) => Some(*value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn like(differences: &[(&str, Option<&str>, Option<AMQPValue>)]) -> Result<Option<String>, String> {
        let mut arguments = Arguments::of_dead_letters();
        for (argument, current, value) in differences {
            let current = current.map(ToOwned::to_owned);
            arguments.become_like(&Inequivalent { argument: (*argument).to_owned(), current, value: value.clone() })?;
        }
        Ok(arguments.problem())
    }

    fn number_of(value: i64) -> Option<AMQPValue> {
        Some(AMQPValue::LongLongInt(value))
    }

    #[test]
    fn a_queue_that_drops_in_silence_is_refused() {
        assert_eq!(like(&[]), Ok(None));
        let dead = (DEAD_LETTERS, Some("dead"), Some(Arguments::text("dead")));
        let reject = (OVERFLOW, Some("reject-publish"), Some(Arguments::text("reject-publish")));
        let drops = [
            (LIMIT, None, None),
            (LIMIT, Some("20"), number_of(20)),
            ("x-message-ttl", Some("1"), number_of(1)),
            (LENGTH, Some("9"), number_of(9)),
        ];
        for difference in drops {
            assert!(like(&[difference.clone()]).unwrap().is_some(), "{difference:?}");
            assert_eq!(like(&[difference, dead.clone()]), Ok(None));
        }
        assert_eq!(like(&[(LENGTH, Some("9"), number_of(9)), reject]), Ok(None));
        assert!(like(&[dead, ("x-expires", Some("1"), number_of(1))]).unwrap().is_some());
    }

    #[test]
    fn a_queue_that_breaks_the_order_is_refused() {
        assert!(like(&[(KIND, Some("classic"), Some(Arguments::text("classic")))]).is_err());
        assert!(like(&[(SINGLE, None, None)]).is_err());
        assert!(like(&[("durable", Some("false"), None)]).is_err());
        assert!(like(&[("x-new", Some("[]"), None)]).is_err());
    }
}
