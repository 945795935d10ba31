//! Appending through another driver: a message as the parameters of statements that any driver
//! runs.
//!
//! The statements are here and not in the stores, because a program that appends through a driver
//! of its own should not have to build the store's driver too.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::attributes;
use crate::backend::StripeId;
use crate::message::{DueTime, MessageError, Outgoing};

/// A message as SQL, for a program whose transactions are those of another driver: another version
/// of sqlx, Diesel, SeaORM, tokio-postgres, rusqlite.
///
/// Every statement takes the same two parameters, in this order: [`payload`](Self::payload) as
/// bytes, [`fields`](Self::fields) as text. Run it in the transaction that changes your tables: the
/// message exists if and only if that commits (promise P1). The key is locked until then, so that
/// positions of a key are in the order of its commits, also beside programs that append with an
/// [`Outbox`](crate::Outbox).
///
/// ```
/// # mod outbox { pub use outbox_contract::*; pub mod message { pub use outbox_contract::*; } }
/// use outbox::Message;
/// use outbox::message::AppendSql;
///
/// let message = Message::new("orders", "order.placed")?.with_key("order-1")?.with_payload("{}");
/// let append = AppendSql::new(message)?;
/// // With tokio-postgres:
/// // tx.execute(append.postgres(), &[&append.payload, &append.fields]).await?;
/// # assert!(append.postgres().contains("outbox_message"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AppendSql {
    /// First parameter, bytes.
    pub payload: Vec<u8>,
    /// Second parameter, text: everything but the payload, as a JSON object.
    pub fields: String,
    is_scheduled: bool,
}

#[derive(Serialize)]
struct Fields<'m> {
    id: String,
    route: &'m str,
    bucket: u8,
    stripe: u16,
    topic: &'m str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'m str>,
    event_type: &'m str,
    schema_version: u32,
    content_type: &'m str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<&'m str, &'m str>,
    occurred_at: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_after: Option<i64>,
}

impl AppendSql {
    /// Prepares a message, or an [`Outgoing`] with a route or a due time, for one append.
    ///
    /// # Errors
    ///
    /// The first fault of an invalid message, with its value and the remedy.
    pub fn new(message: impl Into<Outgoing>) -> Result<Self, MessageError> {
        let Outgoing { mut message, route, due } = message.into();
        attributes::forget_origin(&mut message.headers);
        message.validate()?;
        let key = message.order_key();
        let (due_at, due_after) = match due.map(|due| (due, due.as_micros().0)) {
            None => (None, None),
            Some((DueTime::At(_), micros)) => (Some(micros), None),
            Some((DueTime::After(_), micros)) => (None, Some(micros)),
        };
        let fields = Fields {
            id: message.id.to_string(),
            route: route.as_str(),
            bucket: message.bucket().0,
            stripe: StripeId::of(message.topic.as_str(), key.as_str()).0,
            topic: message.topic.as_str(),
            key: message.key.as_ref().map(|key| key.as_str()),
            event_type: &message.event_type,
            schema_version: message.schema_version,
            content_type: &message.content_type,
            headers: message.headers.iter().collect(),
            occurred_at: message.occurred_at.as_micros(),
            due_at,
            due_after,
        };
        // Texts and numbers: there is nothing that does not encode.
        let fields = serde_json::to_string(&fields).unwrap_or_default();
        Ok(Self { payload: message.payload.to_vec(), fields, is_scheduled: due.is_some() })
    }

