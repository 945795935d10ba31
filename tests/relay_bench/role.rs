//! Roles of child processes of this benchmark.

use outbox_contract::Store as _;
use serde::{Deserialize, Serialize};

use crate::broker::Address;
use crate::child::{finished, ready, tell};
use crate::{append, database, fetch, kill, latency, minimal, ours, publish, usual};

/// Role of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Creates the tables.
    Migrate { store: String },
    /// Writes the messages to relay.
    Fill(database::Fill),
    /// Creates a topic anew.
    Topic(Address),
    /// The relay of this workspace.
    Ours(ours::Ours),
    /// The SKIP LOCKED baseline.
    Usual(usual::Usual),
    /// The bare loop.
    Minimal(minimal::Minimal),
    /// Publishes from memory.
    Publish(publish::Publish),
    /// Writes and consumes.
    Latency(latency::Latency),
    /// Writes.
    Append(append::Append),
    /// Fetches.
    Fetch(fetch::Fetch),
    /// Consumes.
    Consume(kill::Consume),
    /// Holds a transaction open that has run these statements.
    Hold { store: String, statements: Vec<String> },
}

/// Plays a role: the child's side.
pub(crate) fn play(role: &str) {
    let role: Role = serde_json::from_str(role).expect("a role is JSON");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        match role {
            Role::Migrate { store } => {
                ready().await;
                database::open(&store).await.migrate().await.expect("the tables are made");
                tell(&());
            }
            Role::Fill(part) => part.play().await,
            Role::Topic(broker) => minimal::make_topic(broker).await,
            Role::Ours(part) => part.play().await,
            Role::Usual(part) => part.play().await,
            Role::Minimal(part) => part.play().await,
            Role::Publish(part) => part.play().await,
            Role::Latency(part) => part.play().await,
            Role::Append(part) => part.play().await,
            Role::Fetch(part) => part.play().await,
            Role::Consume(part) => part.play().await,
            Role::Hold { store, statements } => hold(&store, &statements).await,
        }
    });
}

async fn hold(store: &str, statements: &[String]) {
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(store).await.expect("connected");
    for statement in statements {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement.as_str()))
            .execute(&mut connection)
            .await
            .expect("a valid statement");
    }
    ready().await;
    finished().await;
}
