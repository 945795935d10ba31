//! Routes with messages that no relay serves.
//!
//! While somebody has an old snapshot, rows that are long gone are walked over still: all that were delivered since. So a look begins where nothing
//! can stand below, and only now and then, for positions can come back, at the beginning. An index by route would cost each append.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use outbox_contract::Unserved;
use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::maintain::span;
use crate::sql::Statements;

/// How often a look begins at the beginning: more seldom where that takes long.
const WHOLE: Duration = Duration::from_secs(60);
/// How many times as long as such a look took there is none.
const REST: u32 = 50;

/// Where the next look begins.
#[derive(Debug, Default)]
pub(crate) struct Beginning(Mutex<Place>);

#[derive(Debug, Default)]
struct Place {
    /// What has not been looked at yet, or nobody serves, stands behind this position.
    behind: i64,
    /// When a look began at the beginning. None: none has.
    whole: Option<Instant>,
    /// How long that took.
    took: Duration,
}

impl Beginning {
    /// Behind which position to look.
    pub(crate) fn behind(&self) -> i64 {
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = WHOLE.max(place.took.saturating_mul(REST));
        if place.whole.is_some_and(|whole| whole.elapsed() < rest) { place.behind } else { 0 }
    }

    /// A look behind one position came through, and the next may begin behind another.
    pub(crate) fn came_through(&self, behind: i64, next: i64, took: Duration) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        place.behind = next;
        if behind == 0 {
            (place.whole, place.took) = (Some(Instant::now()), took);
        }
    }
}

/// What is found behind a position, and behind which the next look may begin.
pub(crate) async fn unserved(
    connection: &mut PgConnection,
    sql: &Statements,
    behind: i64,
    after: Duration,
    counting_limit: u32,
) -> Result<(Vec<Unserved>, i64), sqlx::Error> {
    let most = i64::try_from(Unserved::MOST).unwrap_or(i64::MAX);
    let query = sql.query(&sql.unserved).bind(i64::from(counting_limit)).bind(behind).bind(most);
    let (mut found, mut next): (Vec<(String, Duration)>, i64) = (Vec::new(), 0);
    for row in query.fetch_all(connection).await? {
        if let Some(position) = row.try_get::<Option<i64>, _>("next")? {
            next = position;
            continue;
        }
        let waited = row.try_get::<i64, _>("now")?.saturating_sub(row.try_get("since")?);
        found.push((row.try_get("route")?, span(waited)));
    }
    Ok((Unserved::gather(found, after), next))
}
