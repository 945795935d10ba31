//! Messages below a saved mark, where none should stand.
//!
//! A mark is the position up to which relays report that they have read. Figures begin there, so
//! that dead rows below it are not scanned each time. But positions can come back (a sequence that
//! was set, a table that was restored or imported), so the store sometimes checks for messages
//! below.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outbox_contract::Route;
use outbox_contract::admin::Misplaced;
use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::sql::Statements;
use crate::store::PostgresStore;

/// Interval between checks that found nothing.
const EVERY: Duration = Duration::from_secs(30);
/// Rest after a check, as a multiple of its duration.
const REST: u32 = 50;
/// Time limit of a check: figures wait for it.
pub(crate) const MOST: Duration = Duration::from_secs(2);
/// Value for no position.
const NONE: i64 = i64::MAX;
/// Maximum number of scanned rows of other routes, as a multiple of the counting limit.
const WALKED: i64 = 10;

/// Result of the last check of each route.
#[derive(Debug, Default)]
pub(crate) struct Below(Mutex<BTreeMap<Route, Look>>);

#[derive(Clone, Copy, Debug)]
struct Look {
    next: Instant,
    pause: Duration,
    /// Result of the last check.
    lowest: i64,
}

impl Below {
    /// Returns the lowest known position below the marks of a route. Not on the connection of
    /// figures: a check may take long.
    pub(crate) async fn lowest(&self, store: &PostgresStore, route: &Route) -> i64 {
        if let Some(lowest) = self.known(route) {
            return lowest;
        }
        let (began, limit) = (Instant::now(), store.options().counting_limit);
        let look = async |connection: &mut PgConnection| {
            lowest(connection, store.sql(), route.as_str(), limit).await
        };
        match tokio::time::timeout(MOST, store.on("backlog", &store.lines().browsing, look)).await {
            Ok(Ok((lowest, _))) => self.came_through(route, lowest, began.elapsed()),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the check for messages below the saved mark failed");
                self.failed(route)
            }
            Err(_) => self.failed(route),
        }
    }

    /// Returns the lowest position known to stand below the marks of a route. None: a check is due.
    fn known(&self, route: &Route) -> Option<i64> {
        let looks = self.looks();
        looks.get(route).filter(|look| Instant::now() < look.next).map(|look| look.lowest)
    }

    /// Records the result of a check. After a find the next check is due at once, because found
    /// messages get delivered.
    fn came_through(&self, route: &Route, lowest: i64, took: Duration) -> i64 {
        let pause = if lowest == NONE { EVERY.max(took.saturating_mul(REST)) } else { took };
        self.looks().insert(route.clone(), Look { next: Instant::now() + pause, pause, lowest });
        lowest
    }

    /// Records that a check failed, or took too long: its last result stays, and the next check is
    /// delayed ever longer.
    fn failed(&self, route: &Route) -> i64 {
        let mut looks = self.looks();
        let (pause, lowest) =
            looks.get(route).map_or((EVERY, NONE), |look| (look.pause.max(EVERY), look.lowest));
        let pause = (pause * 2).min(EVERY * 64);
        looks.insert(route.clone(), Look { next: Instant::now() + pause, pause, lowest });
        lowest
    }

    fn looks(&self) -> MutexGuard<'_, BTreeMap<Route, Look>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the lowest position of a route's messages at or below its marks, [`NONE`] without any,
/// and the mark.
pub(crate) async fn lowest(
    connection: &mut PgConnection,
    sql: &Statements,
    route: &str,
    counting_limit: u32,
) -> Result<(i64, i64), sqlx::Error> {
    let walked = i64::from(counting_limit).saturating_mul(WALKED);
    let row = sql.query(&sql.below).bind(route).bind(walked).fetch_one(connection).await?;
    Ok((row.try_get::<Option<i64>, _>("position")?.unwrap_or(NONE), row.try_get("low_water")?))
}

/// Finds messages below the marks of any route.
pub(crate) async fn find(
    connection: &mut PgConnection,
    sql: &Statements,
    counting_limit: u32,
) -> Result<Vec<Misplaced>, sqlx::Error> {
    let mut found = Vec::new();
    for row in sql.query(&sql.lease_routes).fetch_all(&mut *connection).await? {
        let route: String = row.try_get(0)?;
        let (lowest, mark) = lowest(connection, sql, &route, counting_limit).await?;
        if lowest != NONE {
            let text = format!(
                "messages from position {lowest} on stand below {mark}, the saved mark of relays, as after a restore, a move or an import without the \
                 sequence of positions"
            );
            let remedy = "Set outbox_message_position above the highest position that was ever used";
            found.push(Misplaced::new(route, text, remedy));
        }
    }
    Ok(found)
}
