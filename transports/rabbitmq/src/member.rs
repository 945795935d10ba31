//! A member at work: a task that keeps its connection, and carries deliveries from it into memory.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapin::Channel;
use outbox_contract::backend::flow::Window;
use outbox_contract::backend::{Lag, Loss, Problem, Subscription, Unit};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::sleep;

use crate::config::Config;
use crate::connection::Connection;
use crate::consumption::Consumption;
use crate::error::Fault;
use crate::lags;
use crate::pauses::Pauses;
use crate::priorities::Priorities;
use crate::session::{Session, until_one_is_well};
use crate::topology::{self, Queue, Queues};
use crate::upkeep;

/// MemberState that the task of a member and the member's own calls share.
pub(crate) struct SharedMember {
    config: Arc<Config>,
    subscription: Subscription,
    /// The same over each connection: what it takes when it is back is what it had.
    priorities: Priorities,
    // A plain mutex: held for one step, never across an await.
    state: Mutex<MemberState>,
    /// Tells `next` that there may be something. Keeps one signal while no task waits.
    pub(crate) wake: Notify,
}

pub(crate) struct MemberState {
    pub(crate) consumption: Consumption,
    /// The channels of the present connection, one for each queue that is consumed; empty while
    /// there is none.
    pub(crate) channels: Vec<Option<Channel>>,
    /// Over the last connection, queues were shared with other members.
    pub(crate) shares_queues: bool,
    /// Queues that are not consumed, while others are.
    pub(crate) problems: Vec<Problem>,
    /// Backlogs of the queues, as last measured.
    pub(crate) lags: Vec<Lag>,
    /// Queues that were not there any more.
    pub(crate) losses: Vec<Loss>,
    /// Cuts the present connection.
    connection: Option<Arc<Connection>>,
}

impl SharedMember {
    pub(crate) fn state(&self) -> MutexGuard<'_, MemberState> {
        // No step runs foreign code: a poisoned lock could only come from a bug in one, and the
        // state is the best there is.
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
        state.lags.clear();
        state.connection = None;
        state.consumption.given_up();
        drop(state);
        self.wake.notify_one();
    }

    fn lost(&self, fault: Fault) {
        tracing::debug!(consumer = %self.subscription.consumer, %fault, "a consumer lost its connection to the broker; reconnecting");
        let mut state = self.state();
        state.channels.clear();
        state.lags.clear();
        state.connection = None;
        state.consumption.lost(fault.waited_for());
        drop(state);
        self.wake.notify_one();
    }

    fn ended(&self) {
        let mut state = self.state();
        state.channels.clear();
        state.lags.clear();
        state.connection = None;
        state.consumption.end(Fault::closed());
        drop(state);
        self.wake.notify_one();
    }
}

/// Asks the task to leave; it answers when it has.
pub(crate) type Leave = oneshot::Sender<oneshot::Sender<()>>;

/// Joins a subscription: the first connection is made here, so that what is wrong with it is said
/// at once.
pub(crate) async fn join(
    config: Arc<Config>,
    subscription: Subscription,
    window: Window,
    closed: watch::Receiver<bool>,
) -> Result<(Arc<SharedMember>, impl Future<Output = ()> + Send + 'static, Leave), Fault> {
    if *closed.borrow() {
        return Err(Fault::closed());
    }
    let priorities = if config.share_queues {
        let partitions = usize::try_from(config.partitions.0).unwrap_or(usize::MAX);
        Priorities::draw(&mut fastrand::Rng::new(), subscription.topics.len(), partitions)
    } else {
        Priorities::default()
    };
    let (session, queues, losses) = Session::open(&config, &subscription, &priorities, None).await?;
    let units: Vec<Unit> = queues.iter().map(|(queue, _)| queue.unit.clone()).collect();
    let state = MemberState {
        consumption: Consumption::new(window, units),
        channels: session.channels.clone(),
        shares_queues: session.shares_queues,
        problems: Vec::new(),
        lags: Vec::new(),
        losses,
        connection: Some(Arc::clone(&session.connection)),
    };
    let shared = Arc::new(SharedMember {
        config,
        subscription,
        priorities,
        state: Mutex::new(state),
        wake: Notify::new(),
    });
    shared.take_problems(&queues);
    let (leave, asked) = oneshot::channel();
    let task = work(Arc::clone(&shared), session, queues, closed, asked);
    Ok((shared, task, leave))
}

