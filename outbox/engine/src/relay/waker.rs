//! Waker: turns wake-ups of the store into events of the core.

use std::sync::Arc;

use futures_util::StreamExt;
use ractor::ActorRef;
use tokio::task::JoinHandle;

use super::context::Context;
use super::core::Event;
use super::route::CoreMsg;

/// Task that listens for wake-ups, owned by the route. Dropping this aborts it.
#[derive(Debug)]
pub(crate) struct Waker(JoinHandle<()>);

impl Waker {
    pub(crate) fn start(context: Arc<Context>, route: ActorRef<CoreMsg>) -> Self {
        Self(tokio::spawn(async move {
            let mut wakeups = context.store.wakeups();
            while let Some(wakeup) = wakeups.next().await {
                if route.cast(CoreMsg::Event(Event::Woken(wakeup))).is_err() {
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
