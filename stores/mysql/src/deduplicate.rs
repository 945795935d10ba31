//! Dedup: what a consumer has handled, noted in its own transaction.
//!
//! One statement, where nothing is in the way of a message and its transaction is looked at before
//! it is committed ([`GUARD`]). Else the transaction is asked for first, and what waits is read.

use std::collections::HashSet;

use outbox_contract::backend::{Dedup, Position, Stored};
use outbox_contract::{Consumer, Message, MessageId, Route, inbox_route};
use sqlx::mysql::{MySqlConnection, MySqlQueryResult};
use sqlx::{AssertSqlSafe, Executor, Row, SqlStr};
use uuid::Uuid;

use crate::fenced::Fenced;
use crate::line::run;
use crate::stripes::REQUIRE_TRANSACTION;
use crate::transactions::GUARD;
use crate::{sql, turns};

/// The most rows that one statement locks.
const MAX_ROWS: usize = 500;

/// Protection of a transaction that the server loses unseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guarding {
    /// Each call asks for it. The connection is one that is never restored.
    Asked,
    /// The commit asks for it, from the first call on.
    Looked,
    /// Each call asks for it, behind what it prepares: a node of a cluster that meets an abort
    /// while it prepares a statement does not tell.
    Node,
}

/// A transaction of an inbox.
pub(crate) struct Inbox<'c> {
    pub(crate) connection: &'c mut MySqlConnection,
    pub(crate) guarding: Guarding,
    pub(crate) fenced: &'c Fenced,
}

impl Inbox<'_> {
    /// Returns the messages that wait on a route, each where it was read; they do until the
    /// transaction is over.
    pub(crate) async fn fence(self, route: &Route, stored: &[&Stored]) -> Result<Vec<bool>, sqlx::Error> {
        let Self { connection, guarding, fenced } = self;
        let wait = match (guarding, stored) {
            (Guarding::Looked, [one]) if is_hot(connection, route, one).await? => vec![true],
            _ => {
                let opening = open(connection, guarding).await?;
                fence(connection, &opening, route, stored).await?
            }
        };
        fenced.note(stored.iter().zip(&wait).filter(|(_, waits)| **waits).map(|(stored, _)| *stored));
        Ok(wait)
    }

    /// Notes messages, at least one, and returns what each was.
    pub(crate) async fn deduplicate(
        self,
        consumer: &Consumer,
        messages: &[&Message],
    ) -> Result<Vec<Dedup>, sqlx::Error> {
        let Self { connection, guarding, fenced } = self;
        let route = inbox_route(consumer);
        let of = (consumer, &route);
        let until = fenced.take(messages);
        if guarding == Guarding::Looked
            && let Some(noted) = at_once(connection, of, messages, until.is_some()).await?
        {
            return Ok(noted);
        }
        let opening = open(connection, guarding).await?;
        match turns::find(connection, &opening, of, messages, until).await? {
            Some(in_turn) => note_in_turn(connection, consumer, messages, in_turn).await,
            None => one_by_one(connection, of, messages).await,
        }
    }
}

/// Asks for the transaction. Returns the part of that which goes with the next statements: not on a
/// node of a cluster, see [`in_open_transaction`](crate::stripes::in_open_transaction).
async fn open(connection: &mut MySqlConnection, guarding: Guarding) -> Result<String, sqlx::Error> {
    Ok(match guarding {
        Guarding::Asked => format!("{REQUIRE_TRANSACTION}; "),
        Guarding::Looked => format!("{REQUIRE_TRANSACTION}; {GUARD}; "),
        Guarding::Node => {
            prepare(connection).await?;
            run(connection, REQUIRE_TRANSACTION).await?;
            String::new()
        }
    })
}

/// Prepares what is asked by statements with values, as far as the connection has not.
async fn prepare(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    for statement in [
        sql::FENCE_PARKED,
        sql::DEDUPLICATE,
        sql::DEDUPLICATE_ONE,
        sql::DEDUPLICATE_NOTED,
        sql::DEDUPLICATE_FIRST,
        sql::IS_HANDLED,
    ] {
        connection.prepare(SqlStr::from_static(statement)).await?;
    }
    Ok(())
}

/// Notes messages by one statement, where nothing is in their way. None: something is, or the
/// commit does not look yet, and nothing was noted. `waits`: they wait themselves.
async fn at_once(
    connection: &mut MySqlConnection,
    (consumer, route): (&Consumer, &Route),
    messages: &[&Message],
    waits: bool,
) -> Result<Option<Vec<Dedup>>, sqlx::Error> {
    let route = route.as_str().as_bytes();
    let noted = match (messages, waits) {
        ([message], false) => {
            note_one(connection, sql::DEDUPLICATE_ALONE, consumer, message, |query| {
                query.bind(route).bind(route)
            })
            .await?
        }
        ([message], true) => {
            let (topic, order_key) = (message.topic.as_str().as_bytes(), message.order_key());
            let (key, id) = (order_key.as_str().as_bytes(), message.id.as_uuid());
            let id = &id.as_bytes()[..];
            note_one(connection, sql::DEDUPLICATE_NEXT, consumer, message, |query| {
                let query = query.bind(route).bind(topic).bind(key).bind(route).bind(topic).bind(key);
                query.bind(consumer.as_str().as_bytes()).bind(id).bind(id)
            })
            .await?
        }
        (_, false) => return note_together(connection, consumer, messages, Some(route)).await,
        (_, true) => false,
    };
    Ok(noted.then(|| vec![Dedup::New]))
}

