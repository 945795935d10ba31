//! Redis and Valkey for tests.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::home::Home;
use crate::missing::Missing;
use crate::part::Part;
use crate::processes::send;
use crate::program::Program;
use crate::server::{Kind, Server, Shared};
use crate::wishes::Wishes;
use crate::{fresh, tls};

/// An available version: its name, the part of `tests/servers/prepare`, the names of its programs,
/// the words of its log before the version, the variable of a URL.
#[derive(Clone, Copy, Debug)]
struct Version {
    name: &'static str,
    part: Part,
    program: &'static str,
    says: &'static str,
    variable: &'static str,
}

const NEWEST: Version = Version {
    name: "Redis 8",
    part: Part {
        name: "redis",
        release: "sid",
        user: "redis",
        image: Some(("redis:8", "OUTBOX_REDIS_IMAGE")),
    },
    program: "redis",
    says: "Redis version=",
    variable: "OUTBOX_REDIS_URL",
};
const OLDEST: Version = Version {
    name: "Redis 7",
    part: Part {
        name: "redis7",
        release: "bookworm",
        user: "redis",
        image: Some(("redis:7", "OUTBOX_REDIS_OLDEST_IMAGE")),
    },
    program: "redis",
    says: "Redis version=",
    variable: "OUTBOX_REDIS_OLDEST_URL",
};
const VALKEY: Version = Version {
    name: "Valkey 9",
    part: Part {
        name: "valkey",
        release: "sid",
        user: "valkey",
        image: Some(("valkey/valkey:9", "OUTBOX_VALKEY_IMAGE")),
    },
    program: "valkey",
    says: "Valkey version=",
    variable: "OUTBOX_VALKEY_URL",
};

/// Automatic saves are off, so that they do not disturb a test that counts.
const SETTINGS: &str = "
bind 127.0.0.1
daemonize no
save \"\"
appendonly no
";

/// Request for a Redis without a password, which keeps nothing on disk.
#[derive(Clone, Debug)]
pub struct Redis {
    version: Version,
    wishes: Wishes,
    replica_of: Option<u16>,
}

impl Redis {
    /// Redis 8; by URL, the server that `OUTBOX_REDIS_URL` names.
    #[must_use]
    pub fn newest() -> Self {
        Self { version: NEWEST, wishes: Wishes::default(), replica_of: None }
    }

    /// Redis 7, the oldest that is supported; by URL, the server that `OUTBOX_REDIS_OLDEST_URL`
    /// names.
    #[must_use]
    pub fn oldest() -> Self {
        Self { version: OLDEST, ..Self::newest() }
    }

    /// Valkey 9; by URL, the server that `OUTBOX_VALKEY_URL` names.
    #[must_use]
    pub fn valkey() -> Self {
        Self { version: VALKEY, ..Self::newest() }
    }

    /// Adds a line to `redis.conf`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.wishes.config.push(line.to_owned());
        self
    }

    /// Listens with TLS too: see [`RedisServer::tls_url`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.wishes.tls = true;
        self
    }

    /// Returns the server that all tests of this program share: the one that the URL in the
    /// environment names, or one that the first test starts.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the server is unavailable, or did not start.
    pub fn shared(self) -> Result<RedisServer, Missing> {
        static SHARED: Shared<RedisServer> = Shared::new();
        if let Some(url) = self.wishes.given(self.version.variable) {
            let server = Arc::new(Server::given(self.version.name));
            return Ok(RedisServer { server, wish: self, given: Some(url) });
        }
        SHARED.get(format!("{self:?}"), || self.start())
    }

    /// Returns the server that all programs of a run share. Programs usually start one of their
    /// own: that takes less time than a cleanup after tests.
    #[cfg(test)]
    pub(crate) fn of_run(self) -> Result<RedisServer, Missing> {
        Ok(RedisServer { server: self.version.part.shared(self.clone())?, wish: self, given: None })
    }

    /// Starts a server of the test's own, which it may stop, kill and pause. It ends when the
    /// handle and its clones are dropped.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the server is unavailable, or did not start.
    pub fn start(self) -> Result<RedisServer, Missing> {
        let server = self.version.part.start(self.clone())?;
        Ok(RedisServer { server, wish: self, given: None })
    }
}

impl Kind for Redis {
    fn name(&self) -> String {
        self.version.name.to_owned()
    }

