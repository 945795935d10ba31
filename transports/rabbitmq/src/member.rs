//! A member at work: a task that keeps its connection, and carries deliveries from it into memory.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, SelectAll, StreamExt};
use lapin::message::Delivery as Raw;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer as Handle};
use outbox_contract::subscription::{Tag, Undecodable, Unit};
use outbox_contract::{Delivery, Message, Problem, Subscription};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::sleep;

use crate::config::{Config, Topology};
use crate::connection::Connection;
use crate::consumption::Consumption;
use crate::error::Fault;
use crate::pauses::Pauses;
use crate::record;
use crate::topology::{self, Queue, Queues};
use crate::upkeep;

/// How often queues are looked at that can't be consumed.
const LOOK: Duration = Duration::from_secs(3);

/// What the task of a member and the member's own calls share.
pub(crate) struct Shared {
    config: Arc<Config>,
    subscription: Subscription,
    // A plain mutex: held for one step, never across an await.
    state: Mutex<State>,
    /// Tells `next` that there may be something. Keeps one signal while nobody waits.
    pub(crate) wake: Notify,
}

pub(crate) struct State {
    pub(crate) consumption: Consumption,
    /// The channels of the present connection, one for each queue that is consumed; empty while there is none.
    pub(crate) channels: Vec<Option<Channel>>,
    /// Queues that are not consumed, while others are.
    pub(crate) problems: Vec<Problem>,
    /// Cuts the present connection.
    connection: Option<Arc<Connection>>,
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // No step runs foreign code: a poisoned lock could only come from a bug in one, and the state is the best there is.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection at once, before any handle of the library is dropped.
    pub(crate) fn cut(&self) {
        let mut state = self.state();
        if let Some(connection) = state.connection.take() {
            connection.cut();
        }
        state.channels.clear();
    }

    /// Keeps what is wrong with single queues, each since it was seen first.
    fn take_problems(&self, queues: &[(Queue, Option<Fault>)]) {
        let mut state = self.state();
        let known = std::mem::take(&mut state.problems);
        let faults = queues.iter().filter_map(|(queue, fault)| Some((&queue.unit, fault.as_ref()?)));
        state.problems = faults
            .map(|(Unit { topic, number }, fault)| {
                let mut problem = Problem::new(topic.clone(), Some(*number), fault.to_string());
                let before = known.iter().find(|it| it.topic == *topic && it.number == Some(*number));
                problem.since = before.map_or(problem.since, |before| before.since);
                problem
            })
            .collect();
    }

    /// The connection is made anew, for a queue that can be consumed again.
    fn given_up(&self) {
        let mut state = self.state();
        state.channels.clear();
        state.connection = None;
        state.consumption.given_up();
        drop(state);
        self.wake.notify_one();
    }

    fn lost(&self, fault: Fault) {
        tracing::debug!(consumer = %self.subscription.consumer, %fault, "a member lost its connection");
        let mut state = self.state();
        state.channels.clear();
        state.connection = None;
        state.consumption.lost(fault.waited_for());
        drop(state);
        self.wake.notify_one();
    }

    fn ended(&self) {
        let mut state = self.state();
        state.channels.clear();
        state.connection = None;
        state.consumption.end(Fault::closed());
        drop(state);
        self.wake.notify_one();
    }
}

/// A connection on which every queue of a member is consumed.
struct Session {
    connection: Arc<Connection>,
    channels: Vec<Option<Channel>>,
    /// The library cancels a consumer when its last handle is dropped, and RabbitMQ then gives the newer messages to the next one first: so they
    /// are kept until the channels are closed, or the connection is cut.
    handles: Vec<Handle>,
    incoming: SelectAll<stream::BoxStream<'static, (usize, Option<lapin::Result<Raw>>)>>,
}

