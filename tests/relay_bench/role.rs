//! Roles of child processes of this benchmark.

use outbox_contract::Store as _;
use serde::{Deserialize, Serialize};

use crate::child::{finished, ready, tell};
use crate::{
    append, database, fetch, fill, kill, latency, minimal, ours, peers, publish, stages, usual, writer,
};

/// Role of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Creates the tables, of the outbox and of a business.
    Migrate { store: String },
    /// Writes messages to relay.
    Fill(fill::Fill),
    /// The relay of this workspace.
    Ours(ours::Ours),
    /// The SKIP LOCKED baseline.
    Usual(usual::Usual),
    /// A relay of another project, played by another program.
    Peer(peers::Peer),
    /// The bare loop.
    Minimal(minimal::Minimal),
    /// Publishes from memory.
    Publish(publish::Publish),
    /// Writes and consumes.
    Latency(latency::Latency),
    /// Writes, relays and consumes.
    Stages(stages::Stages),
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
                writer::prepare(&store).await;
                tell(&());
            }
            Role::Fill(part) => part.play().await,
            Role::Ours(part) => part.play().await,
            Role::Usual(part) => part.play().await,
            Role::Peer(_) => panic!("another program plays the relays of other projects"),
            Role::Minimal(part) => part.play().await,
            Role::Publish(part) => part.play().await,
            Role::Latency(part) => part.play().await,
            Role::Stages(part) => part.play().await,
            Role::Append(part) => part.play().await,
            Role::Fetch(part) => part.play().await,
            Role::Consume(part) => part.play().await,
            Role::Hold { store, statements } if store.starts_with("mysql:") => {
                hold::<sqlx::MySqlConnection>(&store, &statements).await
            }
            Role::Hold { store, statements } => hold::<sqlx::PgConnection>(&store, &statements).await,
        }
    });
}

async fn hold<C: sqlx::Connection>(store: &str, statements: &[String])
where
    for<'c> &'c mut C: sqlx::Executor<'c>,
{
    let mut connection = C::connect(store).await.expect("connected");
    for statement in statements {
        let statement = sqlx::AssertSqlSafe(statement.as_str());
        sqlx::Executor::execute(&mut connection, sqlx::raw_sql(statement)).await.expect("a valid statement");
    }
    ready().await;
    finished().await;
}
