//! MySQL and MariaDB for tests.

use std::ops::Deref;
use std::sync::Arc;

use rustix::process::Signal;

use crate::galera::Group;
use crate::given::{self, Parts};
use crate::home::Home;
use crate::missing::Missing;
use crate::part::Part;
use crate::processes::send;
use crate::program::Program;
use crate::server::{Kind, Server, Shared};
use crate::wishes::Wishes;
use crate::{fresh, galera, tls};

/// An available version: its name, its programs, the data folder that every server starts with a
/// copy of, the variable of a URL, and its own settings.
#[derive(Clone, Copy, Debug)]
struct Version {
    name: &'static str,
    part: Part,
    server: &'static str,
    client: &'static str,
    empty: &'static str,
    variable: &'static str,
    settings: &'static str,
    without_tls: &'static str,
    without_binlog: &'static str,
}

impl Version {
    /// Creates the data folder, as `tests/servers/prepare` does.
    fn make_data(self, home: &Home) -> Result<(), String> {
        let mariadb = self.server == MARIADB.server;
        let program = if mariadb { "mariadb-install-db" } else { self.server };
        let mut make = home.tree().command(home.user(), &home.inside(""), program);
        make.args(["--no-defaults", &format!("--datadir={}", home.inside("data"))]);
        if mariadb {
            make.args(["--skip-test-db", "--auth-root-authentication-method=normal"]);
        } else {
            home.write("users.sql", "RENAME USER root@localhost TO root@'127.0.0.1';\n")?;
            make.args(["--initialize-insecure", "--secure-file-priv=NULL", "--skip-log-bin"]);
            make.arg(format!("--init-file={}", home.inside("users.sql")));
        }
        make.run().map(drop)
    }
}

const MYSQL: Version = Version {
    name: "MySQL 9",
    part: Part {
        name: "mysql",
        release: "sid",
        user: "mysql",
        image: Some(("mysql:9", "OUTBOX_MYSQL_IMAGE")),
    },
    server: "/usr/sbin/mysqld",
    client: "/usr/bin/mysql",
    empty: "/var/lib/outbox-mysql",
    variable: "OUTBOX_MYSQL_URL",
    settings: "mysqlx = OFF\nsecure-file-priv = NULL\ninnodb-redo-log-capacity = 64M\n",
    // One is created with the data folder and would be offered.
    without_tls: "tls-version =\n",
    without_binlog: "skip-log-bin\n",
};
const MARIADB: Version = Version {
    name: "MariaDB 11.8",
    part: Part {
        name: "mariadb11",
        release: "trixie",
        user: "mysql",
        image: Some(("mariadb:11.8", "OUTBOX_MARIADB_IMAGE")),
    },
    server: "/usr/sbin/mariadbd",
    client: "/usr/bin/mariadb",
    empty: "/var/lib/outbox-mariadb11",
    variable: "OUTBOX_MARIADB_URL",
    settings: "innodb-log-file-size = 64M\n",
    // It creates a certificate for itself.
    without_tls: "skip-ssl\n",
    without_binlog: "",
};
const MARIADB_OLDEST: Version = Version {
    name: "MariaDB 10.11",
    part: Part {
        name: "mariadb",
        release: "bookworm",
        image: Some(("mariadb:10.11", "OUTBOX_MARIADB_OLDEST_IMAGE")),
        ..MARIADB.part
    },
    empty: "/var/lib/outbox-mariadb",
    variable: "",
    without_tls: "",
    ..MARIADB
};
/// Version of a node of a cluster: never given by URL.
const GALERA: Version = Version {
    name: "MariaDB 10.11 with Galera 4",
    part: Part { name: "galera", image: None, ..MARIADB_OLDEST.part },
    empty: "/var/lib/outbox-galera",
    ..MARIADB_OLDEST
};

/// Small, and quick to start.
const SETTINGS: &str = "
[mysqld]
bind-address = 127.0.0.1
skip-name-resolve
max-connections = 200
performance-schema = OFF
innodb-buffer-pool-size = 64M
innodb-log-buffer-size = 2M
";
/// Commits still survive the end of the server, though not that of the machine. The doublewrite
/// buffer stays: a kill can tear a page in two. Every test creates its tables, and a file for each
/// of them would take a fifth of the processor time.
const NOT_DURABLE: &str = "
innodb-flush-log-at-trx-commit = 2
innodb-flush-method = nosync
sync-binlog = 0
innodb-file-per-table = OFF
";

