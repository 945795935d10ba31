//! The inbox of this workspace, in a process of its own.

use std::time::Duration;

use outbox_contract::Message;
use outbox_engine::{HandlerContext, HandlerError, Inbox, InboxBuilder, InboxHandle, Mode};
use outbox_store_postgres::PostgresStore;
use serde::{Deserialize, Serialize};

use crate::bench::{UPDATE, consumer, store, topic, transport};
use crate::child::{finished, measured, ready, tell};

/// Work of the inbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Consume {
    pub(crate) store: String,
    pub(crate) broker: String,
    pub(crate) stored: bool,
    /// Maximum number of messages in one transaction.
    pub(crate) batch: usize,
    pub(crate) messages: u64,
}

impl Consume {
    pub(crate) async fn play(self) {
        let inbox = builder(store(&self.store).await, &self.broker)
            .mode(if self.stored { Mode::Stored } else { Mode::Direct })
            .batch(self.batch)
            .on_any(add);
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

async fn add(message: Message, context: &mut HandlerContext<'_, PostgresStore>) -> Result<(), HandlerError> {
    sqlx::query(UPDATE).bind(message.order_key().as_str()).execute(context.tx()).await?;
    Ok(())
}

/// Returns an inbox for all parts of the benchmark: with the defaults.
pub(crate) fn builder(store: PostgresStore, broker: &str) -> InboxBuilder<PostgresStore> {
    Inbox::builder(store, transport(broker)).consumer(consumer().as_str()).topic(topic())
}

pub(crate) async fn stop(inbox: InboxHandle) {
    if !inbox.stop(Duration::from_secs(20)).await {
        eprintln!("the inbox did not drain in time");
    }
}
