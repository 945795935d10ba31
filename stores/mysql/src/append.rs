//! Appending: rows in the user's transaction.
//!
//! Two round trips: one that takes places in the stripes of the keys, under locks that are held
//! until the transaction ends, and one that writes the rows. Nothing is remembered of locks or
//! numbers that a transaction has: rolling back to a savepoint drops both, without a notice.

use std::sync::LazyLock;

use outbox_contract::backend::StripeId;
use outbox_contract::{AppendError, DueTime, Outgoing, StoreError, StoreErrorKind};
use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Executor, SqlStr};

use crate::error::store_error;
use crate::sql;
use crate::stripes::{Place, Taking, in_open_transaction, packet_bytes, take};

/// The most rows of one statement; with 13 values each, a twentieth of what the server takes.
const MAX_ROWS: usize = 256;

/// The most bytes of one statement, where a single message is not larger.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Bytes of a row in a statement beyond its message: lengths, numbers, the statement's share.
/// Generous.
const ROW_BYTES: usize = 1_024;

/// Statements for 1, 2, 4, ... 256 rows: any number of messages takes few of them, and a connection
/// keeps at most nine prepared.
struct Statements([String; MAX_ROWS.ilog2() as usize + 1]);

static APPEND: LazyLock<Statements> = LazyLock::new(|| Statements::of(sql::APPEND));
static SCHEDULE: LazyLock<Statements> = LazyLock::new(|| Statements::of(sql::SCHEDULE));

impl Statements {
    /// Repeats the last group of values, on a line of its own, of a statement for one row.
    fn of(single: &str) -> Self {
        let single = single.trim_end();
        let (head, row) = single.split_at(single.rfind("\n    (").map_or(single.len(), |line| line + 5));
        Self(std::array::from_fn(|power| format!("{head}{}", vec![row; 1 << power].join(", "))))
    }

    /// The statement for as many of these rows as one takes, and how many that is.
    fn for_most_of(&'static self, rows: usize) -> (&'static str, usize) {
        let power = rows.clamp(1, MAX_ROWS).ilog2() as usize;
        (&self.0[power], 1 << power)
    }
}

/// Writes messages, all of them validated before the first. The stripes of their routes have their
/// rows.
pub(crate) async fn append(
    connection: &mut MySqlConnection,
    messages: &[Outgoing],
    is_node: bool,
) -> Result<(), AppendError> {
    let failed = |error| AppendError::from(store_error("append", error));
    let (due_later, at_once): (Vec<_>, Vec<_>) = messages.iter().partition(|outgoing| outgoing.due.is_some());
    if is_node {
        // In front of the first question for the transaction: a node that meets an abort while it
        // prepares a statement does not tell, and what comes next would be committed alone.
        prepare(connection, &APPEND, at_once.len()).await.map_err(failed)?;
        prepare(connection, &SCHEDULE, due_later.len()).await.map_err(failed)?;
    }
    let (places, max_packet_bytes) = if at_once.is_empty() {
        let statements = in_open_transaction("select @@max_allowed_packet");
        let row = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(&mut *connection).await;
        let most = row.and_then(|rows| packet_bytes(rows.first().ok_or(sqlx::Error::RowNotFound)?, 0));
        (Vec::new(), most.map_err(failed)?)
    } else {
        let taking = Taking::new(at_once.iter().map(|outgoing| (outgoing.route.as_str(), stripe(outgoing))));
        let taken = take(connection, &taking).await.map_err(failed)?;
        (taken.places, taken.max_packet_bytes)
    };
    let places = places.into_iter().map(Some);
    let at_once: Vec<_> =
        at_once.into_iter().zip(places).map(|(outgoing, place)| Row::new(outgoing, place)).collect();
    let due_later: Vec<_> = due_later.into_iter().map(|outgoing| Row::new(outgoing, None)).collect();
    for row in at_once.iter().chain(&due_later) {
        check_size(row, max_packet_bytes)?;
    }
    write(connection, &APPEND, &at_once, max_packet_bytes).await?;
    write(connection, &SCHEDULE, &due_later, max_packet_bytes).await
}

fn stripe(outgoing: &Outgoing) -> StripeId {
    StripeId::of(outgoing.message.topic.as_str(), outgoing.message.order_key().as_str())
}

/// A message as it is sent.
struct Row<'m> {
    outgoing: &'m Outgoing,
    place: Option<Place>,
    /// As the table has them: they may be twice as long as what they say.
    headers: Vec<u8>,
}

impl<'m> Row<'m> {
    fn new(outgoing: &'m Outgoing, place: Option<Place>) -> Self {
        Self { outgoing, place, headers: outgoing.message.headers.to_bytes() }
    }

