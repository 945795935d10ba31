//! Messages above the counters of their stripes, where none should stand.
//!
//! A message and its counter are committed together. Counters that are behind were restored, set
//! back or lost without the messages: a relay that believed them would never count these. It looks
//! for them by itself, with [`fetch_below`](outbox_contract::Store::fetch_below); here it is said
//! to whoever checks.

use sqlx::Row;
use sqlx::mysql::MySqlConnection;

use crate::sql;

/// Warns of messages above the counters of any route, as far as the counting limit goes. What hinders the look hinders nothing else.
pub(crate) async fn warn(connection: &mut MySqlConnection, counting_limit: u32) {
    match find(connection, counting_limit).await {
        Ok(found) => found.iter().for_each(Found::say),
        Err(error) => {
            tracing::debug!(%error, "could not look for messages above the counters of their stripes")
        }
    }
}

/// A route with messages above counters: in how many stripes, and the lowest position of one.
#[derive(Debug)]
struct Found {
    route: String,
    stripes: i64,
    position: i64,
}

impl Found {
    fn say(&self) {
        let Self { route, stripes, position } = self;
        tracing::warn!(
            %route, position, stripes,
            "messages are above the counters of their stripes, as after a restore, an import or a loss of outbox_stripe alone; a relay delivers them within a \
             minute. Restore outbox_stripe together with outbox_message"
        );
    }
}

/// One range of the primary key for each route, up to the limit: a backlog of any size is not walked over.
async fn find(connection: &mut MySqlConnection, counting_limit: u32) -> Result<Vec<Found>, sqlx::Error> {
    let mut found = Vec::new();
    for row in sqlx::query(sql::ROUTES).fetch_all(&mut *connection).await? {
        let route: Vec<u8> = row.try_get_unchecked(0)?;
        let look = sqlx::query(sql::BELOW).bind(&route[..]).bind(i64::from(counting_limit)).bind(&route[..]);
        let row = look.fetch_one(&mut *connection).await?;
        if let Some(position) = row.try_get_unchecked(1)? {
            let route = String::from_utf8_lossy(&route).into_owned();
            found.push(Found { route, stripes: row.try_get_unchecked(0)?, position });
        }
    }
    Ok(found)
}
