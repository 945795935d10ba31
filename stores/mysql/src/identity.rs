//! The identity of the outbox.

use outbox_contract::admin::OutboxId;
use sqlx::mysql::MySqlConnection;
use uuid::Uuid;

use crate::error::number;
use crate::migrate::{DEADLOCK, MAX_CONFLICTS};
use crate::sql;

/// Returns the identity, and makes it first where it is missing.
pub(crate) async fn read(connection: &mut MySqlConnection) -> Result<OutboxId, sqlx::Error> {
    for _ in 0..MAX_CONFLICTS {
        if let Some(identity) = stored(connection).await? {
            return Ok(identity);
        }
        let first = OutboxId::new();
        let made = sqlx::query(sql::IDENTITY_FIRST).bind(bytes(&first)).execute(&mut *connection).await;
        match made {
            // A deadlock: another node of a cluster was faster.
            Err(error) if number(&error) != Some(DEADLOCK) => return Err(error),
            _ => {}
        }
    }
    Err(sqlx::Error::RowNotFound)
}

async fn stored(connection: &mut MySqlConnection) -> Result<Option<OutboxId>, sqlx::Error> {
    let id: Option<Vec<u8>> = sqlx::query_scalar(sql::IDENTITY).fetch_optional(connection).await?;
    let uuid = id.map(|id| Uuid::from_slice(&id)).transpose();
    uuid.map(|uuid| uuid.map(OutboxId::from_uuid)).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// Returns an identity as the table has it.
pub(crate) fn bytes(identity: &OutboxId) -> Vec<u8> {
    identity.as_uuid().as_bytes().to_vec()
}
