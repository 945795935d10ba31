//! Transactions, and retryable writes: the promises of a session's number.

use std::time::Instant;

use bson::Document;

use crate::commands::{self, Command};
use crate::cursors::Cursor;
use crate::engine::Connection;
use crate::refusal::{
    BAD_VALUE, CURSOR_NOT_FOUND, NO_SUCH_TRANSACTION, Refusal, TRANSACTION_COMMITTED, TRANSACTION_TOO_OLD,
};
use crate::replies;
use crate::server::Server;
use crate::sessions::{Session, State};

/// A transaction sees one snapshot, and one that meets another's lock gives up: MongoDB does at
/// once, the engine after this time.
const BEGIN: &str = "begin isolation level repeatable read; set local lock_timeout = '20ms'";
const COMMITS: &str = "insert into outbox_front.done (session, number) values ($1, $2) \
    on conflict (session) do update set number = excluded.number, answer = null, at = now()";
const DONE: &str = "select answer from outbox_front.done where session = $1 and number = $2";

/// Runs a command of a transaction.
pub(crate) async fn run(server: &Server, command: &Command, number: i64) -> Result<Document, Refusal> {
    let session = server.sessions.of(&command.session);
    let mut session = session.lock().await;
    let session = &mut *session;
    if number < session.number {
        return Err(too_old(number, session.number));
    }
    match command.name.as_str() {
        "commitTransaction" => commit(server, command, session, number).await,
        "abortTransaction" => abort(server, command, session, number).await,
        _ => {
            if command.starts {
                start(server, command, session, number).await?;
            }
            let done = statement(server, command, session, number).await;
            if done.as_ref().map_or(true, replies::failed) {
                // As in MongoDB: any error aborts the transaction.
                end(server, command, session, State::Aborted).await;
            }
            done.map_err(|refusal| replies::of_refusal(refusal, &command.namespace(), true))
        }
    }
}

/// Runs a write once, and returns its first answer however often it is requested.
pub(crate) async fn once(server: &Server, command: &Command, number: i64) -> Result<Document, Refusal> {
    let session = server.sessions.of(&command.session);
    let mut session = session.lock().await;
    if number < session.number {
        return Err(too_old(number, session.number));
    }
    if number > session.number {
        // An older transaction can't be continued: it is rolled back.
        end(server, command, &mut session, State::Nothing).await;
        session.number = number;
    }
    let mut connection = server.engine.connection().await?;
    let before = connection.row(DONE, &[&command.session, &number]).await?;
    let before: Option<Vec<u8>> = before.and_then(|row| row.try_get(0).ok());
    if let Some(answer) = before {
        server.engine.give_back(connection);
        let answer =
            crate::wire::parse(&answer).map_err(|error| Refusal::new(BAD_VALUE, error.to_string()))?;
        return replies::of_write(answer, &command.namespace(), false);
    }
    server.engine.give_back(connection);
    server.alone(command).await
}

async fn start(
    server: &Server,
    command: &Command,
    session: &mut Session,
    number: i64,
) -> Result<(), Refusal> {
    if number == session.number {
        let message = format!("transaction {number} was started before: a new one has a higher number");
        return Err(Refusal::new(TRANSACTION_TOO_OLD, message));
    }
    // A session has one transaction: a new one ends the one before.
    end(server, command, session, State::Nothing).await;
    let connection = Box::new(server.engine.connection().await?);
    connection.batch(BEGIN).await?;
    session.number = number;
    session.state = State::Open { connection, since: Instant::now() };
    Ok(())
}

