//! Sessions: relays whose process is gone are noticed long before their leases are over.
//!
//! The session of heartbeats holds a lock of its own number, and the relay's row tells the number.
//! The server ends the session of a killed process at once, so others find the lock free at their
//! next heartbeats. Servers keep such locks to themselves: a relay of another server is not looked
//! at, and nodes of a Galera cluster do without.

use outbox_contract::backend::rules::sessions::Look;
use outbox_contract::backend::{LeaseRequest, RelayId};
use outbox_contract::{Route, Timestamp};
use sqlx::Row;
use sqlx::mysql::MySqlConnection;

use crate::error::is_sound;
use crate::lease::relay_id;
use crate::sql;

/// A session that others see.
pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) server: Vec<u8>,
}

/// Marks this session as one of relays. None: the server has no such locks, or lends them not.
pub(crate) async fn hold(connection: &mut MySqlConnection) -> Result<Option<Session>, sqlx::Error> {
    let row = match sqlx::query(sql::SESSION_HOLD).fetch_one(connection).await {
        Ok(row) => row,
        Err(error) if is_sound(&error) => {
            tracing::debug!(%error, "GET_LOCK failed for this session; after a kill, takeover waits until the leases expire");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let is_held: Option<i64> = row.try_get_unchecked(2)?;
    let session = Session { number: row.try_get_unchecked(0)?, server: row.try_get_unchecked(1)? };
    Ok((is_held == Some(1)).then_some(session))
}

/// Looks at the sessions of the other living relays of a route, and notes those that are lost.
pub(crate) async fn look(
    connection: &mut MySqlConnection,
    request: &LeaseRequest,
    session: &Session,
    now: Timestamp,
) -> Result<Vec<(RelayId, Look)>, sqlx::Error> {
    let rows = sqlx::query(sql::SESSIONS)
        .bind(request.route.as_str().as_bytes())
        .bind(&request.relay.as_uuid().as_bytes()[..])
        .bind(&session.server)
        .bind(now.as_micros())
        .fetch_all(&mut *connection)
        .await?;
    let mut looks = Vec::new();
    for row in &rows {
        let Some(relay) = relay_id(row.try_get_unchecked(0)?) else { continue };
        let before = row.try_get_unchecked::<Option<i64>, _>(1)?.map(Timestamp::from_micros);
        // An answer that is none is no reason to end a life.
        let is_there = row.try_get_unchecked::<Option<i64>, _>(2)? != Some(0);
        let look = Look::at(is_there, before, now);
        let lost_at = if let Look::Lost(lost_at, _) = look { Some(lost_at) } else { None };
        if look != Look::Dead && lost_at != before {
            note(connection, &request.route, relay, lost_at).await?;
        }
        looks.push((relay, look));
    }
    Ok(looks)
}

async fn note(
    connection: &mut MySqlConnection,
    route: &Route,
    relay: RelayId,
    lost_at: Option<Timestamp>,
) -> Result<(), sqlx::Error> {
    sqlx::query(sql::SESSION_LOST)
        .bind(lost_at.map(Timestamp::as_micros))
        .bind(route.as_str().as_bytes())
        .bind(&relay.as_uuid().as_bytes()[..])
        .execute(connection)
        .await
        .map(drop)
}
