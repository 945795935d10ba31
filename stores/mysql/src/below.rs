//! Messages below a saved mark, where none should stand.
//!
//! A mark is how far relays say that they have read. An append takes a position by the clock, so that it stands above the mark though the stripes were set
//! back; but rows of a table that was restored or filled by itself may stand below.

use sqlx::Row;
use sqlx::mysql::MySqlConnection;

use crate::sql;

/// Warns of messages below the marks of any route. What hinders the look hinders nothing else.
pub(crate) async fn warn(connection: &mut MySqlConnection) {
    if let Err(error) = look(connection).await {
        tracing::debug!(%error, "could not look for messages below the saved marks");
    }
}

async fn look(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    for row in sqlx::query(sql::BELOW).fetch_all(connection).await? {
        let (route, mark): (Vec<u8>, i64) = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
        let lowest: Option<i64> = row.try_get_unchecked(2)?;
        if let Some(lowest) = lowest {
            tracing::warn!(
                route = %String::from_utf8_lossy(&route), position = lowest, mark,
                "messages stand below the saved mark of relays, as after a restore or an import of outbox_message alone; relays read from the mark on. \
                 Stop the relays of this route, run `update outbox_lease set low_water = 0` for it, and start them again"
            );
        }
    }
    Ok(())
}
