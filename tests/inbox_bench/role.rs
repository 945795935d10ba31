//! Roles of child processes of this benchmark.

use outbox_tests::on_store;
use serde::{Deserialize, Serialize};

use crate::child::{ready, tell};
use crate::stock::Stock;
use crate::{by_hand, consume, fill, members, slow};

/// Role of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Creates the tables, of the outbox and of the consumer.
    Migrate { store: String },
    /// Puts messages into the queue.
    Fill(fill::Fill),
    /// The inbox of this workspace.
    Consume(consume::Consume),
    /// A hand-written loop.
    ByHand(by_hand::ByHand),
    /// The inbox beside a slow key, or without it.
    Slow(slow::Slow),
    /// One of several members of a consumer.
    Member(members::Member),
}

/// Plays a role: the child's side.
pub(crate) fn play(role: &str) {
    let role: Role = serde_json::from_str(role).expect("a role is JSON");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        match role {
            Role::Migrate { store: url } => {
                ready().await;
                on_store!(url, S => migrate::<S>(&url).await);
                tell(&());
            }
            Role::Fill(part) => part.play().await,
            Role::Consume(part) => part.play().await,
            Role::ByHand(part) => part.play().await,
            Role::Slow(part) => part.play().await,
            Role::Member(part) => part.play().await,
        }
    });
}

async fn migrate<S: Stock>(url: &str) {
    let store = S::reach(url).await;
    store.migrate().await.expect("the tables are made");
    store.prepare().await;
}
