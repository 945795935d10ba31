//! One member of a consumer: what the keeper and the reader bring is handed out here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use outbox_contract::backend::flow::Window;
use outbox_contract::backend::{Clock, Deliveries, Lag, Loss, Problem, Received, SystemClock, Tag, Unit};
use outbox_contract::{Consumer, Topic, TransportError};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::connection::Link;
use crate::consumption::Consumption;
use crate::error::Error;
use crate::lease::Lease;
use crate::past::Past;
use crate::problems::Problems;
use crate::routing::Routing;
use crate::stream_id::StreamId;
use crate::{keeper, lags, reader};

/// State that the parts of a member share.
pub(crate) struct Member {
    /// An id made fresh for each member, and behind a colon how long its leases last, in
    /// milliseconds: so that others know which lease is too long to be one. Those who came first
    /// sort first.
    pub(crate) name: String,
    pub(crate) consumer: Consumer,
    // Plain mutexes: each is held for one look or one store. Grows when a topic is no longer
    // refused.
    topics: Mutex<BTreeMap<Topic, u32>>,
    problems: Mutex<Problems>,
    lags: Mutex<Vec<Lag>>,
    losses: Mutex<Vec<Loss>>,
    pub(crate) past: Past,
    pub(crate) config: Config,
    pub(crate) routing: Routing,
    /// Heartbeats and acknowledgements. What is published stands on another connection, so that no
    /// load holds these up.
    pub(crate) control: Arc<Link>,
    pub(crate) clock: SystemClock,
    /// There may be something to hand out.
    pub(crate) wake: Notify,
    /// There may be room, or something to read from.
    pub(crate) read: Notify,
    /// The next heartbeat should come now.
    pub(crate) hurry: Notify,
    // A plain mutex: held for one step of the machine, never across an await.
    state: Mutex<Consumption>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("name", &self.name)
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}

impl Member {
    pub(crate) fn state(&self) -> MutexGuard<'_, Consumption> {
        // No step of the machine runs foreign code, so a poisoned lock could only come from a bug
        // in it; the state is still the best that there is.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The topics, and how many units each has.
    pub(crate) fn topics(&self) -> BTreeMap<Topic, u32> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A topic that was refused can be used.
    pub(crate) fn add(&self, topic: Topic, units: u32) {
        self.is_well(&topic, None);
        self.topics.lock().unwrap_or_else(PoisonError::into_inner).insert(topic, units);
        self.hurry.notify_one();
    }

    fn problems(&self) -> MutexGuard<'_, Problems> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Redis refuses a topic, or a unit of it. That holds up no other; it is tried again by itself.
    /// Says whether that is new.
    pub(crate) fn is_refused(&self, topic: &Topic, number: Option<u32>, error: &Error) -> bool {
        let is_new = self.problems().refused(topic, number, &error.words);
        if is_new {
            tracing::debug!(%topic, unit = number, class = error.class, "refused: {}", error.words);
        }
        is_new
    }

    /// Something was lost.
    pub(crate) fn lost(&self, loss: Loss) {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner).push(loss);
    }

    /// Takes the measured backlogs.
    pub(crate) fn has_lags(&self, lags: Vec<Lag>) {
        *self.lags.lock().unwrap_or_else(PoisonError::into_inner) = lags;
    }

    /// It does not.
    pub(crate) fn is_well(&self, topic: &Topic, number: Option<u32>) {
        self.problems().over(topic, number);
    }

    /// A unit is this member's no more.
    pub(crate) fn lose(&self, unit: &Unit) {
        self.state().lose(unit);
        self.wake.notify_one();
    }

    /// Tells whoever receives that something went wrong.
    pub(crate) fn fail(&self, error: Error) {
        tracing::debug!(class = error.class, consumer = %self.consumer, "receiving: {}", error.words);
        self.state().fail(error);
        self.wake.notify_one();
    }
}

#[derive(Debug)]
pub(crate) struct RedisDeliveries {
    member: Arc<Member>,
    tasks: Vec<JoinHandle<()>>,
    left: bool,
}

