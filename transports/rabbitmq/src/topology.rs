//! Exchanges, queues and bindings: made on request, else looked at.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use lapin::types::{FieldTable, ShortString};
use outbox_contract::backend::{Loss, LossCause, Subscription, Unit};
use outbox_contract::{Consumer, Topic, TransportErrorKind};

use crate::arguments::Arguments;
use crate::config::{Config, Topology};
use crate::error::Fault;
use crate::inequivalent::Inequivalent;
use crate::routing::{MAX_NAME_BYTES, problem_of};

/// Number of queues that are asked about at once. Each takes several round trips, and whoever waits
/// for them, a relay's batch or an inbox, gives all of them a few seconds.
pub(crate) const AT_ONCE: usize = 16;

/// Something that is to be there. All of it is durable.
#[derive(Clone, Debug)]
pub(crate) enum Declaration {
    Exchange { name: ShortString, kind: &'static str, is_passive: bool },
    Queue { name: ShortString, arguments: FieldTable, is_passive: bool },
    Binding { queue: ShortString, exchange: ShortString, routing_key: ShortString },
}

/// A connection over which the broker can be asked for it.
pub(crate) trait Declares {
    /// Makes it, or looks whether it is there (`is_passive`), on a channel of its own: the broker
    /// closes a channel with each refusal.
    async fn declare(&self, what: String, declaration: Declaration) -> Result<(), Fault>;
}

/// A queue that is consumed.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) unit: Unit,
    pub(crate) name: ShortString,
    routing_key: ShortString,
}

/// Queues, each with what is wrong with it alone.
pub(crate) type Queues = Vec<(Queue, Option<Fault>)>;

/// Makes what publishing needs, if anything is to be made.
pub(crate) async fn prepare_publishing(connection: &impl Declares, config: &Config) -> Result<(), Fault> {
    if config.topology != Topology::Declared {
        return Ok(());
    }
    declare_exchanges(connection, config).await?;
    let mut all = Vec::new();
    for (topic, consumers) in &config.consumers {
        for consumer in consumers {
            all.extend(queues(config, consumer, topic)?);
        }
    }
    prepare_queues(connection, config, &all).await
}

/// Looks whether what publishing needs is there.
pub(crate) async fn check_publishing(connection: &impl Declares, config: &Config) -> Result<(), Fault> {
    let name = config.exchange.clone();
    let what = format!("exchange {:?}", name.as_str());
    connection.declare(what, Declaration::Exchange { name, kind: "direct", is_passive: true }).await
}

/// Makes or looks at the queues of a consumer. Answers all of them, each with what is wrong with it
/// alone.
pub(crate) async fn prepare_consuming(
    connection: &impl Declares,
    config: &Config,
    consumer: &Consumer,
    topics: &[Topic],
) -> Result<Queues, Fault> {
    if let Some(problem) = problem_of(consumer) {
        return Err(Fault::new(TransportErrorKind::Invalid, "name-not-valid", problem));
    }
    if config.topology == Topology::Declared {
        declare_exchanges(connection, config).await?;
    }
    let mut all = Vec::new();
    for topic in topics {
        all.extend(queues(config, consumer, topic)?);
    }
    let preparing: Vec<_> = all.iter().map(|queue| prepare_queue(connection, config, queue)).collect();
    let mut prepared = stream::iter(preparing).buffered(AT_ONCE);
    let mut faults = Vec::with_capacity(all.len());
    while let Some(result) = prepared.next().await {
        match result {
            Ok(()) => faults.push(None),
            Err(fault) if fault.is_of_one_queue() => faults.push(Some(fault)),
            Err(fault) => return Err(fault),
        }
    }
    drop(prepared);
    Ok(all.into_iter().zip(faults).collect())
}