    /// Returns the statement for PostgreSQL, for an outbox that the `search_path` finds.
    ///
    /// *Types*: the parameters are `bytea` and `text`. It is the same for every message, so drivers
    /// may keep it prepared. *Result*: no rows; a driver's count of rows is 0 for a scheduled
    /// message.
    #[must_use]
    pub const fn postgres(&self) -> &'static str {
        // `coalesce($1, null::bytea)` is `$1`, without a cast from text: that would read the
        // backslashes of a payload that was given as text as escapes.
        include_str!("append_sql/postgres.sql")
    }

    /// Returns the statement for PostgreSQL, for an outbox in a schema.
    #[must_use]
    pub fn postgres_in(&self, schema: &str) -> String {
        let schema = schema.replace('"', "\"\"");
        self.postgres().replace("outbox_", &format!("\"{schema}\".outbox_"))
    }

    /// Returns the two statements for MySQL and MariaDB (of a scheduled message, the only one).
    ///
    /// Run them in this order, in one transaction, on a connection with the character set
    /// `utf8mb4`: the first one locks the key and numbers the message. Each takes both parameters.
    #[must_use]
    pub const fn mysql(&self) -> &'static [&'static str] {
        if self.is_scheduled {
            &[include_str!("append_sql/mysql_schedule.sql")]
        } else {
            &[include_str!("append_sql/mysql_number.sql"), include_str!("append_sql/mysql_append.sql")]
        }
    }

    /// Returns the statement for SQLite 3.41 or later, which has `unhex`. Begin its transaction
    /// with `begin immediate`.
    #[must_use]
    pub const fn sqlite(&self) -> &'static str {
        if self.is_scheduled {
            include_str!("append_sql/sqlite_schedule.sql")
        } else {
            include_str!("append_sql/sqlite_append.sql")
        }
    }
}

/// Shows neither payload nor headers: they are the user's, and may be secret.
impl std::fmt::Debug for AppendSql {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppendSql")
            .field("payload", &format_args!("{} bytes", self.payload.len()))
            .field("is_scheduled", &self.is_scheduled)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::message::Message;
    use crate::name::Route;
    use crate::{MessageId, Timestamp};

    fn message() -> Message {
        let id = MessageId::from_uuid(uuid::Uuid::from_u128(7));
        Message::of(id, crate::Topic::new("orders").unwrap(), "order.placed")
    }

    #[test]
    fn fields_are_all_of_a_message_but_its_payload() {
        let message = message().with_key("order-1").unwrap().with_header("tenant", "a\"b").unwrap();
        let message = message.with_payload(vec![0, 255]).with_schema_version(3);
        let append = AppendSql::new(Outgoing::from(message).by(Route::new("audit").unwrap())).unwrap();
        let expected = r#"{"id":"00000000-0000-0000-0000-000000000007","route":"audit","bucket":62,"stripe":249,"topic":"orders","key":"order-1","event_type":"order.placed","schema_version":3,"content_type":"application/json","headers":{"tenant":"a\"b"},"occurred_at":0}"#;
        assert_eq!((append.fields.as_str(), &append.payload[..]), (expected, &[0, 255][..]));
        assert_eq!(format!("{append:?}"), "AppendSql { payload: 2 bytes, is_scheduled: false, .. }");
    }

    #[test]
    fn a_scheduled_message_has_statements_of_its_own_and_its_time() {
        let append = AppendSql::new(Outgoing::from(message()).after(Duration::from_secs(3))).unwrap();
        assert!(append.fields.ends_with(r#""occurred_at":0,"due_after":3000000}"#), "{}", append.fields);
        assert!(append.sqlite().contains("outbox_scheduled") && append.mysql().len() == 1);
        let append = AppendSql::new(Outgoing::from(message()).due_at(Timestamp::from_micros(5))).unwrap();
        assert!(append.fields.ends_with(r#""occurred_at":0,"due_at":5}"#), "{}", append.fields);
    }

    #[test]
    fn a_schema_stands_before_every_name() {
        let append = AppendSql::new(message()).unwrap();
        let qualified = append.postgres_in("my\"shop");
        let names = append.postgres().matches("outbox_").count();
        assert_eq!(qualified.matches("\"my\"\"shop\".outbox_").count(), names);
        assert_eq!(qualified.matches("outbox_").count(), names);
    }

    #[test]
    fn an_invalid_message_and_a_received_ones_source_are_not_appended() {
        let error = AppendSql::new(message().with_schema_version(0)).unwrap_err();
        assert!(error.to_string().contains("schema version"), "{error}");
        let mut received = message();
        received.received_from("/shop");
        assert!(!AppendSql::new(received).unwrap().fields.contains("/shop"));
    }
}
