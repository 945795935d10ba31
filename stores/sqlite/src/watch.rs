//! Watch: wakes the relays of this process when another one has committed messages.
//!
//! SQLite can't notify, but it tells a connection whether another one has changed the file
//! (`data_version`), without reading a page. So a connection of its own asks for that every few
//! milliseconds, while the relays do not look by themselves, and less often while no messages come.
//! It looks for new messages only when something has changed: leases and settlements are changes too.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_contract::Route;
use outbox_contract::backend::{Bucket, Position, WakeupSignal};
use outbox_store_sql::looks::{Looks, NEWEST, Pace};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Row};
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::sql;

/// Pauses after a failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Everything that a watch needs.
pub(crate) struct Watch {
    pub(crate) file: SqliteConnectOptions,
    pub(crate) signal: WakeupSignal,
    pub(crate) looks: Arc<Looks>,
    pub(crate) interval: Duration,
    /// One relay's watch serves all of them. When that relay ends, another one's takes its seat.
    pub(crate) seat: Arc<Mutex<()>>,
}

/// An open connection, and the version of the file that it has seen.
struct Eye {
    connection: SqliteConnection,
    version: i64,
}

impl Watch {
    /// Watches until it is dropped.
    pub(crate) async fn run(self) -> Infallible {
        let _seat = self.seat.lock().await;
        let (mut eye, mut failures) = (None, 0_u32);
        let mut pace = Pace::new(self.interval, self.looks.latest(), Instant::now());
        loop {
            sleep(match failures {
                0 => pace.pause(self.looks.latest(), Instant::now()),
                _ => FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(6)).min(LONGEST_PAUSE),
            })
            .await;
            match self.ask(&mut eye).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    tracing::debug!(%error, "could not watch for messages of other processes; they are found by polling");
                    eye = None;
                    failures += 1;
                }
            }
        }
    }

    /// Wakes the relays if there is something new for them.
    async fn ask(&self, eye: &mut Option<Eye>) -> Result<(), sqlx::Error> {
        if self.looks.quiet(self.interval, Instant::now()).is_empty() {
            return Ok(());
        }
        let seen = match eye {
            Some(Eye { connection, version }) => {
                let now = data_version(connection).await?;
                std::mem::replace(version, now) == now
            }
            // What was committed before is looked for once.
            None => {
                let mut connection = self.file.clone().disable_statement_logging().connect().await?;
                let version = data_version(&mut connection).await?;
                *eye = Some(Eye { connection, version });
                false
            }
        };
        let Some(Eye { connection, .. }) = eye else { return Ok(()) };
        if seen {
            return Ok(());
        }
        // Of all routes: the change is told once.
        for route in self.looks.quiet(Duration::ZERO, Instant::now()) {
            let rows = newest(connection, &route, self.looks.newest(&route)).await?;
            if self.looks.is_news(&route, &rows) {
                self.signal.committed();
            }
        }
        Ok(())
    }
}

async fn data_version(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::query("pragma data_version").fetch_one(connection).await?.try_get(0)
}

/// The newest messages behind a position, which is the order of commits. A message of a program
/// that computes no buckets has none yet.
async fn newest(
    connection: &mut SqliteConnection,
    route: &Route,
    after: Position,
) -> Result<Vec<(Position, Option<Bucket>)>, sqlx::Error> {
    let most = i64::try_from(NEWEST).unwrap_or(i64::MAX);
    let rows =
        sqlx::query(sql::WATCH).bind(after.0).bind(most).bind(route.as_str()).fetch_all(connection).await?;
    let place = |row: &sqlx::sqlite::SqliteRow| {
        let bucket: Option<u8> = row.try_get(1)?;
        Ok((Position(row.try_get(0)?), bucket.map(Bucket)))
    };
    rows.iter().map(place).collect()
}