/// Finds queues that are about to be made again, of the topics that the consumer had queues of.
/// Fails if that can't be found out: once they are made again, nothing tells.
pub(crate) async fn find_lost(
    connection: &impl Declares,
    config: &Config,
    subscription: &Subscription,
    had: impl Fn(&Topic) -> bool,
) -> Result<Vec<Loss>, Fault> {
    if config.topology != Topology::Declared {
        return Ok(Vec::new());
    }
    let topics = subscription.topics.iter().filter(|topic| had(topic));
    // Invalid names are reported by the preparation.
    let queues = topics.filter_map(|topic| queues(config, &subscription.consumer, topic).ok()).flatten();
    let looks: Vec<_> =
        queues.map(|queue| async move { (look_at(connection, &queue).await, queue) }).collect();
    let mut looked = stream::iter(looks).buffered(AT_ONCE);
    let mut gone = Vec::new();
    while let Some((found, queue)) = looked.next().await {
        match found {
            Err(fault) if fault.kind == TransportErrorKind::Missing => gone.push(queue),
            Err(fault) if !fault.is_of_one_queue() => return Err(fault),
            _ => {}
        }
    }
    let loss = |queue: Queue| {
        let words = format!(
            "queue {:?} was not there any more, with the messages that were in it, and was made again: see who deleted it. What was published meanwhile \
             reached this consumer only if no other queue took it, as then the relay keeps it",
            queue.name.as_str()
        );
        Loss::new(queue.unit, LossCause::Queue, words)
    };
    Ok(gone.into_iter().map(loss).collect())
}

async fn prepare_queues(connection: &impl Declares, config: &Config, queues: &[Queue]) -> Result<(), Fault> {
    let preparing: Vec<_> = queues.iter().map(|queue| prepare_queue(connection, config, queue)).collect();
    stream::iter(preparing).buffered(AT_ONCE).try_collect().await
}

pub(crate) async fn prepare_queue(
    connection: &impl Declares,
    config: &Config,
    queue: &Queue,
) -> Result<(), Fault> {
    match config.topology {
        Topology::Declared => declare_queue(connection, config, queue).await,
        Topology::Checked => {
            look_at(connection, queue).await?;
            look_into(connection, config, queue).await
        }
        Topology::Trusted => look_at(connection, queue).await,
    }
}

/// Returns the queues of a consumer for a topic.
pub(crate) fn queues(config: &Config, consumer: &Consumer, topic: &Topic) -> Result<Vec<Queue>, Fault> {
    (0..config.partitions.0)
        .map(|number| {
            let name = config.partitions.queue(consumer, topic, number);
            let routing_key = ShortString::try_new(config.partitions.routing_key(topic, number));
            let (Some(name), Ok(routing_key)) = (name, routing_key) else {
                let words = format!(
                    "the queue of consumer {consumer} for topic {topic} would have a name of over {MAX_NAME_BYTES} bytes; shorten one of them"
                );
                return Err(Fault::new(TransportErrorKind::Invalid, "name-not-valid", words));
            };
            Ok(Queue { unit: Unit { topic: topic.clone(), number }, name, routing_key })
        })
        .collect()
}

async fn declare_exchanges(connection: &impl Declares, config: &Config) -> Result<(), Fault> {
    for (name, kind) in [(Some(&config.exchange), "direct"), (config.dead_letters.as_ref(), "fanout")] {
        if let Some(name) = name {
            let what = format!("exchange {:?}", name.as_str());
            let exchange = Declaration::Exchange { name: name.clone(), kind, is_passive: false };
            connection.declare(what, exchange).await?;
        }
    }
    if let Some(name) = &config.dead_letters {
        let what = format!("queue {:?}", name.as_str());
        let arguments = Arguments::of_dead_letters().table();
        let queue = Declaration::Queue { name: name.clone(), arguments, is_passive: false };
        connection.declare(what.clone(), queue).await?;
        let (queue, exchange, routing_key) = (name.clone(), name.clone(), ShortString::default());
        connection.declare(what, Declaration::Binding { queue, exchange, routing_key }).await?;
    }
    Ok(())
}