    /// The bytes of its values.
    fn bytes(&self) -> usize {
        let message = &self.outgoing.message;
        let key = message.key.as_ref().map_or(0, |key| key.as_str().len());
        let names =
            message.topic.as_str().len() + key + message.event_type.len() + message.content_type.len();
        names + self.headers.len() + message.payload.len()
    }
}

/// Prepares the statements for so many rows, as far as the connection has not. Which of them are
/// needed is known when the server has said what it takes.
async fn prepare(
    connection: &mut MySqlConnection,
    statements: &'static Statements,
    rows: usize,
) -> Result<(), sqlx::Error> {
    for statement in
        statements.0.iter().take(rows.min(MAX_ROWS).checked_ilog2().map_or(0, |most| most as usize + 1))
    {
        connection.prepare(SqlStr::from_static(statement)).await?;
    }
    Ok(())
}

async fn write(
    connection: &mut MySqlConnection,
    statements: &'static Statements,
    mut rows: &[Row<'_>],
    max_packet_bytes: usize,
) -> Result<(), AppendError> {
    while !rows.is_empty() {
        let (statement, taken) = statements.for_most_of(fitting(rows, MAX_BYTES.min(max_packet_bytes)));
        let (now, later) = rows.split_at(taken);
        let written = now.iter().fold(sqlx::query(statement), bind_row).execute(&mut *connection).await;
        written.map_err(|error| AppendError::from(store_error("append", error)))?;
        rows = later;
    }
    Ok(())
}

/// Returns the number of these rows within the bytes of a statement; one always.
fn fitting(rows: &[Row<'_>], max_bytes: usize) -> usize {
    let mut bytes = 0;
    let fits = |row: &&Row<'_>| {
        bytes += row.bytes() + ROW_BYTES;
        bytes <= max_bytes
    };
    rows.iter().take_while(fits).count().max(1)
}

/// Refuses what the server would close the connection for.
fn check_size(row: &Row<'_>, max_packet_bytes: usize) -> Result<(), StoreError> {
    if row.bytes() + ROW_BYTES <= max_packet_bytes {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Invalid,
        "append",
        format!(
            "the message {} has {} bytes, over the {max_packet_bytes} that the server accepts in a statement; raise max_allowed_packet, or send a reference",
            row.outgoing.message.id,
            row.bytes()
        ),
    ))
}

fn bind_row<'q>(
    query: Query<'q, MySql, MySqlArguments>,
    row: &'q Row<'_>,
) -> Query<'q, MySql, MySqlArguments> {
    let Row { outgoing, place, headers } = row;
    let message = &outgoing.message;
    let query = query
        .bind(outgoing.route.as_str().as_bytes())
        .bind(place.map_or_else(|| stripe(outgoing).0, |place| place.stripe.0))
        .bind(&message.id.as_uuid().as_bytes()[..])
        .bind(message.topic.as_str().as_bytes())
        .bind(message.key.as_ref().map(|key| key.as_str().as_bytes()))
        .bind(message.event_type.as_bytes())
        .bind(message.schema_version)
        .bind(message.content_type.as_bytes())
        .bind(headers.as_slice())
        .bind(&*message.payload)
        .bind(message.occurred_at.as_micros());
    match (place, outgoing.due.map(DueTime::as_micros)) {
        (Some(place), _) => query.bind(place.position).bind(place.number),
        (None, due) => {
            let (micros, by_clock) = due.unwrap_or_default();
            query.bind(micros).bind(by_clock)
        }
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Message;

    use super::*;

    #[test]
    fn a_statement_has_as_many_groups_of_values_as_rows() {
        for (rows, takes) in [(1, 1), (2, 2), (3, 2), (100, 64), (256, 256), (10_000, 256)] {
            let (statement, taken) = APPEND.for_most_of(rows);
            assert_eq!(taken, takes);
            assert_eq!(statement.matches('?').count(), 13 * takes);
            assert_eq!(SCHEDULE.for_most_of(rows).0.matches('?').count(), 13 * takes);
        }
    }

    #[test]
    fn a_statement_has_no_more_bytes_than_the_server_takes_but_for_a_single_message() {
        let message =
            |bytes: usize| Outgoing::from(Message::new("t", "e").unwrap().with_payload(vec![0; bytes]));
        let (small, large) = (message(1), message(10_000));
        let rows = [&small, &small, &large, &small].map(|outgoing| Row::new(outgoing, None));
        assert_eq!(fitting(&rows, 1_000_000), 4);
        assert_eq!(fitting(&rows, 4 * ROW_BYTES), 2);
        assert_eq!(fitting(&rows[2..], 4 * ROW_BYTES), 1);
        assert!(check_size(&rows[2], 10_000 + 2 * ROW_BYTES).is_ok());
        let refused = check_size(&rows[2], 10_000).unwrap_err();
        assert!(refused.to_string().contains("max_allowed_packet"), "{refused}");
    }
}
