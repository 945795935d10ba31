//! Routes with messages that no relay serves.
//!
//! While an old snapshot is open, scans still visit rows that are long gone: all that were
//! delivered since. So a search starts at the lowest position that can still hold rows. Sometimes
//! it starts at the beginning, because positions can come back. An index by route would add cost to
//! each append.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use outbox_contract::backend::Unserved;
use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::maintain::span;
use crate::sql::Statements;

/// Minimum interval of searches from the beginning: longer if they take long.
const WHOLE: Duration = Duration::from_secs(60);
/// Rest after such a search, as a multiple of its duration.
const REST: u32 = 50;

/// Start of the next search.
#[derive(Debug, Default)]
pub(crate) struct Beginning(Mutex<Place>);

#[derive(Debug, Default)]
struct Place {
    /// Messages that were not searched yet, or that no relay serves, stand behind this position.
    behind: i64,
    /// Time of the last search from the beginning. None: there was none.
    whole: Option<Instant>,
    /// Duration of that search.
    took: Duration,
}

impl Beginning {
    /// Returns the position behind which to search.
    pub(crate) fn behind(&self) -> i64 {
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = WHOLE.max(place.took.saturating_mul(REST));
        if place.whole.is_some_and(|whole| whole.elapsed() < rest) { place.behind } else { 0 }
    }

    /// Records that a search behind one position succeeded, and that the next may begin behind
    /// another.
    pub(crate) fn came_through(&self, behind: i64, next: i64, took: Duration) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        place.behind = next;
        if behind == 0 {
            (place.whole, place.took) = (Some(Instant::now()), took);
        }
    }
}

/// Returns the finds behind a position, and the position behind which the next search may begin.
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
