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

/// Finds messages above the counters of any route, as far as the counting limit goes: one range of
/// the primary key for each route, so that a backlog of any size is not walked over.
pub(crate) async fn find(
    connection: &mut MySqlConnection,
    counting_limit: u32,
) -> Result<Vec<Misplaced>, sqlx::Error> {
    let mut found = Vec::new();
    for row in sqlx::query(sql::ROUTES).fetch_all(&mut *connection).await? {
        let route: Vec<u8> = row.try_get_unchecked(0)?;
        let look = sqlx::query(sql::BELOW).bind(&route[..]).bind(i64::from(counting_limit)).bind(&route[..]);
        let row = look.fetch_one(&mut *connection).await?;
        let position: Option<i64> = row.try_get_unchecked(1)?;
        if let Some(position) = position {
            let stripes: i64 = row.try_get_unchecked(0)?;
            let text = format!(
                "messages, the first at position {position}, are above the counters of {stripes} stripes, as after a restore, an import or a loss of \
                 outbox_stripe alone"
            );
            let remedy = "Restore outbox_stripe together with outbox_message";
            found.push(Misplaced::new(String::from_utf8_lossy(&route), text, remedy));
        }
    }
    Ok(found)
}