async fn statement(
    server: &Server,
    command: &Command,
    session: &mut Session,
    number: i64,
) -> Result<Document, Refusal> {
    let State::Open { connection, .. } = &mut session.state else { return Err(none(session, number)) };
    if number != session.number {
        return Err(none(session, number));
    }
    limit(connection, command, "local").await?;
    let done = if command.name == "getMore" {
        let cursor = command.spec.get("getMore").and_then(commands::whole).unwrap_or_default();
        let open = server.cursors.take(cursor).filter(|open| open.transaction == Some(number));
        let open = open.ok_or_else(|| not_found(cursor))?;
        commands::next_page(connection, command, cursor, &open.continuation).await?
    } else {
        commands::run(connection, command, server.cursors.number()).await?
    };
    if command.time_limit().is_some() {
        connection.batch("set local statement_timeout = 0").await?;
    }
    if let Some(next) = done.cursor {
        let cursor = Cursor::new(next.continuation, None, command.session.clone(), Some(number));
        server.cursors.put(next.number, cursor);
    }
    Ok(done.answer)
}

async fn commit(
    server: &Server,
    command: &Command,
    session: &mut Session,
    number: i64,
) -> Result<Document, Refusal> {
    if number > session.number {
        // Not begun here since the last start: the engine knows earlier commits.
        session.state = State::Nothing;
    }
    match &mut session.state {
        State::Committed => {}
        State::Aborted => return Err(none(session, number)),
        State::Nothing => {
            let mut connection = server.engine.connection().await?;
            let known = connection.row(DONE, &[&command.session, &number]).await?.is_some();
            server.engine.give_back(connection);
            if !known {
                return Err(none(session, number));
            }
        }
        State::Open { connection, .. } => {
            let committed = async {
                connection.row(COMMITS, &[&command.session, &number]).await?;
                connection.batch("commit").await
            };
            let committed = committed.await;
            let state = if committed.is_ok() { State::Committed } else { State::Aborted };
            end(server, command, session, state).await;
            committed.map_err(Refusal::in_transaction)?;
        }
    }
    let mut answer = replies::ok();
    replies::check_concern(&mut answer, &command.spec);
    Ok(answer)
}

async fn abort(
    server: &Server,
    command: &Command,
    session: &mut Session,
    number: i64,
) -> Result<Document, Refusal> {
    match &session.state {
        State::Open { .. } if number == session.number => {
            end(server, command, session, State::Aborted).await;
            Ok(replies::ok())
        }
        State::Committed if number == session.number => {
            Err(Refusal::new(TRANSACTION_COMMITTED, format!("transaction {number} has been committed")))
        }
        _ => Err(none(session, number)),
    }
}

/// Ends the transaction that may be open, and rolls it back unless it has been committed. Its locks
/// are gone when this returns.
async fn end(server: &Server, command: &Command, session: &mut Session, state: State) {
    let committed = matches!(state, State::Committed);
    let State::Open { connection, .. } = std::mem::replace(&mut session.state, state) else { return };
    server.cursors.end(&command.session, Some(session.number));
    // A connection that can't even roll back is closed, which has the same effect.
    if committed || connection.batch("rollback").await.is_ok() {
        server.engine.give_back(*connection);
    }
}

/// Sets the engine's time limit for a command, if it has one.
pub(crate) async fn limit(connection: &Connection, command: &Command, scope: &str) -> Result<(), Refusal> {
    match command.time_limit() {
        Some(limit) => {
            connection.batch(&format!("set {scope} statement_timeout = {}", limit.as_millis())).await
        }
        None => Ok(()),
    }
}

pub(crate) fn not_found(cursor: i64) -> Refusal {
    Refusal::new(CURSOR_NOT_FOUND, format!("cursor id {cursor} not found"))
}

fn none(session: &Session, number: i64) -> Refusal {
    let known = match &session.state {
        _ if number != session.number => "it is not known",
        State::Aborted => "it has been aborted",
        State::Committed => "it has been committed",
        State::Nothing | State::Open { .. } => "it is not known",
    };
    Refusal::transient(NO_SUCH_TRANSACTION, format!("no transaction {number} is open: {known}"))
}

fn too_old(number: i64, newest: i64) -> Refusal {
    Refusal::new(TRANSACTION_TOO_OLD, format!("number {number} is older than the session's newest, {newest}"))
}
