//! One member of a consumer: waits on its signal and takes from the state machine in one step.

use std::sync::Arc;

use async_trait::async_trait;
use outbox_contract::TransportError;
use outbox_contract::backend::{Deliveries, Lag, Received, Tag, Unit};
use tokio::sync::Notify;

use crate::broker::MemberId;
use crate::transport::SharedBroker;

#[derive(Debug)]
pub(crate) struct MemoryDeliveries {
    shared: Arc<SharedBroker>,
    member: MemberId,
    // Keeps one signal while no task waits, so none is lost between checking and waiting, nor with
    // a dropped `next`.
    wake: Arc<Notify>,
}

impl MemoryDeliveries {
    pub(crate) fn new(shared: Arc<SharedBroker>, member: MemberId, wake: Arc<Notify>) -> Self {
        Self { shared, member, wake }
    }
}

#[async_trait]
impl Deliveries for MemoryDeliveries {
    async fn next(&self) -> Result<Received, TransportError> {
        loop {
            let taken = self.shared.broker().take(self.member)?;
            match taken {
                Some(received) => return Ok(received),
                None => self.wake.notified().await,
            }
        }
    }

    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError> {
        self.shared.broker().acknowledge(self.member, tags)
    }

    fn lags(&self) -> Vec<Lag> {
        self.shared.broker().lags(self.member)
    }

    async fn pause(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.shared.broker().pause(self.member, units, true)
    }

    async fn resume(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.shared.broker().pause(self.member, units, false)
    }

    async fn drain(&self) -> Result<(), TransportError> {
        self.shared.broker().drain(self.member)
    }

    async fn close(self: Box<Self>) -> Result<(), TransportError> {
        // Dropping leaves the consumer; after this point no acknowledgment is possible.
        self.shared.broker().check("close")
    }
}

impl Drop for MemoryDeliveries {
    fn drop(&mut self) {
        self.shared.broker().leave(self.member);
    }
}
