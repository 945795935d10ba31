//! Transactions of the store's own: begun with the concerns that the promises need, tried again
//! while others are in the way.

use std::time::{Duration, Instant};

use mongodb::ClientSession;
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria, WriteConcern};
use outbox_contract::{StoreError, StoreErrorKind, async_trait};

use crate::database::Database;
use crate::error::{Failed, is_unknown_commit};

/// Something that is done in one transaction, whole or not at all. It may be run several times,
/// from its beginning.
#[async_trait]
pub(crate) trait Work: Sync {
    type Done: Send;

    async fn run(&self, database: &Database, session: &mut ClientSession) -> Result<Self::Done, Failed>;
}

/// Begins a transaction in a session.
pub(crate) async fn begin(session: &mut ClientSession) -> Result<(), Failed> {
    let begun = session
        .start_transaction()
        .read_concern(ReadConcern::majority())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
        .write_concern(WriteConcern::majority())
        .await;
    Ok(begun?)
}

/// Does something in a transaction of its own. Durable when it returns: a majority has it.
pub(crate) async fn transact<W: Work>(
    database: &Database,
    operation: &'static str,
    work: &W,
) -> Result<W::Done, StoreError> {
    let mut attempts = Attempts::new(database.options.conflict_timeout);
    loop {
        match once(database, work, &attempts).await {
            Ok(done) => return Ok(done),
            Err(failed) => attempts.after(operation, failed).await?,
        }
    }
}

/// As [`transact`], once: a conflict is the caller's.
pub(crate) async fn once<W: Work>(
    database: &Database,
    work: &W,
    attempts: &Attempts,
) -> Result<W::Done, Failed> {
    let mut session = database.session().await?;
    begin(&mut session).await?;
    let done = match work.run(database, &mut session).await {
        Ok(done) => done,
        Err(failed) => {
            // The server's answer does not matter: the first error is the cause.
            let _ = session.abort_transaction().await;
            return Err(failed);
        }
    };
    loop {
        match session.commit_transaction().await {
            Ok(()) => break,
            // A commit may be sent again: it happens once.
            Err(error) if is_unknown_commit(&error) && !attempts.are_over() => {
                tokio::time::sleep(Attempts::LONGEST).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    database.note(&session);
    Ok(done)
}

/// Attempts at something that meets conflicts, and their end: with growing pauses of random length,
/// so that two that met do not meet again.
pub(crate) struct Attempts {
    until: Instant,
    pause: Duration,
}

impl Attempts {
    const SHORTEST: Duration = Duration::from_millis(2);
    const LONGEST: Duration = Duration::from_millis(100);

    pub(crate) fn new(timeout: Duration) -> Self {
        Self { until: Instant::now() + timeout, pause: Self::SHORTEST }
    }

    fn are_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Waits after a conflict. Any other error, and a conflict when the time is over, is final.
    pub(crate) async fn after(&mut self, operation: &'static str, failed: Failed) -> Result<(), StoreError> {
        if !failed.is_conflict() {
            return Err(failed.in_step(operation));
        }
        if self.are_over() {
            return Err(StoreError::new(
                StoreErrorKind::Unavailable,
                operation,
                "write conflicts with other transactions for longer than mongodb.conflict_timeout; try again later, or raise it",
            )
            .with_source(failed.in_step(operation)));
        }
        tokio::time::sleep(self.pause.mul_f64(share())).await;
        self.pause = (self.pause * 2).min(Self::LONGEST);
        Ok(())
    }
}

/// A share between a half and one.
fn share() -> f64 {
    // The last bits of a fresh identifier are random enough to keep two processes apart.
    0.5 + f64::from(uuid::Uuid::now_v7().as_bytes()[15]) / 512.0
}