async fn declare_queue(connection: &impl Declares, config: &Config, queue: &Queue) -> Result<(), Fault> {
    let what = format!("queue {:?}", queue.name.as_str());
    let arguments = Arguments::wanted(config).table();
    let binding = Declaration::Binding {
        queue: queue.name.clone(),
        exchange: config.exchange.clone(),
        routing_key: queue.routing_key.clone(),
    };
    let declared = Declaration::Queue { name: queue.name.clone(), arguments, is_passive: false };
    connection.declare(what.clone(), declared).await?;
    connection.declare(format!("binding of {what}"), binding).await
}

/// Returns true if the queue is there.
async fn look_at(connection: &impl Declares, queue: &Queue) -> Result<(), Fault> {
    let what = format!("queue {:?}", queue.name.as_str());
    let (name, arguments) = (queue.name.clone(), FieldTable::default());
    connection.declare(what, Declaration::Queue { name, arguments, is_passive: true }).await
}

/// Returns true if the queue is one that keeps order and drops nothing in silence.
///
/// Declaring a queue that is there changes nothing: either it is the same, or the broker names the
/// first difference. So the declaration is made alike, one difference after the other, and then is
/// what the queue is.
async fn look_into(connection: &impl Declares, config: &Config, queue: &Queue) -> Result<(), Fault> {
    // A queue has a dozen arguments in all.
    const MAX_DIFFERENCES: usize = 20;
    let what = format!("queue {:?}", queue.name.as_str());
    let mut arguments = Arguments::wanted(config);
    for _ in 0..MAX_DIFFERENCES {
        let (name, arguments_now) = (queue.name.clone(), arguments.table());
        let alike = Declaration::Queue { name, arguments: arguments_now, is_passive: false };
        let fault = match connection.declare(what.clone(), alike).await {
            Ok(()) => return arguments.problem().map_or(Ok(()), |problem| Err(unfit(&what, &problem))),
            Err(fault) if fault.kind == TransportErrorKind::NotPermitted => {
                return Err(Fault::new(
                    TransportErrorKind::NotPermitted,
                    fault.class,
                    format!(
                        "{what}: inspecting it needs the `configure` permission; grant it, or use Topology::Trusted and check the queues yourself: {fault}"
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
    let words = format!("{what} can't be used: {problem}; delete it when it is empty, and create it again");
    Fault::new(TransportErrorKind::Invalid, "queue-not-fit", words)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::time::Duration;

    use super::*;
    use crate::RabbitMqTransport;

    /// Time for which an answer is under way.
    const ROUND_TRIP: Duration = Duration::from_millis(150);

    /// A broker that takes everything, and is far away.
    #[derive(Default)]
    struct FarAway {
        declared: RefCell<Vec<String>>,
        now: Cell<usize>,
        most: Cell<usize>,
    }

    impl Declares for FarAway {
        async fn declare(&self, what: String, _: Declaration) -> Result<(), Fault> {
            self.now.set(self.now.get() + 1);
            self.most.set(self.most.get().max(self.now.get()));
            // A channel is opened first.
            tokio::time::sleep(ROUND_TRIP * 2).await;
            self.now.set(self.now.get() - 1);
            self.declared.borrow_mut().push(what);
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_queues_of_a_broker_far_away_are_made_side_by_side() {
        let builder = RabbitMqTransport::builder("amqp://broker").topology(Topology::Declared).partitions(32);
        let consumers = ["inventory", "billing"].map(|name| Consumer::new(name).unwrap());
        let topic = Topic::new("orders").unwrap();
        let config = consumers.into_iter().fold(builder, |it, consumer| it.consumer(topic.clone(), consumer));
        let (config, broker) = (config.config().unwrap(), FarAway::default());
        let start = tokio::time::Instant::now();
        prepare_publishing(&broker, &config).await.unwrap();

        let declared = broker.declared.borrow();
        assert_eq!(declared[0], "exchange \"outbox\"", "queues are bound to it");
        assert_eq!(declared.len(), 1 + 2 * 64);
        assert_eq!(broker.most.get(), AT_ONCE);
        // The exchange, then four times sixteen queues, each with its binding.
        assert_eq!(start.elapsed(), ROUND_TRIP * 2 * 9);
    }
}
