//! The inbox of this workspace, in a process of its own.

use std::time::Duration;

use outbox_contract::Message;
use outbox_engine::{HandlerContext, HandlerError, Inbox, InboxBuilder, InboxHandle, Mode};
use outbox_tests::on_store;
use serde::{Deserialize, Serialize};

use crate::broker::Address;
use crate::child::{finished, measured, ready, tell};
use crate::stock::Stock;

/// Work of the inbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Consume {
    pub(crate) store: String,
    pub(crate) broker: Address,
    pub(crate) stored: bool,
    /// Maximum number of messages in one transaction.
    pub(crate) batch: usize,
    pub(crate) messages: u64,
}

impl Consume {
    pub(crate) async fn play(self) {
        on_store!(self.store, S => self.play_on::<S>().await)
    }

    async fn play_on<S: Stock>(self) {
        let inbox = builder(S::reach(&self.store).await, &self.broker)
            .mode(if self.stored { Mode::Stored } else { Mode::Direct })
            .batch(self.batch)
            .on_any(reserve::<S>);
        ready().await;
        let mut running = None;
        let done = measured(self.messages, async {
            let inbox = running.insert(inbox.start().await.expect("the inbox starts"));
            while inbox.stats().handled < self.messages {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        tell(&done.await);
        finished().await;
        if let Some(inbox) = running {
            stop(inbox).await;
        }
    }
}

async fn reserve<S: Stock>(
    message: Message,
    context: &mut HandlerContext<'_, S>,
) -> Result<(), HandlerError> {
    S::reserve(context.tx(), message.order_key().as_str()).await
}

/// Returns an inbox for all parts of the benchmark: with the defaults.
pub(crate) fn builder<S: Stock>(store: S, broker: &Address) -> InboxBuilder<S> {
    Inbox::builder(store, broker.transport()).consumer(broker.consumer().as_str()).topic(broker.topic())
}

pub(crate) async fn stop(inbox: InboxHandle) {
    if !inbox.stop(Duration::from_secs(20)).await {
        eprintln!("the inbox did not drain in time");
    }
}