/// Notes those that are in turn, or that were handled before.
async fn note_in_turn(
    connection: &mut MySqlConnection,
    consumer: &Consumer,
    messages: &[&Message],
    mut in_turn: Vec<bool>,
) -> Result<Vec<Dedup>, sqlx::Error> {
    for (message, in_turn) in messages.iter().zip(&mut in_turn).filter(|(_, in_turn)| !**in_turn) {
        *in_turn = is_handled(connection, consumer, message.id).await?;
    }
    let given: Vec<&Message> =
        messages.iter().zip(&in_turn).filter(|(_, in_turn)| **in_turn).map(|(message, _)| *message).collect();
    let mut noted = note(connection, consumer, &given).await?.into_iter();
    let mut dedup = |in_turn| if in_turn { noted.next() } else { Some(Dedup::OutOfTurn) };
    Ok(in_turn.into_iter().map_while(&mut dedup).collect())
}

/// One by one: a message that is recorded as handled makes way for the one behind it.
async fn one_by_one(
    connection: &mut MySqlConnection,
    (consumer, route): (&Consumer, &Route),
    messages: &[&Message],
) -> Result<Vec<Dedup>, sqlx::Error> {
    let mut dedups = Vec::with_capacity(messages.len());
    for message in messages {
        dedups.push(if must_go_behind(connection, consumer, route, message).await? {
            Dedup::OutOfTurn
        } else {
            note(connection, consumer, &[message]).await?.pop().unwrap_or(Dedup::Duplicate)
        });
    }
    Ok(dedups)
}

/// Looks for parked messages last: what is moved meanwhile goes there.
async fn fence(
    connection: &mut MySqlConnection,
    opening: &str,
    route: &Route,
    stored: &[&Stored],
) -> Result<Vec<bool>, sqlx::Error> {
    // In the order of the primary key, as all other transactions take these locks.
    let mut order: Vec<usize> = (0..stored.len()).collect();
    order.sort_unstable_by_key(|at| stored[*at].position);
    let (mut wait, mut opening) = (vec![false; stored.len()], opening);
    for some in order.chunks(MAX_ROWS) {
        let positions = some.iter().map(|at| stored[*at].position);
        let statements = format!("{}{}", std::mem::take(&mut opening), hot(route, positions));
        let mut rows: HashSet<(i64, Vec<u8>)> = HashSet::with_capacity(some.len());
        for row in sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(&mut *connection).await? {
            rows.insert((row.try_get_unchecked(0)?, row.try_get_unchecked(1)?));
        }
        for at in some {
            let Stored { position, message, .. } = stored[*at];
            wait[*at] = rows.contains(&(position.0, message.id.as_uuid().as_bytes().to_vec()));
        }
    }
    for at in order {
        wait[at] = wait[at] || is_parked(connection, route, stored[at]).await?;
    }
    Ok(wait)
}

/// The statement that locks messages of the hot table: each a range of the primary key, of one row.
/// MySQL locks nothing that is joined with a list in JSON.
fn hot(route: &Route, positions: impl Iterator<Item = Position>) -> String {
    format!(
        "select position, id from outbox_message force index (primary) where route = {} and position in ({}) for update",
        sql::literal(route.as_str()),
        sql::commas(positions.map(|position| position.0))
    )
}

/// A statement that locks messages, for the server to prepare when the tables are checked.
pub(crate) fn sample() -> String {
    hot(&Route::default(), [Position::START].into_iter())
}

