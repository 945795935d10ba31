//! The writing side: the user's transactions.

use std::time::Duration;

use outbox_contract::backend::{Blame, Committed, Dedup, Finished, Rest, Stored};
use outbox_contract::{
    AppendError, Consumer, Message, MessageId, Outgoing, Route, StoreError, Transactional, async_trait,
};
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, MySql, Row, SqlSafeStr};

use crate::cluster::CATCH_UP;
use crate::config::{MySqlOptions, seconds};
use crate::deduplicate::{Guarding, Inbox, is_handled};
use crate::error::{
    is_conflict, is_sound, is_surely_not_committed, lacks_savepoint, of_beginning, store_error,
};
use crate::line::run;
use crate::store::MySqlStore;
use crate::stripes::{REQUIRE_TRANSACTION, REQUIRE_USUAL_TRANSACTION};
use crate::{append, blame, stripes};

/// Number of times that a transaction is begun again on another connection of the pool, when one of
/// them turns out to be broken: nothing has happened yet. A server that was restarted has broken
/// them all.
const MAX_BROKEN: u32 = 100;

/// Gives a connection back the timeouts, and the autocommit, that it had before `begin`. On one
/// that is as it was it changes nothing.
macro_rules! restore {
    () => {
        "set session innodb_lock_wait_timeout = cast(coalesce(@outbox_locks, @@innodb_lock_wait_timeout) as unsigned), \
         session wait_timeout = cast(coalesce(@outbox_idle, @@wait_timeout) as unsigned), \
         session autocommit = cast(coalesce(@outbox_autocommit, @@autocommit + 0) as unsigned), \
         @outbox_locks = null, @outbox_idle = null, @outbox_autocommit = null, @outbox_looks = null, @outbox_begun = null"
    };
}

const RESTORE: &str = restore!();

/// Statements for a connection that comes back to its pool, or whose transaction is known to be
/// over.
///
/// As all that ends a transaction here it says that none is begun with it, and that the session
/// goes on: `completion_type` is the user's.
pub(crate) const ROLL_BACK_AND_RESTORE: &str = concat!("rollback and no chain no release; ", restore!());

const COMMIT: &str = "commit and no chain no release";

/// Begins with READ COMMITTED, whatever the connection's own level is.
const BEGIN: &str =
    "set transaction isolation level read committed; start transaction; savepoint outbox_begun";

/// The savepoint at the beginning of a transaction of a user's. Where it is gone at the end, so is
/// the transaction: the server has rolled it back, or a statement of the user's has ended it.
pub(crate) const BEGUN: &str = "outbox_begun";

/// Commits the transaction that was begun with the savepoint, or is refused, and restores the
/// connection.
const COMMIT_BEGUN_AND_RESTORE: &str =
    concat!("release savepoint outbox_begun; commit and no chain no release; ", restore!());

/// The same, and begins the next one, whose isolation level is that of the one before.
const COMMIT_BEGUN_AND_BEGIN: &str =
    "release savepoint outbox_begun; commit and chain no release; savepoint outbox_begun";

/// Switches autocommit off, in a transaction that [`begin`](MySqlStore::begin) has begun.
///
/// What a handler does in spite of a deadlock is then done in a transaction that the server begins
/// by itself, and is rolled back in the end for want of the savepoint. Else the server would commit
/// it statement by statement, and the handler would do it again. (A session that is READ ONLY, in
/// which this transaction is READ WRITE, does not help: the first statement behind a deadlock is
/// READ WRITE still. Seen with MySQL 9.7, MariaDB 10.11 and 11.8.)
///
/// Only an inbox's transactions: these are surely ended by [`commit`](MySqlStore::commit). With the
/// driver's own COMMIT, a message that is appended behind a deadlock would be committed alone.
pub(crate) const GUARD: &str = "set session autocommit = if(@outbox_begun is null, @@autocommit + 0, 0), \
     @outbox_looks = if(@outbox_begun is null, @outbox_looks, 1)";

/// Begins with timeouts for this transaction and with autocommit set, and remembers what they were:
/// the connection is the user's.
///
/// An open transaction is rolled back first, since it has no owner any more and no other can be
/// described in it: of a `begin` of the driver's that was dropped half way, or of a read where
/// autocommit is off. `autocommit` is remembered as a number: else MariaDB's `coalesce` makes the
/// word `ON` of it, which would be put back as 0.
///
/// On a node of a cluster, what was committed on another one is there when the transaction begins.
/// A node that lags may refuse to wait for that: then nothing was set.
///
/// There, autocommit is off, as in transactions of the store's own
/// ([`in_transaction`](crate::line::in_transaction)) and for the same reason: what the user does in
/// a transaction that was lost unnoticed is not committed. But only if `is_tidy`: on a connection
/// that is never restored it would stay so.
fn begin_statement(options: &MySqlOptions, is_node: bool, is_tidy: bool) -> String {
    let catch_up = if is_node { CATCH_UP } else { "do 0" };
    let (autocommit, looks) = if is_node && is_tidy { (0, "1") } else { (1, "null") };
    format!(
        "rollback and no chain no release; {catch_up}; set @outbox_locks = coalesce(@outbox_locks, @@innodb_lock_wait_timeout), @outbox_idle = coalesce(@outbox_idle, @@wait_timeout), \
         @outbox_autocommit = coalesce(@outbox_autocommit, @@autocommit + 0), \
         session innodb_lock_wait_timeout = {}, session wait_timeout = {}, session autocommit = {autocommit}, \
         @outbox_looks = {looks}, @outbox_begun = 1; {BEGIN}",
        seconds(options.lock_timeout),
        seconds(options.transaction_idle_timeout)
    )
}