impl Session {
    /// Consumes all queues that can be consumed. Answers all there are, each with what is wrong with it alone.
    async fn open(config: &Config, subscription: &Subscription) -> Result<(Self, Queues), Fault> {
        let connection = Connection::open(config, &format!("consumes for {}", subscription.consumer)).await?;
        // From here on whatever fails cuts the connection before anything else is let go.
        let mut session = Self {
            connection: Arc::new(connection),
            channels: Vec::new(),
            handles: Vec::new(),
            incoming: SelectAll::new(),
        };
        let connection = Arc::clone(&session.connection);
        let mut queues =
            topology::prepare_consuming(&*connection, config, &subscription.consumer, &subscription.topics)
                .await?;
        let share =
            Consumption::new(subscription, queues.iter().map(|(queue, _)| queue.unit.clone())).share();
        let of_connection = &connection;
        let consuming: Vec<_> = queues
            .iter()
            .map(|(queue, fault)| async move {
                match fault {
                    None => consume(of_connection, config, queue, share).await,
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
        Ok((session, queues))
    }

    /// Carries deliveries into memory until the connection is over, and says why.
    async fn carry(&mut self, shared: &Shared, queues: &[(Queue, Option<Fault>)], incarnation: u64) -> Fault {
        while let Some((place, raw)) = self.incoming.next().await {
            let Some((queue, _)) = queues.get(place) else { continue };
            let name = queue.name.as_str();
            match raw {
                Some(Ok(raw)) => {
                    let tag = Tag { unit: queue.unit.clone(), incarnation, number: raw.delivery_tag };
                    let (delivery, bytes) = read(tag, raw);
                    shared.state().consumption.arrived(place, delivery, bytes);
                    shared.wake.notify_one();
                }
                Some(Err(error)) => {
                    let fault = Fault::asking(format!("consuming queue {name:?}"), error);
                    return fault.naming(names(queues));
                }
                None => {
                    let gone = lapin::ErrorKind::InvalidChannelState(
                        lapin::ChannelState::Closed,
                        "the broker cancelled the consumer: the queue was deleted, or moves",
                    );
                    return Fault::asking(format!("consuming queue {name:?}"), gone.into());
                }
            }
        }
        // Only with no queue at all, which a subscription without topics has: nothing ever comes.
        std::future::pending().await
    }

    /// Gives everything back that is not acknowledged, in order: each channel is closed with its consumer on it. Never a cancel, never a nack.
    async fn close(self) {
        for channel in self.channels.iter().flatten() {
            // The connection is closed next, which has the same effect: where one channel gets no answer, the others would get none either.
            if self.connection.answer("closing a channel", channel.close(200, "OK".into())).await.is_err() {
                break;
            }
        }
        self.connection.close().await;
    }
}

fn names(queues: &[(Queue, Option<Fault>)]) -> impl ExactSizeIterator<Item = &str> {
    queues.iter().map(|(queue, _)| queue.name.as_str())
}

/// Waits until a queue that was refused can be consumed.
async fn until_one_is_well(
    connection: &Connection,
    config: &Config,
    queues: &[(Queue, Option<Fault>)],
) -> String {
    let refused: Vec<&Queue> = queues.iter().filter(|(_, it)| it.is_some()).map(|(queue, _)| queue).collect();
    if refused.is_empty() {
        return std::future::pending().await;
    }
    loop {
        sleep(LOOK).await;
        for queue in &refused {
            if topology::prepare_queue(connection, config, queue).await.is_err() {
                continue;
            }
            // It may be there, and another's alone. What this is given goes back in order, as the channel is closed with its consumer on it.
            if let Ok((channel, handle)) = consume(connection, config, queue, 1).await {
                let closing = connection.answer("closing a channel", channel.close(200, "OK".into()));
                let _ = closing.await;
                drop(handle);
                return queue.name.to_string();
            }
        }
    }
}

/// Consumes a queue. Given up half-way, it cancels nothing: an answer that nobody has looked at has no handle in it.
async fn consume(
    connection: &Connection,
    config: &Config,
    queue: &Queue,
    share: u16,
) -> Result<(Channel, Handle), Fault> {
    let what = format!("consuming queue {:?}", queue.name.as_str());
    let channel = connection.channel().await?;
    connection.answer(&what, channel.basic_qos(share, BasicQosOptions::default())).await?;
    let (options, mut arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    // Other kinds of queues, which only who trusts them consumes, refuse it.
    if config.topology != Topology::Trusted {
        arguments.insert("x-consumer-timeout".into(), AMQPValue::LongLongInt(MOST_HELD_MS));
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

fn read(tag: Tag, raw: Raw) -> (Delivery, usize) {
    let size = raw.data.len();
    match record::decode(&raw.properties, raw.data, &tag.unit.topic) {
        Ok((message, origin)) => {
            let bytes = Message::bytes(&message);
            (Delivery::new(tag, Ok(message), origin), bytes)
        }
        Err(undecodable) => {
            let undecodable = record::placed(keep(undecodable), &raw.properties);
            (Delivery::new(tag, Err(undecodable), None), size)
        }
    }
}

/// A body that is no message is copied out of the buffer it came in.
fn keep(mut undecodable: Undecodable) -> Undecodable {
    undecodable.payload = Bytes::copy_from_slice(&undecodable.payload);
    undecodable
}

/// How long a delivery may be in the hands of a member before the broker takes it back, in milliseconds: 24 days. By default it is half an hour. Taken back, it
/// may come to the next member behind newer ones; and a paused member would lose its connection again and again.
const MOST_HELD_MS: i64 = i32::MAX as i64;

/// Asks the task to leave; it answers when it has.
pub(crate) type Leave = oneshot::Sender<oneshot::Sender<()>>;

/// Joins a subscription: the first connection is made here, so that what is wrong with it is said at once.
pub(crate) async fn join(
    config: Arc<Config>,
    subscription: Subscription,
    closed: watch::Receiver<bool>,
) -> Result<(Arc<Shared>, impl Future<Output = ()> + Send + 'static, Leave), Fault> {
    if *closed.borrow() {
        return Err(Fault::closed());
    }
    let (session, queues) = Session::open(&config, &subscription).await?;
    let units: Vec<Unit> = queues.iter().map(|(queue, _)| queue.unit.clone()).collect();
    let state = State {
        consumption: Consumption::new(&subscription, units),
        channels: session.channels.clone(),
        problems: Vec::new(),
        connection: Some(Arc::clone(&session.connection)),
    };
    let shared = Arc::new(Shared { config, subscription, state: Mutex::new(state), wake: Notify::new() });
    shared.take_problems(&queues);
    let (leave, asked) = oneshot::channel();
    let task = work(Arc::clone(&shared), session, queues, closed, asked);
    Ok((shared, task, leave))
}

/// The task of a member: carries deliveries, and makes the connection anew when it is lost.
async fn work(
    shared: Arc<Shared>,
    session: Session,
    mut queues: Queues,
    mut closed: watch::Receiver<bool>,
    mut asked: oneshot::Receiver<oneshot::Sender<()>>,
) {
    let mut session = Some(session);
    let mut pauses = Pauses::new(shared.config.first_pause, shared.config.most_pause);
    loop {
        let incarnation = shared.state().consumption.incarnation();
        let step = async {
            match &mut session {
                Some(session) => {
                    let connection = Arc::clone(&session.connection);
                    tokio::select! {
                        fault = session.carry(&shared, &queues, incarnation) => Step::Lost(fault),
                        never = look_after(&shared, &connection, queues.len()) => match never {},
                        name = until_one_is_well(&connection, &shared.config, &queues) => Step::Again(name),
                    }
                }
                None => Step::Tried(again(&shared, pauses.next()).await),
            }
        };
        let answer = tokio::select! {
            // Leaving first: what still comes goes back anyway.
            biased;
            answer = &mut asked => answer.ok(),
            _ = closed.wait_for(|closed| *closed) => None,
            step = step => {
                match step {
                    Step::Lost(fault) => {
                        // A message that can't be read ends each connection: nothing went well before something was finished.
                        if !fault.is_unreadable() || shared.state().consumption.has_moved_on() {
                            pauses.reset();
                        }
                        session = None;
                        shared.lost(fault);
                    }
                    Step::Again(name) => {
                        tracing::debug!(queue = name, "a queue can be consumed again: connecting anew");
                        pauses.reset();
                        session = None;
                        shared.given_up();
                    }
                    Step::Tried(Ok((opened, found))) => {
                        shared.take_problems(&found);
                        queues = found;
                        let mut state = shared.state();
                        state.channels = opened.channels.clone();
                        state.connection = Some(Arc::clone(&opened.connection));
                        state.consumption.recovered();
                        session = Some(*opened);
                    }
                    Step::Tried(Err(fault)) => {
                        shared.state().consumption.still_lost(fault.waited_for());
                        shared.wake.notify_one();
                    }
                }
                // A member that drains wants nothing more: it only waits to be closed.
                continue;
            }
        };
        if let Some(session) = session {
            session.close().await;
        }
        shared.ended();
        if let Some(answer) = answer {
            // Whoever asked may have stopped waiting.
            let _ = answer.send(());
        }
        return;
    }
}

/// Declares everything again now and then: nobody tells a member that an exchange or a binding is gone, only that a queue is.
async fn look_after(shared: &Shared, connection: &Connection, queues: usize) -> Infallible {
    let Shared { config, subscription, .. } = shared;
    let Some(every) = upkeep::every(config, queues) else { return std::future::pending().await };
    loop {
        sleep(every).await;
        let declaring =
            topology::prepare_consuming(connection, config, &subscription.consumer, &subscription.topics);
        if let Err(fault) = declaring.await {
            tracing::debug!(consumer = %subscription.consumer, %fault, "what a member needs could not be declared again");
        }
    }
}

enum Step {
    Lost(Fault),
    /// A queue can be consumed again that could not be.
    Again(String),
    Tried(Result<(Box<Session>, Queues), Fault>),
}

/// Another attempt to connect, after a pause. Never for a member that drains.
async fn again(shared: &Shared, pause: Duration) -> Result<(Box<Session>, Queues), Fault> {
    sleep(pause).await;
    if shared.state().consumption.is_draining() {
        return std::future::pending().await;
    }
    let (session, queues) = Session::open(&shared.config, &shared.subscription).await?;
    Ok((Box::new(session), queues))
}

#[cfg(test)]
#[path = "member_tests.rs"]
mod tests;