/// Returns true if a message is in the hot table where it was read, in a transaction that is looked
/// at.
async fn is_hot(
    connection: &mut MySqlConnection,
    route: &Route,
    stored: &Stored,
) -> Result<bool, sqlx::Error> {
    let hot = sqlx::query(sql::FENCE_GUARDED)
        .bind(route.as_str().as_bytes())
        .bind(stored.position.0)
        .bind(&stored.message.id.as_uuid().as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    Ok(hot.is_some())
}

async fn is_parked(
    connection: &mut MySqlConnection,
    route: &Route,
    stored: &Stored,
) -> Result<bool, sqlx::Error> {
    let parked = sqlx::query(sql::FENCE_PARKED)
        .bind(route.as_str().as_bytes())
        .bind(stored.message.topic.as_str().as_bytes())
        .bind(stored.message.order_key().as_str().as_bytes())
        .bind(stored.position.0)
        .bind(&stored.message.id.as_uuid().as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    Ok(parked.is_some())
}

type NoteQuery<'q> = sqlx::query::Query<'q, sqlx::MySql, sqlx::mysql::MySqlArguments>;

/// Notes one message by a statement. Returns true if it was noted.
async fn note_one<'q>(
    connection: &mut MySqlConnection,
    statement: &'static str,
    consumer: &'q Consumer,
    message: &'q Message,
    conditions: impl FnOnce(NoteQuery<'q>) -> NoteQuery<'q>,
) -> Result<bool, sqlx::Error> {
    let call = Uuid::now_v7();
    let query = sqlx::query(statement)
        .bind(consumer.as_str().as_bytes())
        .bind(&message.id.as_uuid().as_bytes()[..])
        .bind(call.as_bytes().to_vec())
        .bind(message.topic.as_str().as_bytes())
        .bind(message.key.as_ref().map(|key| key.as_str().as_bytes()));
    let noted: MySqlQueryResult = conditions(query).execute(connection).await?;
    Ok(noted.rows_affected() > 0)
}

/// Notes messages, whatever waits.
async fn note(
    connection: &mut MySqlConnection,
    consumer: &Consumer,
    messages: &[&Message],
) -> Result<Vec<Dedup>, sqlx::Error> {
    match messages {
        [] => Ok(Vec::new()),
        [message] => {
            let is_new = note_one(connection, sql::DEDUPLICATE_ONE, consumer, message, |query| query).await?;
            Ok(vec![if is_new { Dedup::New } else { Dedup::Duplicate }])
        }
        _ => {
            let noted = note_together(connection, consumer, messages, None).await?;
            Ok(noted.unwrap_or_else(|| vec![Dedup::Duplicate; messages.len()]))
        }
    }
}

/// Notes messages, in one statement; a second one tells which, where some were noted before. None:
/// none was noted. `alone`: only where nothing waits on this route, in a transaction that is looked
/// at.
async fn note_together(
    connection: &mut MySqlConnection,
    consumer: &Consumer,
    messages: &[&Message],
    alone: Option<&[u8]>,
) -> Result<Option<Vec<Dedup>>, sqlx::Error> {
    // Sorted: two handlers of the same messages wait for each other in one order.
    let mut given: Vec<&Message> = messages.to_vec();
    given.sort_unstable_by_key(|message| message.id);
    given.dedup_by_key(|message| message.id);
    let call = Uuid::now_v7();
    let statement = if alone.is_some() { sql::DEDUPLICATE_TOGETHER } else { sql::DEDUPLICATE };
    let mut query = sqlx::query(statement)
        .bind(consumer.as_str().as_bytes())
        .bind(&call.as_bytes()[..])
        .bind(sql::handled(given.iter().copied()));
    if let Some(route) = alone {
        query = query.bind(route).bind(route);
    }
    let noted = query.execute(&mut *connection).await?.rows_affected();
    let mut new: HashSet<MessageId> = HashSet::new();
    if noted == 0 {
        return Ok(None);
    } else if noted == u64::try_from(given.len()).unwrap_or(u64::MAX) {
        new.extend(given.iter().map(|message| message.id));
    } else {
        let rows = sqlx::query(sql::DEDUPLICATE_NOTED)
            .bind(sql::ids(given.iter().map(|message| message.id)))
            .bind(consumer.as_str().as_bytes())
            .bind(&call.as_bytes()[..])
            .fetch_all(connection)
            .await?;
        for row in &rows {
            let id: &[u8] = row.try_get_unchecked(0)?;
            new.extend(Uuid::from_slice(id).ok().map(MessageId::from_uuid));
        }
    }
    // An id that is given twice is new the first time.
    let deduplication = |message: &&Message| {
        if new.remove(&message.id) { Dedup::New } else { Dedup::Duplicate }
    };
    Ok(Some(messages.iter().map(deduplication).collect()))
}

/// Returns true if others of its key wait for the consumer in front of a message that it has not
/// handled.
async fn must_go_behind(
    connection: &mut MySqlConnection,
    consumer: &Consumer,
    route: &Route,
    message: &Message,
) -> Result<bool, sqlx::Error> {
    let order_key = message.order_key();
    let (route, topic, key, consumer_name) = (
        route.as_str().as_bytes(),
        message.topic.as_str().as_bytes(),
        order_key.as_str().as_bytes(),
        consumer.as_str().as_bytes(),
    );
    let row = sqlx::query(sql::DEDUPLICATE_FIRST)
        .bind(route)
        .bind(topic)
        .bind(key)
        .bind(consumer_name)
        .bind(route)
        .bind(topic)
        .bind(key)
        .bind(consumer_name)
        .bind(route)
        .bind(topic)
        .bind(key)
        .fetch_one(&mut *connection)
        .await?;
    let first: Option<&[u8]> = row.try_get_unchecked(0)?;
    let is_held = row.try_get_unchecked::<i64, _>(1)? != 0;
    let waits = is_held || first.is_some_and(|first| first != message.id.as_uuid().as_bytes());
    Ok(waits && !is_handled(connection, consumer, message.id).await?)
}

/// Returns true if a consumer's handling of a message is noted.
pub(crate) async fn is_handled(
    connection: &mut MySqlConnection,
    consumer: &Consumer,
    id: MessageId,
) -> Result<bool, sqlx::Error> {
    let noted = sqlx::query(sql::IS_HANDLED)
        .bind(consumer.as_str().as_bytes())
        .bind(&id.as_uuid().as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    Ok(noted.is_some())
}