/// The task of a member: carries deliveries, and makes the connection anew when it is lost.
async fn work(
    shared: Arc<SharedMember>,
    session: Session,
    mut queues: Queues,
    mut closed: watch::Receiver<bool>,
    mut asked: oneshot::Receiver<oneshot::Sender<()>>,
) {
    let mut session = Some(session);
    let mut pauses = Pauses::new(shared.config.first_pause, shared.config.max_pause);
    loop {
        let step = async {
            match &mut session {
                Some(session) => {
                    let (connection, shares) = (Arc::clone(&session.connection), session.shares_queues);
                    tokio::select! {
                        fault = session.carry(&shared, &queues) => Step::Lost(fault),
                        never = look_after(&shared, &connection, queues.len()) => match never {},
                        never = lags::watch(&shared, &connection, &queues) => match never {},
                        name = until_one_is_well(&connection, &shared.config, &queues, shares) => Step::Again(name),
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
                shared.take_step(step, &mut session, &mut queues, &mut pauses);
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

/// Declares everything again now and then: the broker tells a member when a queue is gone, but not
/// when an exchange or a binding is.
async fn look_after(shared: &SharedMember, connection: &Connection, queues: usize) -> Infallible {
    let SharedMember { config, subscription, .. } = shared;
    let Some(every) = upkeep::every(config, queues) else { return std::future::pending().await };
    loop {
        sleep(every).await;
        let declaring = async {
            // It may be quicker than the broker's word that a queue is gone.
            let losses = topology::find_lost(connection, config, subscription, |_| true).await?;
            topology::prepare_consuming(connection, config, &subscription.consumer, &subscription.topics)
                .await?;
            shared.state().losses.extend(losses);
            Ok::<_, Fault>(())
        };
        if let Err(fault) = declaring.await {
            tracing::debug!(consumer = %subscription.consumer, %fault, "could not redeclare exchanges, queues and bindings of a consumer; will retry");
        }
    }
}

enum Step {
    Lost(Fault),
    /// A queue can be consumed again that could not be.
    Again(String),
    Tried(Result<(Box<Session>, Queues), Fault>),
}

impl SharedMember {
    fn take_step(&self, step: Step, session: &mut Option<Session>, queues: &mut Queues, pauses: &mut Pauses) {
        match step {
            Step::Lost(fault) => {
                // A message that can't be read ends each connection: nothing went well before
                // something was finished.
                if !fault.is_unreadable() || self.state().consumption.has_moved_on() {
                    pauses.reset();
                }
                *session = None;
                self.lost(fault);
            }
            Step::Again(name) => {
                tracing::debug!(queue = name, "a queue can be consumed again; reconnecting");
                pauses.reset();
                *session = None;
                self.given_up();
            }
            Step::Tried(Ok((opened, found))) => {
                self.take_problems(&found);
                *queues = found;
                let mut state = self.state();
                state.channels = opened.channels.clone();
                state.shares_queues = opened.shares_queues;
                state.connection = Some(Arc::clone(&opened.connection));
                state.consumption.recovered();
                *session = Some(*opened);
            }
            Step::Tried(Err(fault)) => {
                self.state().consumption.still_lost(fault.waited_for());
                self.wake.notify_one();
            }
        }
    }
}

/// Another attempt to connect, after a pause. Never for a member that drains.
async fn again(shared: &SharedMember, pause: Duration) -> Result<(Box<Session>, Queues), Fault> {
    sleep(pause).await;
    if shared.state().consumption.is_draining() {
        return std::future::pending().await;
    }
    let SharedMember { config, subscription, priorities, .. } = shared;
    let (session, queues, _) = Session::open(config, subscription, priorities, Some(shared)).await?;
    Ok((Box::new(session), queues))
}

#[cfg(test)]
#[path = "member_tests.rs"]
mod tests;
