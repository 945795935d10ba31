//! PostgreSQL for tests.

use std::ops::Deref;
use std::sync::Arc;

use rustix::process::Signal;

use crate::home::Home;
use crate::missing::Missing;
use crate::part::Part;
use crate::prepared::{MADE, Recipe};
use crate::processes::send;
use crate::program::Program;
use crate::server::{Kind, Server, Shared};
use crate::tree::Tree;
use crate::wishes::Wishes;
use crate::{fresh, given, tls};

/// An available version: the part of `tests/servers/prepare`, the variable of a URL.
#[derive(Clone, Copy, Debug)]
struct Version {
    number: u32,
    part: Part,
    variable: &'static str,
}

const NEWEST: Version = Version {
    number: 18,
    part: Part {
        name: "postgres",
        release: "sid",
        user: "postgres",
        image: Some(("postgres:18", "OUTBOX_POSTGRES_IMAGE")),
    },
    variable: "OUTBOX_POSTGRES_URL",
};
const OLDEST: Version = Version {
    number: 13,
    part: Part {
        name: "postgres13",
        release: "bullseye",
        user: "postgres",
        image: Some(("postgres:13", "OUTBOX_POSTGRES_OLDEST_IMAGE")),
    },
    variable: "OUTBOX_POSTGRES_OLDEST_URL",
};

/// Never by URL: a given server is a MongoDB, and its engine is internal.
#[cfg(feature = "mongodb")]
const DOCUMENTDB: Version = Version {
    number: 18,
    part: Part { name: "documentdb", release: "sid", user: "postgres", image: None },
    variable: "",
};

/// Small, quick to start, and with no files outside of its folder. Without fsync commits still
/// survive the end of the server, though not that of the machine; `synchronous_commit` keeps its
/// meaning.
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 200
max_prepared_transactions = 20
shared_buffers = 32MB
dynamic_shared_memory_type = mmap
jit = off
log_checkpoints = off
";
/// Whole pages stay in the log: a kill can tear one in two.
const NOT_DURABLE: &str = "
fsync = off
";

/// Options that create an empty data folder.
const INITDB: &str = "-U postgres -A trust -E UTF8 --locale=C --no-sync";

impl Version {
    /// Creates a server's data folder: a copy of a cached one. Copies have the same system
    /// identifier, which no code here uses to distinguish servers.
    fn give_data(self, home: &Home) -> Result<(), String> {
        let server = format!("/usr/lib/postgresql/{}/bin/postgres", self.number);
        let recipe =
            Recipe { part: self.part.name, user: self.part.user, programs: &[&server], settings: INITDB };
        match recipe.folder(home.tree(), |home| self.make_data(home, MADE))? {
            Some(made) => home.copy(&made, "data"),
            None => self.make_data(home, "data"),
        }
    }

    fn make_data(self, home: &Home, name: &str) -> Result<(), String> {
        let mut initdb = program(home.tree(), self.number, "initdb");
        initdb.args(["-D", &home.inside(name)]).args(INITDB.split(' '));
        initdb.run().map(drop)
    }
}

/// Request for a PostgreSQL: a superuser `postgres` without a password, 200 connections, prepared
/// transactions allowed.
#[derive(Clone, Debug)]
pub struct Postgres {
    version: Version,
    wishes: Wishes,
}

impl Postgres {
    /// PostgreSQL 18; by URL, the server that `OUTBOX_POSTGRES_URL` names.
    #[must_use]
    pub fn newest() -> Self {
        Self { version: NEWEST, wishes: Wishes::default() }
    }

    /// PostgreSQL 13, the oldest that is supported; by URL, the server that
    /// `OUTBOX_POSTGRES_OLDEST_URL` names.
    #[must_use]
    pub fn oldest() -> Self {
        Self { version: OLDEST, ..Self::newest() }
    }

    /// PostgreSQL 18 with DocumentDB, the engine of the stand-in for MongoDB.
    #[cfg(feature = "mongodb")]
    pub(crate) fn documentdb() -> Self {
        Self { version: DOCUMENTDB, ..Self::newest() }
            .config("shared_preload_libraries = 'pg_cron, pg_documentdb_core, pg_documentdb'")
            .config("cron.database_name = 'postgres'")
            .config("cron.use_background_workers = on")
    }

