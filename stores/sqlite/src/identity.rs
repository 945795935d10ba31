//! The identity of the outbox.

use outbox_contract::admin::OutboxId;
use sqlx::sqlite::SqlitePool;
use uuid::Uuid;

use crate::pools::Pools;
use crate::sql;

/// Returns the identity, and makes it first where it is missing.
pub(crate) async fn read(pools: &Pools) -> Result<OutboxId, sqlx::Error> {
    if let Some(identity) = stored(&pools.reads).await? {
        return Ok(identity);
    }
    let first = OutboxId::new();
    sqlx::query(sql::IDENTITY_FIRST).bind(bytes(&first)).execute(&pools.deciding).await?;
    // Another program's, if it was faster.
    stored(&pools.deciding).await?.ok_or(sqlx::Error::RowNotFound)
}

async fn stored(pool: &SqlitePool) -> Result<Option<OutboxId>, sqlx::Error> {
    let id: Option<Vec<u8>> = sqlx::query_scalar(sql::IDENTITY).fetch_optional(pool).await?;
    let uuid = id.map(|id| Uuid::from_slice(&id)).transpose();
    uuid.map(|uuid| uuid.map(OutboxId::from_uuid)).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// Returns an identity as the table has it.
pub(crate) fn bytes(identity: &OutboxId) -> Vec<u8> {
    identity.as_uuid().as_bytes().to_vec()
}