    fn version_is_behind(&self) -> &'static str {
        self.version.says
    }

    fn ports(&self) -> usize {
        if self.wishes.tls { 2 } else { 1 }
    }

    fn initialise(&self, home: &Home) -> Result<(), String> {
        if self.wishes.tls { tls::write(home) } else { Ok(()) }
    }

    fn command(&self, home: &Home, ports: &[u16]) -> Result<Program, String> {
        let port = |index: usize| ports.get(index).copied().unwrap_or_default();
        let mut settings = format!("port {}\ndir {}\n{SETTINGS}", port(0), home.inside(""));
        if self.wishes.tls {
            settings.push_str(&format!(
                "tls-port {}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\ntls-auth-clients no\n",
                port(1),
                home.inside(tls::CERTIFICATE),
                home.inside(tls::KEY),
                home.inside(tls::AUTHORITIES)
            ));
        }
        if let Some(primary) = self.replica_of {
            settings.push_str(&format!("replicaof 127.0.0.1 {primary}\n"));
        }
        settings.push_str(&self.wishes.lines());
        home.write("redis.conf", &settings)?;
        let program = format!("/usr/bin/{}-server", self.version.program);
        let mut command = home.tree().command(home.user(), &home.inside(""), &program);
        command.arg(home.inside("redis.conf"));
        Ok(command)
    }

    fn is_ready(&self, _home: &Home, ports: &[u16], said: &str) -> bool {
        let in_step = self.replica_of.is_none() || said.contains("Finished with success");
        // The log is its own, so another server on the port does not count.
        in_step
            && said.contains("Ready to accept connections")
            && answers(ports.first().copied().unwrap_or_default())
    }

    fn ask_to_stop(&self, _home: &Home, pid: u32) {
        send(pid, Signal::TERM);
    }
}

/// Returns true if a server on the port serves, even if it requires a password.
fn answers(port: u16) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    ask().is_ok_and(|answer| answer.starts_with("+PONG") || answer.starts_with("-NOAUTH"))
}

/// A Redis. Clones are the same server. [`Server`] holds the methods common to every server.
#[derive(Clone)]
pub struct RedisServer {
    server: Arc<Server>,
    wish: Redis,
    given: Option<String>,
}

impl RedisServer {
    /// Returns its URL, or the one that was given.
    #[must_use]
    pub fn url(&self) -> String {
        self.given.clone().unwrap_or_else(|| format!("redis://127.0.0.1:{}", self.port(0)))
    }

    /// Returns its URL with TLS. For a server that was requested with [`Redis::tls`].
    ///
    /// # Panics
    ///
    /// If the server was given by URL.
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("rediss://localhost:{}", self.port(1))
    }

    /// Returns a prefix of names that no other test uses, even on a server that outlives the test
    /// program.
    #[must_use]
    pub fn fresh_prefix(&self) -> String {
        fresh::name()
    }

    /// Runs one command with its command-line client, and returns its output.
    ///
    /// # Panics
    ///
    /// If the server can't be reached, or refuses the command.
    #[allow(clippy::must_use_candidate, reason = "many commands are given for what they do")]
    #[track_caller]
    pub fn cli(&self, command: &[&str]) -> String {
        self.try_cli(command).unwrap_or_else(|error| panic!("{}: {command:?}: {error}", self.name()))
    }

    /// Runs one command with its command-line client, and returns its output.
    ///
    /// # Errors
    ///
    /// The client's message, if the server can't be reached or refuses the command.
    pub fn try_cli(&self, command: &[&str]) -> Result<String, String> {
        let Version { part, program, .. } = self.wish.version;
        let mut cli = self.server.client(part, &format!("/usr/bin/{program}-cli"));
        // `-e`: an error of the server becomes an error of the command.
        cli.args(["-e", "--raw", "-u", &self.url()]).args(command);
        cli.run()
    }

    /// Starts a replica that follows this server; returns when it has all of this server's data.
    ///
    /// # Errors
    ///
    /// [`Missing`]: it did not start.
    ///
    /// # Panics
    ///
    /// If this server was given by URL.
    pub fn replica(&self) -> Result<Self, Missing> {
        let mut replica = Redis { replica_of: Some(self.port(0)), ..self.wish.clone() };
        replica.wishes.tls = false;
        replica.start()
    }
}

impl std::fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A given URL may hold a password.
        f.debug_struct("RedisServer").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Deref for RedisServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}
