//! One member of a consumer: waits on its signal and takes from the state machine in one step.

use std::sync::Arc;

use async_trait::async_trait;
use outbox_contract::TransportError;
use outbox_contract::backend::{Deliveries, Received, Tag, Unit};
use tokio::sync::Notify;

use crate::state::{MemberId, Taken};
use crate::transport::Shared;

#[derive(Debug)]
pub(crate) struct MemoryDeliveries {
    shared: Arc<Shared>,
    member: MemberId,
    // Keeps one signal while no task waits, so none is lost between checking and waiting, nor with
    // a dropped `next`.
    wake: Arc<Notify>,
}

impl MemoryDeliveries {
    pub(crate) fn new(shared: Arc<Shared>, member: MemberId, wake: Arc<Notify>) -> Self {
        Self { shared, member, wake }
    }
}

#[async_trait]
impl Deliveries for MemoryDeliveries {
    async fn next(&self) -> Result<Received, TransportError> {
        loop {
            let taken = self.shared.state().take(self.member)?;
            match taken {
                Taken::Deliveries(deliveries) => return Ok(Received::Deliveries(deliveries)),
                Taken::Revoked(units) => return Ok(Received::Revoked(units)),
                Taken::Ended => return Ok(Received::Ended),
                Taken::Nothing => self.wake.notified().await,
            }
        }
    }

    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError> {
        self.shared.state().acknowledge(self.member, tags)
    }

    async fn pause(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.shared.state().pause(self.member, units)
    }

    async fn resume(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.shared.state().resume(self.member, units)
    }

    async fn drain(&self) -> Result<(), TransportError> {
        self.shared.state().drain(self.member)
    }

    async fn close(self: Box<Self>) -> Result<(), TransportError> {
        // Dropping leaves the consumer; after this point no acknowledgment is possible.
        self.shared.state().check("close")
    }
}

impl Drop for MemoryDeliveries {
    fn drop(&mut self) {
        self.shared.state().leave(self.member);
    }
}
