//! One member of a consumer, as the inbox sees it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use lapin::options::BasicAckOptions;
use outbox_contract::TransportError;
use outbox_contract::backend::flow::Window;
use outbox_contract::backend::{Deliveries, Lag, Loss, Problem, Received, Subscription, Tag, Unit};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::error::Fault;
use crate::member::{self, Leave, SharedMember};

/// A quorum queue keeps each acknowledgement in its log, whether it names one delivery or all up to
/// one.
const ACKNOWLEDGEMENT_DELAY: Duration = Duration::from_millis(5);

/// Dropped without `close`, it cuts its connection: everything unacknowledged is delivered again,
/// in order.
pub(crate) struct RabbitMqDeliveries {
    shared: Arc<SharedMember>,
    task: JoinHandle<()>,
    leave: Option<Leave>,
    /// Held from looking at what is finished until it is written: two acknowledgements that
    /// overtake each other would name one delivery twice, for which the broker ends the channel.
    acknowledging: tokio::sync::Mutex<()>,
}

impl RabbitMqDeliveries {
    pub(crate) async fn join(
        config: Arc<Config>,
        subscription: Subscription,
        window: Window,
        closed: watch::Receiver<bool>,
    ) -> Result<Self, Fault> {
        let (shared, work, leave) = member::join(config, subscription, window, closed).await?;
        let task = tokio::spawn(work);
        Ok(Self { shared, task, leave: Some(leave), acknowledging: tokio::sync::Mutex::new(()) })
    }
}

#[async_trait]
impl Deliveries for RabbitMqDeliveries {
    async fn next(&self) -> Result<Received, TransportError> {
        loop {
            let taken = self.shared.state().consumption.take();
            match taken.map_err(|fault| fault.to_error("next"))? {
                Some(received) => return Ok(received),
                None => self.shared.wake.notified().await,
            }
        }
    }

    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError> {
        let _one_at_a_time = self.acknowledging.lock().await;
        let (acknowledgements, channels) = {
            let mut state = self.shared.state();
            (state.consumption.acknowledge(tags), state.channels.clone())
        };
        // There may be room for more now.
        self.shared.wake.notify_one();
        let writes = acknowledgements.iter().filter_map(|it| {
            let options = BasicAckOptions { multiple: it.multiple };
            channels.get(it.queue)?.as_ref().map(|channel| channel.basic_ack(it.number, options))
        });
        // All of them are on their way after the first look at them: a call that is dropped
        // half-way has told everything or nothing.
        let written = try_join_all(writes).await;
        let told = written.map_err(|error| Fault::asking("acknowledging", error).waited_for());
        told.map(drop).map_err(|fault| fault.to_error("acknowledge"))
    }

    fn acknowledgement_delay(&self) -> Duration {
        ACKNOWLEDGEMENT_DELAY
    }

    fn problems(&self) -> Vec<Problem> {
        self.shared.state().problems.clone()
    }

    fn lags(&self) -> Vec<Lag> {
        self.shared.state().lags.clone()
    }

    fn losses(&self) -> Vec<Loss> {
        std::mem::take(&mut self.shared.state().losses)
    }

    async fn pause(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.shared.state().consumption.pause(units, true);
        Ok(())
    }

    async fn resume(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.shared.state().consumption.pause(units, false);
        self.shared.wake.notify_one();
        Ok(())
    }

    async fn drain(&self) -> Result<(), TransportError> {
        self.shared.state().consumption.drain();
        self.shared.wake.notify_one();
        Ok(())
    }

    async fn close(mut self: Box<Self>) -> Result<(), TransportError> {
        let (answer, left) = oneshot::channel();
        if let Some(leave) = self.leave.take()
            && leave.send(answer).is_ok()
        {
            // An error means that the task has ended: then it has left.
            let _ = left.await;
        }
        Ok(())
    }
}

impl Drop for RabbitMqDeliveries {
    fn drop(&mut self) {
        self.shared.cut();
        self.task.abort();
    }
}
