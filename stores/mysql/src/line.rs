//! A connection of the store's own, for one kind of work.
//!
//! Not a pool: each kind of work has one connection, so that load can't starve heartbeats, nothing
//! has to be asked of a connection before it is used, and their number is known. Whoever has the
//! line has it alone; others wait their turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sqlx::mysql::{MySqlConnection, MySqlPool};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use crate::cluster::{self, Kind};
use crate::config::{MySqlOptions, seconds};
use crate::error::{is_conflict, is_elsewhere, is_sound, of_beginning};

/// Maximum idle time of a line that is in no transaction, in seconds: the most that the server
/// takes on every system, and more, is a year.
const AT_EASE: u32 = 31_536_000;

/// More rows than there are: the default of `sql_select_limit`.
const NO_LIMIT: u64 = u64::MAX;

/// The savepoint at the beginning of a transaction of the store's own. Where it is gone at the end,
/// so is the transaction.
pub(crate) const LINE: &str = "outbox_line";

/// Time limit for the answer of a connection that was quiet, before it is used again.
const ANSWERS: Duration = Duration::from_secs(1);

/// For how long connections of the store's own are used.
#[derive(Clone, Copy)]
struct Limits {
    /// One that was quiet for longer is asked first whether it is there: networks forget
    /// connections without a word, and whoever writes to such a one waits for as long as TCP tries.
    quiet: Duration,
    /// One that is older is opened anew: the name of the server may stand for another one since.
    age: Duration,
}

const LIMITS: Limits = Limits { quiet: Duration::from_secs(30), age: Duration::from_secs(30 * 60) };

/// Treatment of a connection that was kept.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Used,
    Asked,
    Closed,
}

impl Limits {
    /// Pure.
    fn fate(self, quiet: Duration, age: Duration, is_of_this_generation: bool) -> Fate {
        if !is_of_this_generation || age > self.age {
            Fate::Closed
        } else if quiet > self.quiet {
            Fate::Asked
        } else {
            Fate::Used
        }
    }
}

/// Recipe for the store's own connections.
#[derive(Clone)]
pub(crate) struct Way {
    /// The user's, who may give it another password or address: it is asked for them each time.
    pool: MySqlPool,
    connect_timeout: Duration,
    /// Settings of a connection before it is used.
    setup: Arc<str>,
    limits: Limits,
    /// Number of times that a server said that writes go elsewhere, or was gone. Those that only
    /// read hear nothing of it, so all that were opened before are opened anew: some with one
    /// server and some with another would be told of messages that others deny.
    generation: Arc<AtomicU64>,
    kind: Arc<Kind>,
    /// True if a node of a cluster is to catch up with the others before it answers.
    catches_up: bool,
}

impl Way {
    pub(crate) fn new(pool: MySqlPool, options: &MySqlOptions) -> Self {
        // Of a transaction. Whoever waits for its locks waits for no longer than `lock_timeout`: it
        // is over by then, or at work.
        let idle = options.lock_timeout.min(options.transaction_idle_timeout);
        // READ COMMITTED: under the server's default, statements that look for rows also lock the
        // gaps between them, and whoever appends waits for the relay. A line may be idle for long,
        // and is not closed for it. `default` would be what the server was set to. Without a bound
        // of memory a list of positions is read as ranges, however long it is.
        let setup = format!(
            "set session transaction isolation level read committed; \
             set session sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1, completion_type = 0, sql_safe_updates = 0, \
             sql_select_limit = {NO_LIMIT}, wait_timeout = {AT_EASE}, \
             net_read_timeout = {idle}, @outbox_idle = {idle}, @outbox_locks = {locks}, @outbox_looks = 1, innodb_lock_wait_timeout = {locks}, lock_wait_timeout = {locks} \
             /*!80000 , max_execution_time = {milliseconds}, range_optimizer_max_mem_size = 0 */ /*M!100600 , max_statement_time = {seconds} */",
            idle = seconds(idle),
            locks = seconds(options.lock_timeout),
            milliseconds = seconds(options.statement_timeout) * 1_000,
            seconds = seconds(options.statement_timeout),
        );
        Self {
            pool,
            connect_timeout: options.connect_timeout,
            setup: setup.into(),
            limits: LIMITS,
            generation: Arc::default(),
            kind: Arc::default(),
            catches_up: true,
        }
    }