/// Request for a MySQL: the user `root`, from 127.0.0.1, without a password; 200 connections; no
/// binary log.
#[derive(Clone, Debug)]
pub struct MySql {
    version: Version,
    wishes: Wishes,
    binlog: bool,
    group: Option<Group>,
}

/// Request for a MariaDB.
#[derive(Clone, Copy, Debug)]
pub struct MariaDb;

impl MariaDb {
    /// MariaDB 10.11, the oldest that is tested. Never given by URL.
    #[must_use]
    pub fn oldest() -> MySql {
        MySql { version: MARIADB_OLDEST, ..MySql::newest() }
    }

    /// MariaDB 11.8; by URL, the server that `OUTBOX_MARIADB_URL` names. All else is as with
    /// [`MySql`].
    #[must_use]
    pub fn newest() -> MySql {
        MySql { version: MARIADB, ..MySql::newest() }
    }
}

impl MySql {
    /// MySQL 9; by URL, the server that `OUTBOX_MYSQL_URL` names, such as
    /// `mysql://root@127.0.0.1:3306/mysql`.
    #[must_use]
    pub fn newest() -> Self {
        Self { version: MYSQL, wishes: Wishes::default(), binlog: false, group: None }
    }

    /// A node of a cluster.
    pub(crate) fn of(group: Group) -> Self {
        Self { version: GALERA, group: Some(group), ..Self::newest() }
    }

    /// Adds a line to the section `mysqld` of `my.cnf`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.wishes.config.push(line.to_owned());
        self
    }

    /// Speaks TLS to clients that ask for it: see [`MySqlServer::tls_url`]. Without this setting it
    /// does not.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.wishes.tls = true;
        self
    }

    /// Syncs every commit, for measurements.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.wishes.durable = true;
        self
    }

    /// Writes a binary log, by rows, as most servers in production do.
    #[must_use]
    pub fn binlog(mut self) -> Self {
        self.binlog = true;
        self
    }

    /// Returns the server that all tests of this program share: the one that the URL in the
    /// environment names, or one that the first test starts.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the server is unavailable, or did not start.
    pub fn shared(self) -> Result<MySqlServer, Missing> {
        static SHARED: Shared<MySqlServer> = Shared::new();
        if let Some(url) = self.wishes.given(self.version.variable).filter(|_| !self.binlog) {
            let server = Arc::new(Server::given(self.version.name));
            return Ok(MySqlServer { server, version: self.version, given: Some(url) });
        }
        SHARED.get(format!("{self:?}"), || self.start())
    }

    /// Starts a server of the test's own, which it may stop, kill and pause. It ends when the
    /// handle and its clones are dropped.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the server is unavailable, or did not start.
    pub fn start(self) -> Result<MySqlServer, Missing> {
        let version = self.version;
        Ok(MySqlServer { server: version.part.start(self)?, version, given: None })
    }
}

impl Kind for MySql {
    fn name(&self) -> String {
        self.version.name.to_owned()
    }

    fn version_is_behind(&self) -> &'static str {
        "Version: '"
    }

    fn ports(&self) -> usize {
        1
    }

    fn initialise(&self, home: &Home) -> Result<(), String> {
        if self.wishes.tls {
            tls::write(home)?;
        }
        if self.group.is_some() {
            galera::write(home)?;
        }
        if home.tree().is_contained() {
            return self.version.make_data(home);
        }
        home.copy(&home.tree().outside(self.version.empty), "data")
    }

    fn command(&self, home: &Home, ports: &[u16]) -> Result<Program, String> {
        let Version { server, settings, without_tls, without_binlog, .. } = self.version;
        let port = ports.first().copied().unwrap_or_default();
        let mut lines = format!(
            "{SETTINGS}{settings}port = {port}\ndatadir = {}\ntmpdir = {}\nsocket = {}\npid-file = {}\n",
            home.inside("data"),
            // Its own: a MariaDB that starts removes other servers' files there.
            home.inside(""),
            home.inside("socket"),
            home.inside("pid")
        );
        if !self.wishes.durable {
            lines.push_str(NOT_DURABLE);
        }
        if self.wishes.tls {
            let files = [tls::AUTHORITIES, tls::CERTIFICATE, tls::KEY].map(|name| home.inside(name));
            let [authorities, certificate, key] = files;
            lines.push_str(&format!("ssl-ca = {authorities}\nssl-cert = {certificate}\nssl-key = {key}\n"));
        } else {
            lines.push_str(without_tls);
        }
        lines.push_str(if self.binlog {
            "log-bin = binlog\nserver-id = 1\nbinlog-format = ROW\n"
        } else {
            without_binlog
        });
        lines.push_str(&self.group.as_ref().map(Group::lines).unwrap_or_default());
        lines.push_str(&self.wishes.lines());
        home.write("my.cnf", &lines)?;
        if let Some(group) = &self.group {
            return Ok(group.command(home, server));
        }
        let mut command = home.tree().command(home.user(), &home.inside(""), server);
        command.arg(format!("--defaults-file={}", home.inside("my.cnf")));
        Ok(command)
    }

    fn is_ready(&self, _home: &Home, ports: &[u16], said: &str) -> bool {
        let port = ports.first().copied().unwrap_or_default();
        // The log is its own, so another server on the port does not count. A node of a cluster
        // logs it when it is in sync with the others.
        said.contains("ready for connections") && std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    }

    fn ask_to_stop(&self, _home: &Home, pid: u32) {
        send(pid, Signal::TERM);
    }
}

