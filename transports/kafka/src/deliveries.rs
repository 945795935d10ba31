//! The deliveries of one member of a consumer.

use std::sync::Arc;

use async_trait::async_trait;
use outbox_contract::backend::{Deliveries, Lag, Loss, Problem, Received, Subscription, Tag, Unit};
use outbox_contract::{Topic, TransportError, TransportErrorKind};
use rdkafka::consumer::BaseConsumer;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::config::{Config, GroupProtocol, not_taken};
use crate::dispatch::Dispatch;
use crate::member::{self, Member, MemberContext};
use crate::positions::Positions;
use crate::problems::Problems;
use crate::subscribed::Subscribed;
use crate::watch;

pub(crate) struct KafkaDeliveries {
    member: Arc<Member>,
    consumer: Option<Arc<BaseConsumer<MemberContext>>>,
    /// The commit that is under way, which outlives who waits for it: at most one, as each takes a
    /// thread for as long as the broker is away. Held by the one who commits: the others find
    /// nothing left to do after it.
    commit: tokio::sync::Mutex<Option<JoinHandle<Result<(), TransportError>>>>,
    left: Option<oneshot::Receiver<()>>,
}

impl KafkaDeliveries {
    /// Joins the group. `known`: problems of topics that were found already. `hidden`: topics that
    /// it may not describe.
    pub(crate) fn join(
        config: &Config,
        subscription: &Subscription,
        dispatch: Dispatch,
        known: Vec<Problem>,
        hidden: Vec<Topic>,
    ) -> Result<Self, TransportError> {
        let positions = Positions::new(subscription, config.begins_at_end());
        let topics = subscription.topics.clone();
        let of_all = config.group_protocol == GroupProtocol::Consumer;
        let subscribed = of_all.then(|| Subscribed::new(topics.clone(), hidden));
        let asked = subscribed.as_ref().map_or(topics.clone(), |subscribed| subscribed.asked().to_vec());
        let member = Arc::new(Member::new(topics, dispatch, Problems::new(known), positions, subscribed));
        let client = config.member(subscription.consumer.as_str(), subscription.prefetch_bytes);
        let consumer: BaseConsumer<MemberContext> = client
            .create_with_context(MemberContext(Arc::clone(&member)))
            .map_err(|error| not_taken("subscribe", error))?;
        member::subscribe(&consumer, &asked).map_err(|error| {
            let words = "librdkafka rejected the subscription";
            TransportError::new(TransportErrorKind::Invalid, "subscribe", words).with_source(error)
        })?;
        let consumer = Arc::new(consumer);
        let (leaves, left) = oneshot::channel();
        let (runs, polled) = (Arc::clone(&member), Arc::clone(&consumer));
        spawn("outbox-kafka-member", move || {
            member::run(&runs, polled);
            // The deliveries may have been dropped: then no caller waits.
            let _ = leaves.send(());
        })?;
        let (watched, own) = (Arc::clone(&member), Arc::downgrade(&consumer));
        let probe = config.probe(subscription.consumer.as_str());
        if let Err(error) = spawn("outbox-kafka-watch", move || watch::run(&watched, &own, &probe)) {
            member.leave();
            return Err(error);
        }
        Ok(Self { member, consumer: Some(consumer), commit: tokio::sync::Mutex::default(), left: Some(left) })
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), TransportError> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map(drop).map_err(|error| {
        TransportError::new(TransportErrorKind::Other, "subscribe", "could not start the consumer's thread")
            .with_source(error)
    })
}

/// Waits for the commit that is under way, if there is one. Dropped half-way, it leaves it for the
/// next one to wait for.
async fn finish(commit: &mut Option<JoinHandle<Result<(), TransportError>>>) -> Result<(), TransportError> {
    let Some(task) = commit else { return Ok(()) };
    let committed = task.await;
    *commit = None;
    committed.map_err(|error| {
        TransportError::new(TransportErrorKind::Other, "acknowledge", "the commit of offsets was interrupted")
            .with_source(error)
    })?
}

#[async_trait]
impl Deliveries for KafkaDeliveries {
    async fn next(&self) -> Result<Received, TransportError> {
        loop {
            let taken = self.member.dispatch().take()?;
            match taken {
                Some(received) => return Ok(received),
                None => self.member.wake.notified().await,
            }
        }
    }

    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError> {
        self.member.dispatch().acknowledge(tags);
        self.member.finished();
        let mut commit = self.commit.lock().await;
        // Finished deliveries are looked at again and again while they are under way, so this may
        // be all that there is to do.
        finish(&mut commit).await?;
        let Some(consumer) = &self.consumer else { return Ok(()) };
        if self.member.dispatch().to_commit().is_empty() {
            return Ok(());
        }
        let (member, consumer) = (Arc::clone(&self.member), Arc::clone(consumer));
        *commit = Some(tokio::task::spawn_blocking(move || member::commit(&member, &consumer)));
        finish(&mut commit).await
    }

    fn problems(&self) -> Vec<Problem> {
        self.member.all_problems()
    }

    fn lags(&self) -> Vec<Lag> {
        self.member.lags().all()
    }

    fn losses(&self) -> Vec<Loss> {
        self.member.begun().take_losses()
    }

    async fn pause(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.member.dispatch().pause(units, true);
        Ok(())
    }

    async fn resume(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.member.dispatch().pause(units, false);
        self.member.wake.notify_one();
        Ok(())
    }

    async fn drain(&self) -> Result<(), TransportError> {
        self.member.dispatch().drain();
        self.member.wake.notify_one();
        Ok(())
    }

    async fn close(mut self: Box<Self>) -> Result<(), TransportError> {
        self.consumer = None;
        self.member.leave();
        if let Some(left) = self.left.take() {
            // An error is a thread that is gone, which is what is waited for.
            let _ = left.await;
        }
        Ok(())
    }
}

impl Drop for KafkaDeliveries {
    fn drop(&mut self) {
        // The thread lets go of the client, in the background.
        self.consumer = None;
        self.member.leave();
    }
}
