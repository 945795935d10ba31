//! Work on one of the store's own connections, repeated where an idle one was closed.

use outbox_contract::StoreError;
use sqlx::postgres::PgConnection;

use crate::error::{idled_out, is_sound, store_error};
use crate::line::Line;
use crate::store::PostgresStore;

/// Idempotent operations. Not a heartbeat: a relay has to learn that its connection is another one.
const REPEATABLE: [&str; 10] = [
    "is_handled",
    "backlog",
    "due",
    "elect",
    "fetch",
    "fetch_below",
    "record_retention",
    "settle",
    "unserved",
    "writers",
];

impl PostgresStore {
    /// Runs work on one of the store's own connections. If the connection was ended while it was
    /// idle, the work runs once more on a new one, without an error: provided that it certainly did
    /// not run, or is idempotent.
    pub(crate) async fn on<T>(
        &self,
        operation: &'static str,
        line: &Line,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error> + Clone,
    ) -> Result<T, StoreError> {
        let failed = |error| store_error(operation, error);
        let mut held = line.hold().await.map_err(failed)?;
        let was_idle = held.was_idle;
        let done = work.clone()(&mut held.connection).await;
        match held.finish(done).await {
            Err(error)
                if was_idle
                    && (idled_out(&error) || (!is_sound(&error) && REPEATABLE.contains(&operation))) =>
            {
                tracing::debug!(operation, %error, "an idle connection was closed; opening another one");
                let mut held = line.hold().await.map_err(failed)?;
                let done = work(&mut held.connection).await;
                held.finish(done).await.map_err(failed)
            }
            done => done.map_err(failed),
        }
    }
}