    /// Adds a line to `postgresql.conf`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.wishes.config.push(line.to_owned());
        self
    }

    /// Speaks TLS to clients that ask for it: see [`PostgresServer::tls_url`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.wishes.tls = true;
        self
    }

    /// Leaves fsync on, for measurements.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.wishes.durable = true;
        self
    }

    /// Returns the server that all tests of this program share: the one that the URL in the
    /// environment names, or one that the first test starts.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the server is unavailable, or did not start.
    pub fn shared(self) -> Result<PostgresServer, Missing> {
        static SHARED: Shared<PostgresServer> = Shared::new();
        if let Some(url) = self.wishes.given(self.version.variable) {
            let server = Arc::new(Server::given(self.name()));
            return Ok(PostgresServer { server, version: self.version, given: Some(url) });
        }
        SHARED.get(format!("{self:?}"), || self.start())
    }

    /// Starts a server of the test's own, which it may stop, kill and pause. It ends when the
    /// handle and its clones are dropped.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the server is unavailable, or did not start.
    pub fn start(self) -> Result<PostgresServer, Missing> {
        let version = self.version;
        Ok(PostgresServer { server: version.part.start(self)?, version, given: None })
    }
}

/// A program of PostgreSQL in its tree.
fn program(tree: &Tree, number: u32, name: &str) -> Program {
    tree.command("postgres", "/", &format!("/usr/lib/postgresql/{number}/bin/{name}"))
}

fn psql(mut psql: Program, url: &str, sql: &str) -> Result<String, String> {
    psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql]);
    psql.run()
}

impl Kind for Postgres {
    fn name(&self) -> String {
        format!("PostgreSQL {}", self.version.number)
    }

    fn version_is_behind(&self) -> &'static str {
        "starting PostgreSQL "
    }

    fn ports(&self) -> usize {
        1
    }

    fn initialise(&self, home: &Home) -> Result<(), String> {
        self.version.give_data(home)?;
        let mut settings = SETTINGS.to_owned();
        if !self.wishes.durable {
            settings.push_str(NOT_DURABLE);
        }
        if self.wishes.tls {
            tls::write(home)?;
            let (certificate, key) = (home.inside(tls::CERTIFICATE), home.inside(tls::KEY));
            settings
                .push_str(&format!("ssl = on\nssl_cert_file = '{certificate}'\nssl_key_file = '{key}'\n"));
        }
        settings.push_str(&self.wishes.lines());
        home.write("data/postgresql.conf", &settings)
    }

    fn command(&self, home: &Home, ports: &[u16]) -> Result<Program, String> {
        Ok(serve(self.version, home, ports))
    }

    fn is_ready(&self, home: &Home, ports: &[u16], _said: &str) -> bool {
        serves(self.version, home, ports)
    }

    fn ask_to_stop(&self, _home: &Home, pid: u32) {
        send(pid, Signal::INT);
    }

    /// True for its shared memory.
    fn holds_what_is_outside(&self) -> bool {
        true
    }
}

fn serve(version: Version, home: &Home, ports: &[u16]) -> Program {
    let program = format!("/usr/lib/postgresql/{}/bin/postgres", version.number);
    let mut command = home.tree().command(home.user(), &home.inside(""), &program);
    let port = ports.first().copied().unwrap_or_default();
    command.args(["-D", &home.inside("data"), "-c", &format!("port={port}")]);
    command
}

/// Returns true if the server on the port is the one with this folder, and answers.
fn serves(version: Version, home: &Home, ports: &[u16]) -> bool {
    let port = ports.first().copied().unwrap_or_default();
    // Only a listening port is queried: a client is a process.
    if std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        return false;
    }
    let psql_of_it = program(home.tree(), version.number, "psql");
    psql(psql_of_it, &url_of(port), "show data_directory").is_ok_and(|folder| folder == home.inside("data"))
}

fn url_of(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}

/// A standby that follows another server.
#[derive(Debug)]
struct Standby {
    version: Version,
    primary: u16,
}

impl Kind for Standby {
    fn name(&self) -> String {
        format!("a standby of PostgreSQL {}", self.version.number)
    }

