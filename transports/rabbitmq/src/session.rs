//! A connection on which a member consumes its queues, until it is lost.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, SelectAll, StreamExt};
use lapin::message::Delivery as Raw;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer as Handle};
use outbox_contract::backend::{Delivery, Loss, Origin, Subscription, Undecodable};
use outbox_contract::{Message, Topic};
use tokio::time::sleep;

use crate::config::{Config, Topology};
use crate::connection::Connection;
use crate::consumption::prefetch_of_queue;
use crate::error::Fault;
use crate::member::SharedMember;
use crate::priorities::{self, Priorities};
use crate::record;
use crate::topology::{self, Queue, Queues};
use crate::wire::Wire;

/// Interval of looks at queues that can't be consumed.
const LOOK: Duration = Duration::from_secs(3);

/// Time for which a delivery may be in the hands of a member before the broker takes it back, in
/// milliseconds: 24 days. By default it is half an hour. Taken back, it may come to the next member
/// behind newer ones; and a paused member would lose its connection again and again.
const MAX_HELD_MS: i64 = i32::MAX as i64;

/// A connection on which every queue of a member is consumed.
pub(crate) struct Session {
    pub(crate) connection: Arc<Connection>,
    pub(crate) channels: Vec<Option<Channel>>,
    /// The members bid for the queues.
    pub(crate) shares_queues: bool,
    /// The library cancels a consumer when its last handle is dropped, and RabbitMQ then gives the
    /// newer messages to the next one first: so they are kept until the channels are closed, or the
    /// connection is cut.
    handles: Vec<Handle>,
    incoming: SelectAll<stream::BoxStream<'static, (usize, Option<lapin::Result<Raw>>)>>,
}

impl Session {
    /// Consumes all queues that can be consumed. Answers all there are, each with what is wrong
    /// with it alone. With those that were not there any more: of a consumer that had them before,
    /// and of all, `again`. That member is told of them here.
    pub(crate) async fn open(
        config: &Config,
        subscription: &Subscription,
        priorities: &Priorities,
        again: Option<&SharedMember>,
    ) -> Result<(Self, Queues, Vec<Loss>), Fault> {
        let shares_queues = shares_queues(config, subscription, again).await?;
        let connection = Connection::open(config, &format!("consumes for {}", subscription.consumer)).await?;
        // From here on whatever fails cuts the connection before anything else is let go.
        let mut session = Self {
            connection: Arc::new(connection),
            channels: Vec::new(),
            shares_queues,
            handles: Vec::new(),
            incoming: SelectAll::new(),
        };
        let connection = Arc::clone(&session.connection);
        let had = |topic: &Topic| again.is_some() || subscription.handled.contains_key(topic);
        let mut losses = topology::find_lost(&*connection, config, subscription, had).await?;
        let mut queues =
            topology::prepare_consuming(&*connection, config, &subscription.consumer, &subscription.topics)
                .await?;
        if let Some(member) = again {
            // They are there again: after a failure below, the next attempt finds nothing missing.
            member.state().losses.append(&mut losses);
        }
        let share = prefetch_of_queue(subscription.prefetch, queues.len());
        let of_connection = &connection;
        let consuming: Vec<_> = queues
            .iter()
            .enumerate()
            .map(|(place, (queue, fault))| async move {
                match fault {
                    None => {
                        let priority = priorities.at(place).filter(|_| shares_queues);
                        consume(of_connection, config, queue, share, priority).await
                    }
                    Some(fault) => Err(fault.clone()),
                }
            })
            .collect();
        let mut consuming = stream::iter(consuming).buffered(topology::AT_ONCE);
        let mut faults = Vec::with_capacity(queues.len());
        // Behind what has handles in it, so that it goes before them.
        let cut = connection.cut_on_drop();
        while let Some(consumed) = consuming.next().await {
            let place = session.channels.len();
            let (channel, handle) = match consumed {
                Ok(consumed) => consumed,
                Err(fault) if fault.is_of_one_queue() => {
                    session.channels.push(None);
                    faults.push(Some(fault));
                    continue;
                }
                Err(fault) => return Err(fault.naming(names(&queues))),
            };
            faults.push(None);
            let ended = stream::once(async move { (place, None) });
            session.incoming.push(handle.clone().map(move |raw| (place, Some(raw))).chain(ended).boxed());
            session.handles.push(handle);
            session.channels.push(Some(channel));
        }
        cut.disarm();
        drop(consuming);
        // Nothing at all can be received.
        if !faults.is_empty()
            && faults.iter().all(Option::is_some)
            && let Some(fault) = faults.iter_mut().find_map(Option::take)
        {
            return Err(fault);
        }
        queues.iter_mut().zip(faults).for_each(|((_, fault), found)| *fault = found);
        Ok((session, queues, losses))
    }

