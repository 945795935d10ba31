//! Roles of child processes of this benchmark.

use serde::{Deserialize, Serialize};

use crate::bench::store;
use crate::child::{ready, tell};
use crate::{by_hand, consume, fill, slow};

/// Role of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Creates the tables.
    Migrate { store: String },
    /// Puts messages into the queue.
    Fill(fill::Fill),
    /// The inbox of this workspace.
    Consume(consume::Consume),
    /// A hand-written loop.
    ByHand(by_hand::ByHand),
    /// The inbox beside a slow key, or without it.
    Slow(slow::Slow),
}

/// Plays a role: the child's side.
pub(crate) fn play(role: &str) {
    let role: Role = serde_json::from_str(role).expect("a role is JSON");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        match role {
            Role::Migrate { store: url } => {
                ready().await;
                outbox_contract::Store::migrate(&store(&url).await).await.expect("the tables are made");
                tell(&());
            }
            Role::Fill(part) => part.play().await,
            Role::Consume(part) => part.play().await,
            Role::ByHand(part) => part.play().await,
            Role::Slow(part) => part.play().await,
        }
    });
}