    fn version_is_behind(&self) -> &'static str {
        "starting PostgreSQL "
    }

    fn ports(&self) -> usize {
        1
    }

    fn initialise(&self, home: &Home) -> Result<(), String> {
        let mut backup = program(home.tree(), self.version.number, "pg_basebackup");
        backup.args(["-D", &home.inside("data"), "-d", &url_of(self.primary)]);
        // The standby receives the connection settings of its primary, and nothing is synced.
        backup.args(["-R", "-X", "stream", "-c", "fast", "--no-sync"]);
        backup.run().map(drop)
    }

    fn command(&self, home: &Home, ports: &[u16]) -> Result<Program, String> {
        Ok(serve(self.version, home, ports))
    }

    fn is_ready(&self, home: &Home, ports: &[u16], _said: &str) -> bool {
        serves(self.version, home, ports)
    }

    fn ask_to_stop(&self, _home: &Home, pid: u32) {
        send(pid, Signal::INT);
    }

    /// True for its shared memory.
    fn holds_what_is_outside(&self) -> bool {
        true
    }
}

/// A PostgreSQL. Clones are the same server. [`Server`] holds the methods common to every server.
#[derive(Clone)]
pub struct PostgresServer {
    server: Arc<Server>,
    version: Version,
    given: Option<String>,
}

impl PostgresServer {
    /// Returns the URL of its database `postgres`, or the one that was given.
    #[must_use]
    pub fn url(&self) -> String {
        self.given.clone().unwrap_or_else(|| url_of(self.port(0)))
    }

    /// Returns a URL with fully verified TLS. For a server that was requested with
    /// [`Postgres::tls`].
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("{}?sslmode=verify-full&sslrootcert={}", self.url(), self.authorities().display())
    }

    /// Creates an empty database, and returns its URL. No other test uses it; it is deleted with
    /// the server, and on a server that was given by URL it stays.
    ///
    /// # Panics
    ///
    /// If the server does not create it.
    #[must_use]
    #[track_caller]
    pub fn fresh_database(&self) -> String {
        let name = fresh::name();
        // Copying the files costs half as much as logging all of them. Older servers always copy,
        // and lack the option.
        let by_copy = if self.is_own() && self.version.number >= 15 { " strategy file_copy" } else { "" };
        self.query(&self.url(), &format!("create database {name}{by_copy}"));
        given::with_path(&self.url(), &name)
    }

    /// Runs statements with psql, and returns their output: a line for each row, `|` between
    /// columns.
    ///
    /// # Panics
    ///
    /// If a statement fails: see [`try_query`](Self::try_query).
    #[track_caller]
    #[expect(clippy::must_use_candidate, reason = "most statements return nothing")]
    pub fn query(&self, url: &str, sql: &str) -> String {
        self.try_query(url, sql).unwrap_or_else(|error| panic!("{}: {sql}: {error}", self.name()))
    }

    /// Runs statements with psql, and returns their output: a line for each row, `|` between
    /// columns.
    ///
    /// # Errors
    ///
    /// The message of psql, if the server can't be reached or a statement fails.
    pub fn try_query(&self, url: &str, sql: &str) -> Result<String, String> {
        let (part, number) = (self.version.part, self.version.number);
        let client = self.server.client(part, &format!("/usr/lib/postgresql/{number}/bin/psql"));
        let url = self.server.as_seen_by_client(part, url);
        psql(client, &url, sql)
    }

    /// Ends it at once, without a checkpoint and without flushing pending writes (immediate
    /// shutdown): the latest commits with `synchronous_commit = off` are lost.
    ///
    /// # Panics
    ///
    /// If it does not end, or does not run.
    #[track_caller]
    pub fn stop_at_once(&self) {
        self.stop_by("stop at once", |pid| send(pid, Signal::QUIT));
    }

    /// Starts a standby that follows this server (streaming, asynchronous).
    ///
    /// # Errors
    ///
    /// [`Missing`]: it did not start.
    ///
    /// # Panics
    ///
    /// If this server was given by URL.
    pub fn standby(&self) -> Result<Self, Missing> {
        let version = self.version;
        let standby = Standby { version, primary: self.port(0) };
        Ok(Self { server: version.part.start(standby)?, version, given: None })
    }

    /// Promotes a standby to a primary; returns when it takes writes.
    ///
    /// # Panics
    ///
    /// If it is no standby.
    #[track_caller]
    pub fn promote(&self) {
        let promoted = self.query(&self.url(), "select pg_promote(true, 120)");
        assert_eq!(promoted, "t", "{} did not become a primary", self.name());
    }
}

impl std::fmt::Debug for PostgresServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A given URL may hold a password.
        f.debug_struct("PostgresServer").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Deref for PostgresServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}