    /// The same, for questions whose answers may be old: of a node of a cluster, what it has.
    pub(crate) fn without_catching_up(self) -> Self {
        Self { catches_up: false, ..self }
    }

    /// Opens a connection, within a time.
    pub(crate) async fn open(&self) -> Result<MySqlConnection, sqlx::Error> {
        let options = self.pool.connect_options().as_ref().clone().disable_statement_logging();
        let opening = async {
            let mut connection = MySqlConnection::connect_with(&options).await?;
            run(&mut connection, self.setup.to_string()).await?;
            if self.kind.learn(&mut connection).await? && self.catches_up {
                run(&mut connection, cluster::SETUP).await?;
                // It is the default, and a user may have no right to it.
                let _ = run(&mut connection, cluster::ON_ALL_NODES).await;
            }
            Ok(connection)
        };
        match timeout(self.connect_timeout, opening).await {
            Ok(connected) => connected,
            Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
        }
    }

    /// Knowledge of the server.
    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// A connection of this generation was told that writes go elsewhere, or broke. That may happen
    /// to many at once.
    fn leave(&self, generation: u64) {
        self.generation.fetch_max(generation.saturating_add(1), Ordering::Relaxed);
    }
}

/// A connection, opened when it is first needed, and again after it broke, grew old, or was found
/// to be with a server that takes no writes.
pub(crate) struct Line {
    way: Way,
    place: Mutex<Option<Kept>>,
}

/// A connection that is not in use.
struct Kept {
    connection: MySqlConnection,
    since: Since,
    used: Instant,
}

/// Age of a connection: time of its opening, and its generation.
#[derive(Clone, Copy)]
struct Since {
    opened: Instant,
    generation: u64,
}

/// The line, held. If it is dropped before it is finished (a cancelled call), the connection is
/// closed: its state is unknown.
pub(crate) struct Held<'l> {
    way: &'l Way,
    place: MutexGuard<'l, Option<Kept>>,
    since: Since,
    /// The connection.
    pub(crate) connection: MySqlConnection,
}

impl Line {
    pub(crate) fn new(way: Way) -> Self {
        Self { way, place: Mutex::new(None) }
    }

    /// Waits for the line, and for its connection.
    pub(crate) async fn hold(&self) -> Result<Held<'_>, sqlx::Error> {
        let (way, mut place) = (&self.way, self.place.lock().await);
        if let Some((connection, since)) = self.kept(place.take()).await {
            return Ok(Held { way, place, since, connection });
        }
        let since = Since { opened: Instant::now(), generation: way.generation() };
        Ok(Held { way, place, since, connection: way.open().await? })
    }

    /// The connection that was kept, if it may be used again.
    async fn kept(&self, kept: Option<Kept>) -> Option<(MySqlConnection, Since)> {
        let Kept { mut connection, since, used } = kept?;
        let is_of_this = since.generation == self.way.generation();
        match self.way.limits.fate(used.elapsed(), since.opened.elapsed(), is_of_this) {
            Fate::Used => Some((connection, since)),
            Fate::Asked => {
                let answered = timeout(ANSWERS, connection.ping()).await;
                matches!(answered, Ok(Ok(()))).then_some((connection, since))
            }
            Fate::Closed => {
                // The server need not receive it.
                let _ = timeout(ANSWERS, connection.close()).await;
                None
            }
        }
    }
}

impl Held<'_> {
    /// Gives the line back with what came of the work. A connection that broke is not kept, nor any
    /// that is with a server that takes no writes.
    pub(crate) fn finish<T>(mut self, done: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        match &done {
            Err(error) if is_elsewhere(error) => self.way.leave(self.since.generation),
            Err(error) if !is_sound(error) => {}
            _ => {
                *self.place =
                    Some(Kept { connection: self.connection, since: self.since, used: Instant::now() });
            }
        }
        done
    }
}

