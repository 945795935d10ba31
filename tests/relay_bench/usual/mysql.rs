//! The SKIP LOCKED baseline on MySQL and MariaDB, which have neither partial indexes nor arrays.

use std::sync::Arc;

use outbox_contract::backend::{Position, Stored};
use outbox_contract::{Message, MessageId, Timestamp};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Connection, Executor as _, Row};

use super::{BATCH, Publisher, Worker};
use crate::bench::{KEYS, TOPIC};
use crate::ours::topic;

const SELECT: &str = "select position, id, topic, message_key, event_type, headers, payload from usual_outbox \
                      where processed_at is null order by position limit ? for update skip locked";

/// Creates and fills the table, with a million messages at most.
pub(crate) fn fill(messages: u64) -> String {
    format!(
        "create table usual_outbox (
             position bigint primary key auto_increment, id binary(16) not null, topic varchar(255) not null,
             message_key varchar(255), event_type varchar(255) not null, headers blob not null, payload longblob not null,
             created_at datetime(6) not null, processed_at datetime(6), index usual_outbox_open (processed_at, position));
         insert into usual_outbox (id, topic, message_key, event_type, headers, payload, created_at)
         with digit as (select 0 d union select 1 union select 2 union select 3 union select 4
                        union select 5 union select 6 union select 7 union select 8 union select 9)
         select random_bytes(16), '{TOPIC}', concat('key-', n % {KEYS}), 'bench.made', '',
                concat(rpad(concat('{{\"n\":', n, ',\"x\":\"'), 298, 'x'), '\"}}'), now(6)
         from (select 1 + a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * g.d as n
               from digit a, digit b, digit c, digit e, digit f, digit g) numbers
         where n <= {messages} order by n;
         analyze table usual_outbox"
    )
}

impl Worker for MySqlConnection {
    async fn open(url: &str) -> Result<Self, sqlx::Error> {
        let mut connection = Self::connect(url).await?;
        // With the default, the gaps between the rows of a batch are locked too, and workers wait
        // for each other.
        connection.execute("set session transaction isolation level read committed").await?;
        Ok(connection)
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
        // Nearly all batches are full, so that the statement is prepared once for them.
        let places = vec!["?"; stored.len()].join(", ");
        let update = format!("update usual_outbox set processed_at = now(6) where position in ({places})");
        let update = sqlx::query(AssertSqlSafe(update));
        stored.iter().fold(update, |update, stored| update.bind(stored.position.0)).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(stored.len() as u64)
    }
}

fn read(row: &MySqlRow) -> Result<Arc<Stored>, sqlx::Error> {
    let _: (&str, &[u8]) = (row.try_get(2)?, row.try_get(5)?);
    let message = Message::new(topic(), row.try_get::<String, _>(4)?)
        .expect("valid names")
        .with_id(MessageId::from_uuid(row.try_get(1)?))
        .with_payload(row.try_get::<Vec<u8>, _>(6)?)
        .with_key(row.try_get::<String, _>(3)?)
        .expect("a valid key");
    Ok(Arc::new(Stored::new(Position(row.try_get(0)?), Timestamp::default(), message)))
}