impl MySqlStore {
    /// Commits, and does something behind it, in one round trip (`at_once`), or in several.
    ///
    /// A COMMIT of a transaction that the server has rolled back before is answered as if all were
    /// well. So something goes in front of it that is refused where that transaction is gone: then
    /// the COMMIT is not run.
    ///
    /// On a node of a cluster COMMIT goes on its own: one that fails is not told where something
    /// stands behind it in the same round trip, and a transaction that is lost between what stands
    /// in front of it and COMMIT itself would be. (MariaDB 10.11: of 30 pairs of conflicting
    /// commits, 7 to 11 were both answered as done.)
    async fn end(&self, connection: &mut MySqlConnection, at_once: &str, behind: &str) -> Committed {
        let is_node = match self.kind().last() {
            Some(is_node) => is_node,
            None => self.kind().learn(&mut *connection).await.unwrap_or(true),
        };
        let ended = if is_node {
            if let Err(error) = require_begun(connection).await {
                let _ = run(connection, ROLL_BACK_AND_RESTORE).await;
                return Committed::No(store_error("commit", error));
            }
            let committed = run(connection, COMMIT).await;
            if committed.is_ok() {
                // Where it fails, the connection is broken, or its next user finds the
                // transaction's timeouts; the commit has succeeded.
                let _ = run(connection, behind).await;
            }
            committed
        } else {
            match run(connection, at_once).await {
                Err(error) if lacks_savepoint(&error, BEGUN) => {
                    self.end_foreign(connection, behind, error).await
                }
                ended => ended,
            }
        };
        match ended {
            Ok(()) => {
                self.bell().transaction_committed();
                Committed::Yes
            }
            Err(error) if is_surely_not_committed(&error) => {
                // Not every pool does so when the connection comes back; where it fails, the
                // connection is broken.
                let _ = run(connection, ROLL_BACK_AND_RESTORE).await;
                Committed::No(store_error("commit", error))
            }
            Err(error) => Committed::Unknown(store_error("commit", error)),
        }
    }

    /// Commits a transaction without the savepoint, if it is one that the user has begun. One of
    /// `begin` is lost.
    async fn end_foreign(
        &self,
        connection: &mut MySqlConnection,
        behind: &str,
        lost: sqlx::Error,
    ) -> Result<(), sqlx::Error> {
        // On a connection that is never restored, another one's transaction may have said so.
        if self.is_tidy() {
            let row = sqlx::raw_sql("select @outbox_begun is null").fetch_one(&mut *connection).await?;
            if row.try_get_unchecked::<i64, _>(0)? == 0 {
                return Err(lost);
            }
        }
        run(connection, format!("{REQUIRE_USUAL_TRANSACTION}; {COMMIT}; {behind}")).await
    }

    fn may_be_node(&self) -> bool {
        self.kind().last() != Some(false)
    }

    fn guarding(&self) -> Guarding {
        match (self.may_be_node(), self.is_tidy()) {
            (true, _) => Guarding::Node,
            (false, true) => Guarding::Looked,
            (false, false) => Guarding::Asked,
        }
    }

    /// Sees to it that the stripes of these messages' routes have their rows, before a user's
    /// transaction has locked anything of them.
    async fn know_routes(&self, messages: &[Outgoing]) -> Result<(), StoreError> {
        for route in self.routes().unknown(messages.iter().map(|outgoing| &outgoing.route)) {
            let work =
                async |connection: &mut MySqlConnection| stripes::make(connection, route.as_str()).await;
            self.on("append", &self.lines().looking, work).await?;
            self.routes().know(route);
        }
        Ok(())
    }
}

/// Refuses a transaction of a node that is not the one that was begun.
async fn require_begun(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let row = sqlx::raw_sql("select @outbox_looks is null").fetch_one(&mut *connection).await?;
    if row.try_get_unchecked::<i64, _>(0)? != 0 {
        return run(connection, REQUIRE_TRANSACTION).await;
    }
    run(connection, format!("release savepoint {BEGUN}")).await
}

/// Finishes a `begin` whose caller is gone. Without a runtime it can't be finished.
fn finish(rest: Rest) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(rest);
    }
}