    /// Carries deliveries into memory until the connection is over, and says why.
    pub(crate) async fn carry(&mut self, shared: &SharedMember, queues: &[(Queue, Option<Fault>)]) -> Fault {
        while let Some((place, raw)) = self.incoming.next().await {
            let Some((queue, _)) = queues.get(place) else { continue };
            let name = queue.name.as_str();
            match raw {
                Some(Ok(raw)) => {
                    let number = raw.delivery_tag;
                    let (message, origin) = read(raw, &queue.unit.topic);
                    let make = |tag| Delivery::new(tag, message, origin);
                    shared.state().consumption.arrived(place, number, make);
                    shared.wake.notify_one();
                }
                Some(Err(error)) => {
                    let fault = Fault::asking(format!("consuming queue {name:?}"), error);
                    return fault.naming(names(queues));
                }
                None => {
                    let gone = lapin::ErrorKind::InvalidChannelState(
                        lapin::ChannelState::Closed,
                        "the broker canceled the consumer: the queue was deleted, or its leader is moving",
                    );
                    return Fault::asking(format!("consuming queue {name:?}"), gone.into());
                }
            }
        }
        // A queue says when it ends, and ends the loop.
        std::future::pending().await
    }

    /// Gives everything back that is not acknowledged, in order: each channel is closed with its
    /// consumer on it. Never a cancel, never a nack.
    pub(crate) async fn close(self) {
        for channel in self.channels.iter().flatten() {
            // The connection is closed next, which has the same effect: where one channel gets no
            // answer, the others would get none either.
            if self.connection.answer("closing a channel", channel.close(200, "OK".into())).await.is_err() {
                break;
            }
        }
        self.connection.close().await;
    }
}

/// Returns true if the members are to share the queues, and the broker can do that. It is asked
/// before each connection: it may have been upgraded.
async fn shares_queues(
    config: &Config,
    subscription: &Subscription,
    again: Option<&SharedMember>,
) -> Result<bool, Fault> {
    if !config.share_queues {
        return Ok(false);
    }
    // The client library keeps what the broker says of itself to itself.
    let wire = Wire::open(config, "asks for the version").await?;
    wire.close().await;
    let is_safe = wire.broker.moves_queues_safely();
    if !is_safe && again.is_none_or(|member| member.state().shares_queues) {
        tracing::warn!(
            consumer = %subscription.consumer,
            broker = %wire.broker,
            "share_queues has no effect: on RabbitMQ 4.3 and later, a queue that moves between members can stop; \
             one member has all queues, and the others stand by; use RabbitMQ 4.0 to 4.2, or turn share_queues \
             off"
        );
    }
    Ok(is_safe)
}

fn names(queues: &[(Queue, Option<Fault>)]) -> impl ExactSizeIterator<Item = &str> {
    queues.iter().map(|(queue, _)| queue.name.as_str())
}

/// Waits until a queue that was refused can be consumed.
pub(crate) async fn until_one_is_well(
    connection: &Connection,
    config: &Config,
    queues: &[(Queue, Option<Fault>)],
    shares_queues: bool,
) -> String {
    let refused: Vec<&Queue> = queues.iter().filter(|(_, it)| it.is_some()).map(|(queue, _)| queue).collect();
    if refused.is_empty() {
        return std::future::pending().await;
    }
    let lowest = shares_queues.then_some(priorities::LOWEST);
    loop {
        sleep(LOOK).await;
        for queue in &refused {
            if topology::prepare_queue(connection, config, queue).await.is_err() {
                continue;
            }
            // It may be there, and another's alone. It takes the queue from no other member; what
            // it is given goes back in order, as the channel is closed with its consumer on it.
            if let Ok((channel, handle)) = consume(connection, config, queue, 1, lowest).await {
                let closing = connection.answer("closing a channel", channel.close(200, "OK".into()));
                let _ = closing.await;
                drop(handle);
                return queue.name.to_string();
            }
        }
    }
}

/// Consumes a queue. Given up half-way, it cancels nothing: an unread answer has no handle in it.
async fn consume(
    connection: &Connection,
    config: &Config,
    queue: &Queue,
    share: u16,
    priority: Option<i32>,
) -> Result<(Channel, Handle), Fault> {
    let what = format!("consuming queue {:?}", queue.name.as_str());
    let channel = connection.channel().await?;
    connection.answer(&what, channel.basic_qos(share, BasicQosOptions::default())).await?;
    let (options, mut arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    // Other kinds of queues, which only who trusts them consumes, refuse it.
    if config.topology != Topology::Trusted {
        arguments.insert("x-consumer-timeout".into(), AMQPValue::LongLongInt(MAX_HELD_MS));
    }
    if let Some(priority) = priority {
        arguments.insert("x-priority".into(), AMQPValue::LongInt(priority));
    }
    let consume = channel.basic_consume(queue.name.clone(), "".into(), options, arguments);
    let handle = connection.answer(&what, consume).await?;
    Ok((channel, handle))
}

impl Drop for Session {
    fn drop(&mut self) {
        // Before the handles. After a polite end there is nothing left to cut.
        self.connection.cut();
    }
}

fn read(raw: Raw, topic: &Topic) -> (Result<Message, Undecodable>, Option<Origin>) {
    match record::decode(&raw.properties, raw.data, topic) {
        Ok((message, origin)) => (Ok(message), origin),
        Err(undecodable) => (Err(keep(undecodable)), None),
    }
}

/// A body that is no message is copied out of the buffer it came in.
fn keep(mut undecodable: Undecodable) -> Undecodable {
    undecodable.payload = Bytes::copy_from_slice(&undecodable.payload);
    undecodable
}
