//! The acknowledger: tells the broker what is finished. Several deliveries at a time, since to most brokers many cost as much as one.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::subscription::Tag;
use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};

use super::context::Context;
use super::source::Source;
use super::steps::Step;

pub(crate) struct Acknowledger {
    pub(crate) context: Arc<Context>,
    pub(crate) source: Arc<Source>,
    /// How long the first of several waits for the others.
    pub(crate) delay: Duration,
}

pub(crate) enum AcknowledgerMsg {
    /// These are finished.
    Finished(Vec<Tag>),
    /// Tell the broker now.
    Tell,
    /// Tell the broker, and answer when it was told.
    Flush(RpcReplyPort<()>),
}

#[derive(Default)]
pub(crate) struct AcknowledgerState {
    finished: Vec<Tag>,
    is_planned: bool,
}

/// This part of the prefetch is told at once: the broker sends nothing in place of what it was not told of.
const MOST_OF_PREFETCH: usize = 4;

#[ractor::actor(message = AcknowledgerMsg, state = AcknowledgerState)]
impl Acknowledger {
    async fn pre_start(
        &self,
        _myself: ActorRef<AcknowledgerMsg>,
        (): (),
    ) -> Result<AcknowledgerState, ActorProcessingErr> {
        Ok(AcknowledgerState::default())
    }

    async fn handle(
        &self,
        myself: ActorRef<AcknowledgerMsg>,
        message: AcknowledgerMsg,
        state: &mut AcknowledgerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            AcknowledgerMsg::Finished(tags) => {
                state.finished.extend(tags);
                if state.finished.len() >= self.context.subscription.prefetch / MOST_OF_PREFETCH {
                    self.tell(state).await;
                } else if !state.is_planned {
                    state.is_planned = true;
                    if self.delay.is_zero() {
                        // Behind those that have come meanwhile.
                        myself.cast(AcknowledgerMsg::Tell)?;
                    } else {
                        myself.send_after(self.delay, || AcknowledgerMsg::Tell);
                    }
                }
            }
            AcknowledgerMsg::Tell => {
                state.is_planned = false;
                self.tell(state).await;
            }
            AcknowledgerMsg::Flush(reply) => {
                self.tell(state).await;
                // Whoever asked may have given up waiting.
                let _ = reply.send(());
            }
        }
        Ok(())
    }
}

impl Acknowledger {
    async fn tell(&self, state: &mut AcknowledgerState) {
        if state.finished.is_empty() {
            return;
        }
        self.source.acknowledge(&std::mem::take(&mut state.finished)).await;
        self.context.steps.over(Step::Acknowledged);
    }
}