#[async_trait]
impl Transactional for MySqlStore {
    type Tx<'t> = sqlx::Transaction<'t, MySql>;
    type Connection = sqlx::MySqlConnection;

    fn connection<'c>(tx: &'c mut Self::Tx<'_>) -> &'c mut Self::Connection {
        tx
    }

    /// Begins with READ COMMITTED, and with `lock_timeout` and `transaction_idle_timeout` set until
    /// it is committed or rolled back.
    async fn begin(&self) -> Result<Self::Tx<'static>, StoreError> {
        let most = self.pool().size().min(MAX_BROKEN);
        let mut broken = 0;
        loop {
            let begun = async {
                let is_node = match self.kind().fresh() {
                    Some(is_node) => is_node,
                    None => self.kind().learn(self.pool()).await?,
                };
                let statement =
                    AssertSqlSafe(begin_statement(self.options(), is_node, self.is_tidy())).into_sql_str();
                let pool = self.pool().clone();
                // Dropped half way, the driver would give the connection back with a transaction
                // open that it knows nothing of.
                Finished::new(async move { pool.begin_with(statement).await }, finish).await
            };
            match begun.await {
                Ok(tx) => return Ok(tx),
                Err(sqlx::Error::Io(_)) if broken < most => broken += 1,
                Err(error) if !is_sound(&error) && error.as_database_error().is_some() && broken < most => {
                    broken += 1;
                }
                Err(error) => return Err(store_error("begin", of_beginning(error))),
            }
            self.kind().forget();
        }
    }

    /// The driver's later end of the transaction that it takes to be open does nothing.
    async fn commit(&self, mut tx: Self::Tx<'static>) -> Committed {
        self.end(&mut tx, COMMIT_BEGUN_AND_RESTORE, RESTORE).await
    }

    /// The timeouts stay as they are: they are restored when it is the last.
    async fn commit_and_begin(&self, mut tx: Self::Tx<'static>) -> (Committed, Option<Self::Tx<'static>>) {
        if self.may_be_node() {
            // To catch up with a cluster may take long, and is no part of the commit.
            return (self.end(&mut tx, COMMIT_BEGUN_AND_RESTORE, RESTORE).await, None);
        }
        // To the driver it is the same transaction all along.
        match self.end(&mut tx, COMMIT_BEGUN_AND_BEGIN, BEGIN).await {
            Committed::Yes => (Committed::Yes, Some(tx)),
            failed => (failed, None),
        }
    }

    async fn rollback(&self, mut tx: Self::Tx<'static>) -> Result<(), StoreError> {
        let mut done = run(&mut tx, ROLL_BACK_AND_RESTORE).await;
        if done.as_ref().is_err_and(is_conflict) {
            // A node of a cluster has rolled it back before, says so, and has done nothing of this.
            done = run(&mut tx, ROLL_BACK_AND_RESTORE).await;
        }
        match done {
            // Whatever broke the connection has ended the transaction too.
            Err(error) if is_sound(&error) => Err(store_error("rollback", error)),
            _ => Ok(()),
        }
    }

    async fn append(&self, tx: &mut Self::Tx<'_>, messages: &[Outgoing]) -> Result<(), AppendError> {
        for outgoing in messages {
            outgoing.message.validate()?;
        }
        if messages.is_empty() {
            return Ok(());
        }
        self.know_routes(messages).await?;
        append::append(tx, messages, self.may_be_node()).await?;
        self.bell().appended();
        Ok(())
    }

    async fn fence(
        &self,
        tx: &mut Self::Tx<'_>,
        route: &Route,
        stored: &[&Stored],
    ) -> Result<Vec<bool>, StoreError> {
        if stored.is_empty() {
            return Ok(Vec::new());
        }
        let inbox = Inbox { connection: &mut *tx, guarding: self.guarding(), fenced: self.fenced() };
        inbox.fence(route, stored).await.map_err(|error| store_error("fence", error))
    }

    async fn deduplicate(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &Consumer,
        messages: &[&Message],
    ) -> Result<Vec<Dedup>, StoreError> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let inbox = Inbox { connection: &mut *tx, guarding: self.guarding(), fenced: self.fenced() };
        inbox.deduplicate(consumer, messages).await.map_err(|error| store_error("deduplicate", error))
    }

    async fn is_handled(&self, consumer: &Consumer, id: MessageId) -> Result<bool, StoreError> {
        let work = async |connection: &mut MySqlConnection| is_handled(connection, consumer, id).await;
        self.on("is_handled", &self.lines().looking, work).await
    }

    fn blame(&self, error: &(dyn std::error::Error + 'static)) -> Blame {
        error.downcast_ref::<sqlx::Error>().map_or(Blame::Handler, blame::blame)
    }

    fn max_idle(&self) -> Option<Duration> {
        Some(self.options().transaction_idle_timeout)
    }

    fn max_transactions(&self) -> Option<usize> {
        usize::try_from(self.pool().options().get_max_connections()).ok()
    }
}
