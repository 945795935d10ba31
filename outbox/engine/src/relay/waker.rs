//! The waker: turns wake-ups of the store and freed credit into messages to the poller.

use std::sync::Arc;

use futures_util::StreamExt;
use ractor::ActorRef;
use tokio::task::JoinHandle;

use super::context::Context;
use super::poller::PollerMsg;

/// A task that listens; dropping this ends it. Owned by the poller.
#[derive(Debug)]
pub(crate) struct Waker(JoinHandle<()>);

impl Waker {
    pub(crate) fn start(context: Arc<Context>, poller: ActorRef<PollerMsg>) -> Self {
        Self(tokio::spawn(async move {
            let mut wakeups = context.store.wakeups();
            let mut ended = false;
            loop {
                // Biased, so that a run can be replayed; neither can starve the other, both are rare against the poller's own work.
                let message = tokio::select! {
                    biased;
                    () = context.credit.freed() => PollerMsg::Freed,
                    wakeup = wakeups.next(), if !ended => match wakeup {
                        Some(wakeup) => PollerMsg::Wake(wakeup),
                        None => {
                            ended = true;
                            continue;
                        }
                    },
                };
                if poller.cast(message).is_err() {
                    return;
                }
            }
        }))
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.0.abort();
    }
}
