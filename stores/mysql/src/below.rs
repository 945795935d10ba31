//! Messages above the counters of their stripes, where none should stand.
//!
//! A message and its counter are committed together. Counters that are behind were restored, set
//! back or lost without the messages: a relay that believed them would never count these. It looks
//! for them by itself, with [`fetch_below`](outbox_contract::Store::fetch_below); here it is said
//! to whoever checks.

use outbox_contract::admin::Misplaced;
use sqlx::Row;
use sqlx::mysql::MySqlConnection;

use crate::sql;

/// Number of messages at either end of a route that are looked at. Each command of the program
/// checks the store, and the server reads their payloads. Where messages were restored without
/// their counters, all are above; where the counters were set back, the newest are.
const LOOKED_AT: i64 = 5_000;

/// Finds messages above the counters of any route: two ranges of the primary key for each route, so
/// that a backlog of any size is not walked over.
pub(crate) async fn find(connection: &mut MySqlConnection) -> Result<Vec<Misplaced>, sqlx::Error> {
    let mut found = Vec::new();
    for row in sqlx::query(sql::ROUTES).fetch_all(&mut *connection).await? {
        let route: Vec<u8> = row.try_get_unchecked(0)?;
        let route = &route[..];
        let look = sqlx::query(sql::BELOW).bind(route).bind(LOOKED_AT).bind(route).bind(LOOKED_AT);
        let row = look.bind(route).fetch_one(&mut *connection).await?;
        let position: Option<i64> = row.try_get_unchecked(1)?;
        if let Some(position) = position {
            let stripes: i64 = row.try_get_unchecked(0)?;
            let text = format!(
                "messages, the first at position {position}, are above the counters of {stripes} stripes, as after a restore, an import or a loss of \
                 outbox_stripe alone"
            );
            let remedy = "Restore outbox_stripe together with outbox_message";
            found.push(Misplaced::new(String::from_utf8_lossy(route), text, remedy));
        }
    }
    Ok(found)
}
