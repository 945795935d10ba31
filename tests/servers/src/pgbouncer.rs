//! PgBouncer for tests: a pool in front of a PostgreSQL.

use std::ops::Deref;
use std::sync::Arc;

use rustix::process::Signal;

use crate::given;
use crate::home::Home;
use crate::missing::Missing;
use crate::part::Part;
use crate::postgres::PostgresServer;
use crate::processes::send;
use crate::program::Program;
use crate::server::{Kind, Server};

const NEWEST: Part = Part { name: "pgbouncer", release: "sid", user: "postgres", image: None };
const OLDEST: Part = Part { name: "pgbouncer18", release: "bookworm", user: "postgres", image: None };

/// Request for a PgBouncer in transaction mode, with 20 connections to the server and room for 500
/// clients.
#[derive(Clone, Debug)]
pub struct PgBouncer {
    label: &'static str,
    part: Part,
    server: PostgresServer,
    config: Vec<String>,
}

impl PgBouncer {
    /// The current version, in front of a server that was started here. It keeps prepared
    /// statements apart (its own `max_prepared_statements`).
    #[must_use]
    pub fn newest(server: &PostgresServer) -> Self {
        let server = server.clone();
        Self { label: "PgBouncer", part: NEWEST, server, config: Vec::new() }
    }

    /// Version 1.18, without support for prepared statements.
    #[must_use]
    pub fn oldest(server: &PostgresServer) -> Self {
        Self { label: "PgBouncer 1.18", part: OLDEST, ..Self::newest(server) }
    }

    /// Adds a line to the section `pgbouncer` of its configuration, such as `pool_mode = session`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.config.push(line.to_owned());
        self
    }

    /// Starts it. It ends when the handle is dropped.
    ///
    /// # Errors
    ///
    /// [`Missing`]: it is unavailable (a server that was given by URL gets none), or did not start.
    pub fn start(self) -> Result<PgBouncerServer, Missing> {
        if !self.server.is_own() {
            return Err(Missing::absent(self.label, "the PostgreSQL was given by URL"));
        }
        let before = self.server.clone();
        Ok(PgBouncerServer { server: self.part.start(self)?, before })
    }
}

impl Kind for PgBouncer {
    fn name(&self) -> String {
        self.label.to_owned()
    }

    fn version_is_behind(&self) -> &'static str {
        "process up: PgBouncer "
    }

    fn ports(&self) -> usize {
        1
    }

    fn initialise(&self, _home: &Home) -> Result<(), String> {
        Ok(())
    }

    fn command(&self, home: &Home, ports: &[u16]) -> Result<Program, String> {
        let port = ports.first().copied().unwrap_or_default();
        // The last line of a setting wins, so the requested lines come last.
        home.write(
            "pgbouncer.ini",
            &format!(
                "[databases]\n* = host=127.0.0.1 port={} user=postgres\n\n\
                 [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
                 pool_mode = transaction\ndefault_pool_size = 20\nmax_client_conn = 500\n\
                 ignore_startup_parameters = extra_float_digits,options\n{}\n",
                self.server.tcp_port(),
                self.config.join("\n")
            ),
        )?;
        let mut command = home.tree().command(home.user(), &home.inside(""), "pgbouncer");
        command.arg(home.inside("pgbouncer.ini"));
        Ok(command)
    }

    fn is_ready(&self, _home: &Home, ports: &[u16], _said: &str) -> bool {
        let port = ports.first().copied().unwrap_or_default();
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    }

    fn ask_to_stop(&self, _home: &Home, pid: u32) {
        send(pid, Signal::INT);
    }
}

/// A PgBouncer. [`Server`] holds the methods common to every server.
#[derive(Clone, Debug)]
pub struct PgBouncerServer {
    server: Arc<Server>,
    before: PostgresServer,
}

impl PgBouncerServer {
    /// Returns the URL of a database of the server behind it, through the pool.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        given::with_address(database, &format!("127.0.0.1:{}", self.port(0)))
    }

    /// Returns the server behind it.
    #[must_use]
    pub fn postgres(&self) -> &PostgresServer {
        &self.before
    }
}

impl Deref for PgBouncerServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}
