//! The SKIP LOCKED baseline on PostgreSQL.

use std::sync::Arc;

use outbox_contract::backend::{Position, Stored};
use outbox_contract::{Message, MessageId, Timestamp};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Row};

use super::{BATCH, Publisher, Worker};
use crate::bench::{KEYS, PAYLOAD, TOPIC};
use crate::ours::topic;

const SELECT: &str = "select position, id, topic, key, event_type, headers, payload from usual_outbox where processed_at is null \
                      order by position limit $1 for update skip locked";
const UPDATE: &str = "update usual_outbox set processed_at = now() where position = any($1)";

/// Creates and fills the table.
pub(crate) fn fill(messages: u64) -> String {
    format!(
        "checkpoint;
         create table usual_outbox (
             position bigint generated always as identity primary key, id uuid not null default gen_random_uuid(),
             topic text not null, key text, event_type text not null, headers bytea not null default '',
             payload bytea not null, created_at timestamptz not null default now(), processed_at timestamptz);
         create index usual_outbox_open on usual_outbox (position) where processed_at is null;
         insert into usual_outbox (topic, key, event_type, payload)
         select '{TOPIC}', 'key-' || n % {KEYS}, 'bench.made', {PAYLOAD} from generate_series(1, {messages}) n;
         analyze usual_outbox"
    )
}

impl Worker for PgConnection {
    async fn open(url: &str) -> Result<Self, sqlx::Error> {
        Self::connect(url).await
    }

    async fn batch(&mut self, publisher: &Publisher) -> Result<u64, sqlx::Error> {
        let mut tx = self.begin().await?;
        let rows = sqlx::query(SELECT).bind(BATCH).fetch_all(&mut *tx).await?;
        if rows.is_empty() {
            tx.rollback().await?;
            return Ok(0);
        }
        let stored: Vec<Arc<Stored>> = rows.iter().map(read).collect::<Result<_, _>>()?;
        publisher.publish(&stored).await;
        let positions: Vec<i64> = stored.iter().map(|stored| stored.position.0).collect();
        sqlx::query(UPDATE).bind(&positions).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(positions.len() as u64)
    }
}

fn read(row: &PgRow) -> Result<Arc<Stored>, sqlx::Error> {
    let _: (&str, &[u8]) = (row.try_get(2)?, row.try_get(5)?);
    let message = Message::new(topic(), row.try_get::<String, _>(4)?)
        .expect("valid names")
        .with_id(MessageId::from_uuid(row.try_get(1)?))
        .with_payload(row.try_get::<Vec<u8>, _>(6)?)
        .with_key(row.try_get::<String, _>(3)?)
        .expect("a valid key");
    Ok(Arc::new(Stored::new(Position(row.try_get(0)?), Timestamp::default(), message)))
}