/// A MySQL or a MariaDB. Clones are the same server. [`Server`] holds the methods common to every
/// server.
#[derive(Clone)]
pub struct MySqlServer {
    server: Arc<Server>,
    version: Version,
    given: Option<String>,
}

impl MySqlServer {
    /// Returns the URL of its database `mysql`, or the one that was given.
    #[must_use]
    pub fn url(&self) -> String {
        self.given.clone().unwrap_or_else(|| format!("mysql://root@127.0.0.1:{}/mysql", self.port(0)))
    }

    /// Returns a URL with fully verified TLS. For a server that was requested with [`MySql::tls`].
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("{}?ssl-mode=VERIFY_IDENTITY&ssl-ca={}", self.url(), self.authorities().display())
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
        self.query(&self.url(), &format!("create database {name}"));
        given::with_path(&self.url(), &name)
    }

    /// Runs statements with the command line client, and returns their output: a line for each row,
    /// a tab between columns.
    ///
    /// # Panics
    ///
    /// If a statement fails: see [`try_query`](Self::try_query).
    #[track_caller]
    #[expect(clippy::must_use_candidate, reason = "most statements return nothing")]
    pub fn query(&self, url: &str, sql: &str) -> String {
        self.try_query(url, sql).unwrap_or_else(|error| panic!("{}: {sql}: {error}", self.name()))
    }

    /// Runs statements with the command line client, and returns their output: a line for each row,
    /// a tab between columns. It supports the URL options `ssl-mode` and `ssl-ca`; MariaDB's client
    /// treats `REQUIRED` as a preference, and continues without TLS if the server has none.
    ///
    /// # Errors
    ///
    /// The client's message, if the server can't be reached or a statement fails.
    pub fn try_query(&self, url: &str, sql: &str) -> Result<String, String> {
        let url = Parts::of(url);
        let mut client = self.server.client(self.version.part, self.version.client);
        client.args(["--no-defaults", "--protocol=tcp", "--batch", "--raw", "--skip-column-names"]);
        client.args(["--host", &url.host, "--user", &url.user]);
        if !url.port.is_empty() {
            client.args(["--port", &url.port]);
        }
        self.add_tls(&mut client, &url);
        // Not as an argument, which every process of the machine can read.
        client.env("MYSQL_PWD", &url.password);
        client.args(["--execute", sql]).args(Some(&url.path).filter(|path| !path.is_empty()));
        client.run()
    }

    /// Adds TLS options: the two clients have different names for them.
    fn add_tls(&self, client: &mut Program, url: &Parts) {
        if let Some(file) = url.option("ssl-ca") {
            let file = self.server.as_seen_by_client(self.version.part, file);
            client.arg(format!("--ssl-ca={file}"));
        }
        let mode = url.option("ssl-mode");
        if self.version.client == MYSQL.client {
            client.args(mode.map(|mode| format!("--ssl-mode={mode}")));
            return;
        }
        // By default MariaDB 11's client requires TLS, and a certificate.
        match mode {
            None | Some("DISABLED") => client.arg("--skip-ssl"),
            Some("VERIFY_IDENTITY") => client.args(["--ssl", "--ssl-verify-server-cert"]),
            Some(_) => client.args(["--ssl", "--skip-ssl-verify-server-cert"]),
        };
    }
}

impl std::fmt::Debug for MySqlServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MySqlServer").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Deref for MySqlServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}