/// Runs statements without values, in one round trip.
pub(crate) async fn run(
    connection: &mut MySqlConnection,
    statements: impl Into<String>,
) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statements.into())).execute(connection).await.map(|_| ())
}

/// Runs work in a transaction of the store's own, and ends the transaction with what came of the
/// work.
///
/// The server closes a connection that is quiet for too long in it: a relay that is stopped, or cut
/// off without a word, would hold its locks for as long as TCP takes to notice, and every other one
/// waits. The bound is set in the round trip of BEGIN, and put back in one of its own.
pub(crate) async fn in_transaction<T>(
    connection: &mut MySqlConnection,
    work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    within(connection, "start transaction", work).await
}

/// Runs work that only reads, all of it in one snapshot.
pub(crate) async fn in_snapshot<T>(
    connection: &mut MySqlConnection,
    work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    const BEGIN: &str = "set transaction isolation level repeatable read; start transaction read only";
    within(connection, BEGIN, work).await
}

async fn within<T>(
    connection: &mut MySqlConnection,
    begin: &str,
    work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    // With autocommit off, what follows a transaction that was lost is begun anew, and rolled back
    // in the end for want of the savepoint. Else it would be committed statement by statement: a
    // node of a cluster does not tell of an abort that meets it while it prepares a statement (2 of
    // 482 in a trial with MariaDB 10.11), and goes on: relays with new connections owned a bucket
    // twice in 3 of 4 runs.
    let begun = run(
        connection,
        format!("set session wait_timeout = @outbox_idle, autocommit = 0; {begin}; savepoint {LINE}"),
    )
    .await
    .map_err(of_beginning);
    let done = match begun {
        Ok(()) => work(connection).await,
        Err(error) => Err(error),
    };
    // Each on its own: such a node also does not report a failed COMMIT if something stands behind
    // it in the same round trip, or that there was nothing left to commit because the transaction
    // was lost before it.
    let ended = match done {
        Ok(value) => match run(connection, format!("release savepoint {LINE}")).await {
            Ok(()) => run(connection, "commit").await.map(|()| value),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    let at_ease = format!("set session wait_timeout = {AT_EASE}, autocommit = 1");
    let mut ready = match &ended {
        Ok(_) => run(connection, at_ease.clone()).await,
        Err(_) => run(connection, format!("rollback; {at_ease}")).await,
    };
    if ready.as_ref().is_err_and(is_conflict) {
        // A node of a cluster has rolled it back meanwhile, says so, and has done nothing else.
        ready = run(connection, format!("rollback; {at_ease}")).await;
    }
    if ready.is_err() {
        // It must not be used again for single statements. Whoever has it next finds that out; what
        // came of this work stays what it is.
        let _ = run(connection, "kill connection_id()").await;
    }
    ended
}

#[cfg(test)]
mod tests {
    use outbox_servers::{MariaDb, MySql, OrSkip, Proxy};
    use sqlx::Row;

    use super::*;
    use crate::MySqlStore;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_connection_that_was_quiet_is_asked_and_one_that_is_old_or_elsewhere_is_closed() {
        assert_eq!(LIMITS.fate(30 * SECOND, 1_800 * SECOND, true), Fate::Used);
        assert_eq!(LIMITS.fate(31 * SECOND, 1_800 * SECOND, true), Fate::Asked);
        assert_eq!(LIMITS.fate(Duration::ZERO, 1_801 * SECOND, true), Fate::Closed);
        assert_eq!(LIMITS.fate(Duration::ZERO, Duration::ZERO, false), Fate::Closed);
    }

    #[tokio::test]
    async fn a_connection_that_the_network_has_forgotten_is_found_out_before_it_is_used() {
        for wish in [MySql::newest(), MariaDb::newest()] {
            let Some(server) = wish.shared().or_skip() else { continue };
            let proxy = Proxy::to(&server.url());
            let pool = MySqlStore::pool_options().connect_lazy(&proxy.url(&server.url())).unwrap();
            let way = Way::new(pool, &MySqlOptions::default());
            let limits = Limits { quiet: Duration::ZERO, ..LIMITS };
            let line = Line::new(Way { limits, ..way });
            line.hold().await.unwrap().finish(Ok(())).unwrap();
            let came = proxy.came();
            let mut held = line.hold().await.unwrap();
            assert_eq!(proxy.came(), came, "it answers");
            proxy.swallow();
            // Statements sent from now on are lost. Too short a wait would only hide a mistake.
            assert!(timeout(SECOND / 4, run(&mut held.connection, "do 1")).await.is_err());
            held.finish(Ok(())).unwrap();
            proxy.pass();
            let mut held = timeout(60 * SECOND, line.hold()).await.unwrap().unwrap();
            assert_eq!(proxy.came(), came + 1, "it was opened anew");
            timeout(60 * SECOND, run(&mut held.connection, "do 1")).await.unwrap().unwrap();
        }
    }

    /// As a node of a cluster that aborts a transaction without telling its client.
    #[tokio::test]
    async fn what_comes_behind_a_transaction_that_was_lost_is_not_committed() {
        for wish in [MySql::newest(), MariaDb::newest()] {
            let Some(server) = wish.shared().or_skip() else { continue };
            let pool = MySqlStore::pool_options().connect_lazy(&server.url()).unwrap();
            let line = Line::new(Way::new(pool, &MySqlOptions::default()));
            let mut held = line.hold().await.unwrap();
            let connection = &mut held.connection;
            run(connection, "create temporary table lost (number int)").await.unwrap();
            let lost = async |connection: &mut MySqlConnection| {
                run(connection, "insert into lost values (1)").await?;
                run(connection, "rollback").await?;
                run(connection, "insert into lost values (2)").await
            };
            let refused = in_transaction(connection, lost).await.unwrap_err();
            assert!(is_conflict(&refused), "{refused}");
            let fails = async |connection: &mut MySqlConnection| {
                run(connection, "select 1 from nowhere.at_all").await
            };
            in_transaction(connection, fails).await.unwrap_err();
            let reads = async |connection: &mut MySqlConnection| run(connection, "select * from lost").await;
            in_snapshot(connection, reads).await.unwrap();
            // It is ready for single statements again.
            let is_as_it_was =
                format!("select count(*) + (@@autocommit = 0) + (@@wait_timeout <> {AT_EASE}) from lost");
            let row = sqlx::raw_sql(AssertSqlSafe(is_as_it_was)).fetch_one(connection).await.unwrap();
            assert_eq!(row.try_get_unchecked::<i64, _>(0).unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn when_one_breaks_all_others_are_opened_anew() {
        for wish in [MySql::newest(), MariaDb::newest()] {
            let Some(server) = wish.shared().or_skip() else { continue };
            let proxy = Proxy::to(&server.url());
            let pool = MySqlStore::pool_options().connect_lazy(&proxy.url(&server.url())).unwrap();
            let way = Way::new(pool, &MySqlOptions::default());
            let lines = [Line::new(way.clone()), Line::new(way.clone()), Line::new(way)];
            for line in &lines {
                line.hold().await.unwrap().finish(Ok(())).unwrap();
            }
            // One that fails for another reason says nothing of the others.
            let mut held = lines[0].hold().await.unwrap();
            let wrong = run(&mut held.connection, "select 1 from nowhere.at_all").await;
            held.finish(wrong).unwrap_err();
            assert_eq!(proxy.came(), 3);
            let mut held = lines[0].hold().await.unwrap();
            let killed = run(&mut held.connection, "kill connection_id()").await;
            // Servers word their own end differently; the connection is gone.
            let gone = killed.and(run(&mut held.connection, "do 1").await);
            let gone = if gone.as_ref().is_err_and(is_elsewhere) {
                gone
            } else {
                run(&mut held.connection, "do 1").await
            };
            held.finish(gone).unwrap_err();
            for (line, came) in lines.iter().zip(4..) {
                line.hold().await.unwrap().finish(Ok(())).unwrap();
                assert_eq!(proxy.came(), came);
            }
            for line in &lines {
                line.hold().await.unwrap().finish(Ok(())).unwrap();
            }
            assert_eq!(proxy.came(), 6, "once");
        }
    }
}
