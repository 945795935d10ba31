//! Pgpool-II for tests: a pool that sends reads to a standby.

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

const PART: Part = Part { name: "pgpool", release: "bookworm", user: "postgres", image: None };
const LABEL: &str = "Pgpool-II 4.3";

/// Request for a Pgpool in front of a primary and its standby. Each read that it takes for one goes
/// to the standby (`load_balance_mode`, the primary's weight is 0), also behind a comment. It has
/// room for 64 clients.
#[derive(Clone, Debug)]
pub struct Pgpool {
    primary: PostgresServer,
    standby: PostgresServer,
    config: Vec<String>,
}

impl Pgpool {
    /// Version 4.3, in front of servers that were started here.
    #[must_use]
    pub fn new(primary: &PostgresServer, standby: &PostgresServer) -> Self {
        Self { primary: primary.clone(), standby: standby.clone(), config: Vec::new() }
    }

    /// Adds a line to its configuration, such as `statement_level_load_balance = on`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.config.push(line.to_owned());
        self
    }

    /// Starts it. It ends when the handle is dropped.
    ///
    /// # Errors
    ///
    /// [`Missing`]: it is unavailable (servers that were given by URL get none), or did not start.
    pub fn start(self) -> Result<PgpoolServer, Missing> {
        if !(self.primary.is_own() && self.standby.is_own()) {
            return Err(Missing::absent(LABEL, "the PostgreSQL was given by URL"));
        }
        Ok(PgpoolServer { server: PART.start(self)? })
    }
}

impl Kind for Pgpool {
    fn name(&self) -> String {
        LABEL.to_owned()
    }

    fn version_is_behind(&self) -> &'static str {
        "pgpool-II successfully started. version "
    }

    fn ports(&self) -> usize {
        2
    }

    fn initialise(&self, home: &Home) -> Result<(), String> {
        // Without it, it complains at each start. It holds no users: nothing connects to that port.
        home.write("pcp.conf", "")
    }

    fn command(&self, home: &Home, ports: &[u16]) -> Result<Program, String> {
        let port = |index: usize| ports.get(index).copied().unwrap_or_default();
        let (folder, primary, standby) = (home.inside(""), self.primary.tcp_port(), self.standby.tcp_port());
        // The last line of a setting wins, so the requested lines come last.
        home.write(
            "pgpool.conf",
            &format!(
                "backend_clustering_mode = 'streaming_replication'\nlisten_addresses = '127.0.0.1'\nport = {}\n\
                 socket_dir = '{folder}'\npcp_listen_addresses = '127.0.0.1'\npcp_port = {}\npcp_socket_dir = '{folder}'\n\
                 wd_ipc_socket_dir = '{folder}'\npid_file_name = '{folder}/pid'\nlogdir = '{folder}'\npool_passwd = ''\n\
                 backend_hostname0 = '127.0.0.1'\nbackend_port0 = {primary}\nbackend_weight0 = 0\n\
                 backend_flag0 = 'ALWAYS_PRIMARY|DISALLOW_TO_FAILOVER'\n\
                 backend_hostname1 = '127.0.0.1'\nbackend_port1 = {standby}\nbackend_weight1 = 1\n\
                 backend_flag1 = 'DISALLOW_TO_FAILOVER'\n\
                 sr_check_period = 0\nsr_check_user = 'postgres'\nnum_init_children = 64\nmax_pool = 1\n\
                 memqcache_total_size = 1MB\nmemqcache_max_num_cache = 1000\nload_balance_mode = on\nallow_sql_comments = on\n{}\n",
                port(0),
                port(1),
                self.config.join("\n")
            ),
        )?;
        let mut command = home.tree().command(home.user(), &folder, "pgpool");
        command.args(["-n", "-D", "-f", &home.inside("pgpool.conf"), "-F", &home.inside("pcp.conf")]);
        Ok(command)
    }

    fn is_ready(&self, _home: &Home, ports: &[u16], said: &str) -> bool {
        let port = ports.first().copied().unwrap_or_default();
        said.contains(self.version_is_behind()) && std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    }

    fn ask_to_stop(&self, _home: &Home, pid: u32) {
        send(pid, Signal::INT);
    }

    /// True for its shared memory.
    fn holds_what_is_outside(&self) -> bool {
        true
    }
}

/// A Pgpool. [`Server`] holds the methods common to every server.
#[derive(Clone, Debug)]
pub struct PgpoolServer {
    server: Arc<Server>,
}

impl PgpoolServer {
    /// Returns the URL of a database of the servers behind it, through the pool.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        given::with_address(database, &format!("127.0.0.1:{}", self.port(0)))
    }
}

impl Deref for PgpoolServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}
