//! Watch: wakes the relays of this process when another one has committed messages.
//!
//! The server can't notify. So a connection of its own asks, every few milliseconds, for the newest
//! messages, while the relays do not look by themselves, and less often while none come. Positions are made of the server's clock,
//! so the question is for those of the last seconds alone: rows that were removed and are not
//! purged yet would have to be walked over. Messages that it does not see, as those of longer
//! transactions, are found by polling.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_contract::Route;
use outbox_contract::backend::{Bucket, Position, StripeId, WakeupSignal};
use outbox_store_sql::looks::{Looks, Pace};
use sqlx::Row;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use crate::error::is_denied;
use crate::line::{Line, Way};
use crate::sql;

/// Time limit of a question.
const ANSWERS: Duration = Duration::from_secs(5);

/// Pauses after a failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Maximum part of the time in which a question is under way, as one to so many: a server that
/// takes long to answer is asked less often.
const SHARE: u32 = 8;

/// Everything that a watch needs.
pub(crate) struct Watch {
    pub(crate) way: Way,
    pub(crate) signal: WakeupSignal,
    pub(crate) looks: Arc<Looks>,
    pub(crate) interval: Duration,
    /// One relay's watch serves all of them. When that relay ends, another one's takes its seat.
    pub(crate) seat: Arc<Mutex<()>>,
}

impl Watch {
    /// Watches until it is dropped.
    pub(crate) async fn run(self) -> Infallible {
        let _seat = self.seat.lock().await;
        let mut line = Line::new(self.way.clone().without_catching_up());
        let (mut pause, mut failures, mut was_told) = (self.interval, 0_u32, false);
        let mut pace = Pace::new(self.interval, self.looks.latest(), Instant::now());
        loop {
            sleep(pause).await;
            let began = Instant::now();
            match self.ask(&line, began).await {
                Ok(()) => {
                    if failures > 0 {
                        // What came meanwhile may be older than what is asked for.
                        self.signal.committed();
                    }
                    (failures, was_told) = (0, false);
                    let wanted = pace.pause(self.looks.latest(), Instant::now());
                    pause = wanted.max(began.elapsed() * SHARE).min(FIRST_PAUSE.max(wanted));
                }
                Err(error) => {
                    if is_denied(&error) && !was_told {
                        tracing::warn!(%error, "may not watch for messages of other processes; they are found by polling");
                        was_told = true;
                    } else {
                        tracing::debug!(%error, "could not watch for messages of other processes; they are found by polling");
                    }
                    // A session keeps the rights to its database that it began with.
                    line = Line::new(self.way.clone().without_catching_up());
                    pause = FIRST_PAUSE.saturating_mul(1 << failures.min(6)).min(LONGEST_PAUSE);
                    failures += 1;
                }
            }
        }
    }

    /// Wakes the relays if there is something new for them.
    async fn ask(&self, line: &Line, now: Instant) -> Result<(), sqlx::Error> {
        for route in self.looks.quiet(self.interval, now) {
            let asked = timeout(ANSWERS, newest(line, &route)).await;
            let rows = asked.unwrap_or_else(|_| Err(sqlx::Error::Io(ErrorKind::TimedOut.into())))?;
            if self.looks.is_news(&route, &rows) {
                self.signal.committed();
            }
        }
        Ok(())
    }
}

async fn newest(line: &Line, route: &Route) -> Result<Vec<(Position, Option<Bucket>)>, sqlx::Error> {
    let mut held = line.hold().await?;
    let asked = sqlx::query(sql::WATCH).bind(route.as_str().as_bytes()).fetch_all(&mut held.connection).await;
    let place = |row: &sqlx::mysql::MySqlRow| {
        let stripe = StripeId(row.try_get_unchecked(1)?);
        Ok((Position(row.try_get_unchecked(0)?), Some(stripe.bucket())))
    };
    held.finish(asked)?.iter().map(place).collect()
}