impl RedisDeliveries {
    /// Begins to keep leases and to read.
    pub(crate) fn start(
        consumer: Consumer,
        window: Window<Lease, StreamId>,
        topics: BTreeMap<Topic, u32>,
        past: Past,
        config: Config,
        routing: Routing,
        control: Arc<Link>,
    ) -> Self {
        let member = Arc::new(Member {
            name: format!("{}:{}", uuid::Uuid::now_v7(), config.lease_millis()),
            consumer,
            topics: Mutex::new(topics),
            problems: Mutex::default(),
            lags: Mutex::default(),
            losses: Mutex::default(),
            past,
            config,
            routing,
            control,
            clock: SystemClock::new(),
            wake: Notify::new(),
            read: Notify::new(),
            hurry: Notify::new(),
            state: Mutex::new(Consumption::new(window)),
        });
        let keeper = tokio::spawn(keeper::keep(Arc::clone(&member)));
        let reader = tokio::spawn(reader::read(Arc::clone(&member)));
        let watch = tokio::spawn(lags::watch(Arc::clone(&member)));
        Self { member, tasks: vec![keeper, reader, watch], left: false }
    }

    /// Tries topics again that are refused, in the background.
    pub(crate) fn join_later(&mut self, join: impl FnOnce(Arc<Member>) -> JoinHandle<()>) {
        self.tasks.push(join(Arc::clone(&self.member)));
    }

    fn check_open(&self, operation: &'static str) -> Result<(), TransportError> {
        self.member.control.server().check_open().map_err(|error| error.transport_error(operation))
    }
}

#[async_trait]
impl Deliveries for RedisDeliveries {
    async fn next(&self) -> Result<Received, TransportError> {
        let member = &self.member;
        loop {
            self.check_open("receive")?;
            let taken = member.state().take(member.clock.elapsed());
            match taken.map_err(|error| error.transport_error("receive"))? {
                Some(received) => return Ok(received),
                None => tokio::select! {
                    () = member.wake.notified() => {}
                    () = member.control.server().until_closed() => {}
                },
            }
        }
    }

    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError> {
        self.check_open("acknowledge")?;
        self.member.acknowledge(tags).await.map_err(|error| error.transport_error("acknowledge"))
    }

    fn problems(&self) -> Vec<Problem> {
        self.member.problems().all()
    }

    fn lags(&self) -> Vec<Lag> {
        self.member.lags.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn losses(&self) -> Vec<Loss> {
        std::mem::take(&mut *self.member.losses.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn pause(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.check_open("pause")?;
        self.member.state().pause(units);
        self.member.read.notify_one();
        Ok(())
    }

    async fn resume(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.check_open("resume")?;
        self.member.state().resume(units);
        self.member.read.notify_one();
        Ok(())
    }

    async fn drain(&self) -> Result<(), TransportError> {
        self.check_open("drain")?;
        self.member.state().drain();
        self.member.wake.notify_one();
        // Others are told with the next heartbeat, so that what comes free in the meantime goes to
        // them.
        self.member.hurry.notify_one();
        Ok(())
    }

    async fn close(mut self: Box<Self>) -> Result<(), TransportError> {
        stop(&mut self.tasks).await;
        let left = self.member.leave().await;
        // Not before: given up half-way, it is tried again beside.
        self.left = left.is_ok();
        left.map_err(|error| error.transport_error("close"))
    }
}

/// Ends the tasks. Only when they have ended they take nothing more.
async fn stop(tasks: &mut [JoinHandle<()>]) {
    tasks.iter().for_each(JoinHandle::abort);
    for task in tasks {
        if !task.is_finished() {
            // Its result does not matter.
            let _ = task.await;
        }
    }
}

/// A crash as far as deliveries go. As the process lives, the units are given back all the same, so
/// that no other member waits until the leases are over.
impl Drop for RedisDeliveries {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        if self.left {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (member, mut tasks) = (Arc::clone(&self.member), std::mem::take(&mut self.tasks));
            runtime.spawn(async move {
                stop(&mut tasks).await;
                if let Err(error) = member.leave().await {
                    tracing::debug!(class = error.class, "leaving: {}", error.words);
                }
            });
        }
    }
}
