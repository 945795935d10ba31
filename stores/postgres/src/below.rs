//! Messages below a saved mark, where none should stand.
//!
//! A mark is how far relays say that they have read. Figures begin there, so that what is dead below it is not walked over each time; but positions can
//! come back (a sequence that was set, a table that was restored or imported), so now and then it is looked whether anything stands below.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outbox_contract::Route;
use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::sql::Statements;

/// How long after a look that found nothing the next one is made.
const EVERY: Duration = Duration::from_secs(30);
/// How many times as long as a look took there is none.
const REST: u32 = 50;
/// How long a look may take: figures wait for it.
pub(crate) const MOST: Duration = Duration::from_secs(2);
/// Stands for no position.
pub(crate) const NONE: i64 = i64::MAX;
/// How many rows of other routes are walked over, as a multiple of the counting limit.
const WALKED: i64 = 10;

/// What is known of each route.
#[derive(Debug, Default)]
pub(crate) struct Below(Mutex<BTreeMap<Route, Look>>);

#[derive(Clone, Copy, Debug)]
struct Look {
    next: Instant,
    pause: Duration,
    /// What the last one found.
    lowest: i64,
}

impl Below {
    /// The lowest position that is known to stand below the marks of a route. None: it is time to look.
    pub(crate) fn known(&self, route: &Route) -> Option<i64> {
        let looks = self.looks();
        looks.get(route).filter(|look| Instant::now() < look.next).map(|look| look.lowest)
    }

    /// Takes what a look has found. What was found is looked for again at once: it goes away.
    pub(crate) fn came_through(&self, route: &Route, lowest: i64, took: Duration) -> i64 {
        let pause = if lowest == NONE { EVERY.max(took.saturating_mul(REST)) } else { took };
        self.looks().insert(route.clone(), Look { next: Instant::now() + pause, pause, lowest });
        lowest
    }

    /// A look failed, or took too long: what was known holds, and the next one is made ever later.
    pub(crate) fn failed(&self, route: &Route) -> i64 {
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

/// The lowest position of a route's messages at or below its marks, [`NONE`] without any, and the mark.
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

/// Warns of messages below the marks of any route.
pub(crate) async fn warn(
    connection: &mut PgConnection,
    sql: &Statements,
    counting_limit: u32,
) -> Result<(), sqlx::Error> {
    for row in sql.query(&sql.lease_routes).fetch_all(&mut *connection).await? {
        let route: String = row.try_get(0)?;
        let (lowest, mark) = lowest(connection, sql, &route, counting_limit).await?;
        if lowest != NONE {
            tracing::warn!(
                %route, position = lowest, mark,
                "messages stand below the saved mark of relays, as after a restore, a move or an import without the sequence of positions; a relay \
                 delivers them within a minute. Set outbox_message_position above the highest position that was ever used"
            );
        }
    }
    Ok(())
}
