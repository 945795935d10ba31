//! The server that a client talks to: routes each command to its handler.

use std::sync::Arc;

use bson::{Bson, Document, doc};

use crate::clock::Clock;
use crate::commands::{self, Command, Done};
use crate::cursors::{Cursor, Cursors};
use crate::engine::Engine;
use crate::fault::{Faults, Happens};
use crate::hello;
use crate::options::Options;
use crate::refusal::{Code, ILLEGAL_OPERATION, Refusal, WRITE_CONFLICT};
use crate::replies;
use crate::sessions::Sessions;
use crate::transaction;

/// Number of attempts of a write outside of a transaction that meets a conflict, as MongoDB retries
/// by itself.
const TRIES: usize = 20;

/// One start of the server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) options: Options,
    pub(crate) port: u16,
    pub(crate) engine: Engine,
    pub(crate) sessions: Sessions,
    pub(crate) cursors: Cursors,
    pub(crate) faults: Arc<Faults>,
    pub(crate) clock: Clock,
}

impl Server {
    /// Runs a command, unless a fault was injected for it.
    pub(crate) async fn handle(&self, command: &Command) -> Result<Document, Refusal> {
        if hello::is_hello(&command.name) {
            return Ok(hello::answer(&self.options, self.port, &command.spec));
        }
        match self.faults.next(&command.name) {
            None => self.run(command).await,
            Some(Happens::CloseBefore) => Err(Refusal::Hangup),
            Some(Happens::CloseAfter) => self.run(command).await.and(Err(Refusal::Hangup)),
            Some(Happens::Error { code: number, labels }) => {
                let code = Code { number, name: "Injected" };
                Err(Refusal::Error {
                    code,
                    message: format!("{} fails, as a test wants", command.name),
                    labels,
                })
            }
        }
    }

    /// Ends sessions and cursors that were open for too long.
    pub(crate) fn clean(&self) {
        for (session, number) in self.sessions.end_old(self.options.transaction_lifetime) {
            self.cursors.end(&session, Some(number));
        }
        self.cursors.end_idle(self.options.cursor_lifetime);
    }

    async fn run(&self, command: &Command) -> Result<Document, Refusal> {
        match command.name.as_str() {
            "ping" => return Ok(replies::ok()),
            "buildInfo" | "buildinfo" => return Ok(hello::build_info(&self.options)),
            "endSessions" | "killSessions" => return Ok(self.end_sessions(command)),
            "killCursors" => return Ok(self.kill_cursors(command)),
            _ => {}
        }
        match command.number {
            Some(_) if self.options.standalone => Err(Refusal::new(
                ILLEGAL_OPERATION,
                "Transaction numbers are only allowed on a replica set member or mongos",
            )),
            Some(number) if command.in_transaction => transaction::run(self, command, number).await,
            Some(number) if command.is_write() => transaction::once(self, command, number).await,
            _ if command.name == "getMore" => self.next_page(command).await,
            _ => self.alone(command).await,
        }
    }

    /// Runs a command that is a transaction of its own.
    pub(crate) async fn alone(&self, command: &Command) -> Result<Document, Refusal> {
        let mut tries = 1;
        loop {
            match self.once_alone(command).await {
                Err(Refusal::Error { code: WRITE_CONFLICT, .. }) if tries < TRIES => tries += 1,
                Err(refusal) => return Err(replies::of_refusal(refusal, &command.namespace(), false)),
                Ok(mut answer) => {
                    replies::check_concern(&mut answer, &command.spec);
                    return Ok(answer);
                }
            }
        }
    }

    async fn once_alone(&self, command: &Command) -> Result<Document, Refusal> {
        let mut connection = self.engine.connection().await?;
        transaction::limit(&connection, command, "session").await?;
        let done = commands::run(&mut connection, command, self.cursors.number()).await;
        if command.time_limit().is_some() {
            connection.batch("set session statement_timeout = 0").await?;
        }
        let Done { answer, cursor } = match done {
            Ok(done) => done,
            Err(refusal) => {
                if refusal != Refusal::Hangup {
                    self.engine.give_back(connection);
                }
                return Err(refusal);
            }
        };
        let pinned = match &cursor {
            Some(cursor) if cursor.pinned => Some(connection),
            _ => {
                self.engine.give_back(connection);
                None
            }
        };
        if let Some(next) = cursor {
            let cursor = Cursor::new(next.continuation, pinned, command.session.clone(), None);
            self.cursors.put(next.number, cursor);
        }
        Ok(answer)
    }

    async fn next_page(&self, command: &Command) -> Result<Document, Refusal> {
        let number = command.spec.get("getMore").and_then(commands::whole).unwrap_or_default();
        let cursor = self.cursors.take(number).filter(|cursor| cursor.transaction.is_none());
        let cursor = cursor.ok_or_else(|| transaction::not_found(number))?;
        let pinned = cursor.pinned.is_some();
        let mut connection = match cursor.pinned {
            Some(connection) => connection,
            None => self.engine.connection().await?,
        };
        // After an error the cursor is gone, as in MongoDB, and with it the connection that may
        // hold it.
        let done = commands::next_page(&mut connection, command, number, &cursor.continuation).await?;
        match done.cursor {
            Some(next) => {
                let pinned = if pinned {
                    Some(connection)
                } else {
                    self.engine.give_back(connection);
                    None
                };
                self.cursors.put(number, Cursor::new(next.continuation, pinned, cursor.session, None));
            }
            None => {
                if !pinned || connection.batch("close all").await.is_ok() {
                    self.engine.give_back(connection);
                }
            }
        }
        Ok(done.answer)
    }

    fn end_sessions(&self, command: &Command) -> Document {
        let sessions = command.spec.get_array(&command.name).ok();
        let sessions = sessions.into_iter().flatten().filter_map(Bson::as_document);
        for id in sessions.filter_map(commands::session_id) {
            self.cursors.end(&id, None);
            self.sessions.end(&id);
        }
        replies::ok()
    }

    fn kill_cursors(&self, command: &Command) -> Document {
        let cursors =
            command.spec.get_array("cursors").ok().into_iter().flatten().filter_map(commands::whole);
        let (killed, unknown): (Vec<i64>, Vec<i64>) =
            cursors.partition(|number| self.cursors.take(*number).is_some());
        doc! {
            "cursorsKilled": killed,
            "cursorsNotFound": unknown,
            "cursorsAlive": [],
            "cursorsUnknown": [],
            "ok": 1.0,
        }
    }
}
