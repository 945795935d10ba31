//! RabbitMQ for tests.

use std::ops::Deref;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::Signal;

use crate::home::Home;
use crate::missing::Missing;
use crate::part::Part;
use crate::processes::{known_to_itself_as, send};
use crate::program::Program;
use crate::server::{Kind, Server, Shared};
use crate::wishes::Wishes;
use crate::{fresh, given, tls};

/// An available version: its name, the part of `tests/servers/prepare`, the variables of a URL and
/// of its `rabbitmqctl`.
#[derive(Clone, Copy, Debug)]
struct Version {
    name: &'static str,
    part: Part,
    url: &'static str,
    ctl: &'static str,
}

const NEWEST: Version = Version {
    name: "RabbitMQ 4",
    part: Part {
        name: "rabbitmq",
        release: "sid",
        user: "rabbitmq",
        image: Some(("rabbitmq:4", "OUTBOX_RABBITMQ_IMAGE")),
    },
    url: "OUTBOX_RABBITMQ_URL",
    ctl: "OUTBOX_RABBITMQ_CTL",
};
const OLDEST: Version = Version {
    name: "RabbitMQ 4.0",
    part: Part {
        name: "rabbitmq40",
        release: "trixie",
        user: "rabbitmq",
        image: Some(("rabbitmq:4.0", "OUTBOX_RABBITMQ_OLDEST_IMAGE")),
    },
    url: "OUTBOX_RABBITMQ_OLDEST_URL",
    ctl: "OUTBOX_RABBITMQ_OLDEST_CTL",
};

/// The limits are those of a small machine. They are absolute, so that they do not depend on the
/// size of the machine.
const SETTINGS: &str = "
distribution.listener.interface = 127.0.0.1
disk_free_limit.absolute = 50MB
log.console = true
log.console.level = info
log.console.formatter.level_format = lc4
log.file = false
";

/// The memory of a test's server. RabbitMQ's own limit is six tenths of the machine's.
const MEMORY: &str = "vm_memory_high_watermark.absolute = 1GB\n";

/// Erlang's port mapper is started first and in the foreground: RabbitMQ would start one of the
/// whole machine that stays behind.
const SERVE: &str = "epmd & exec \"$SERVER\"";
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// Number of virtual hosts created at a time: every call of `rabbitmqctl` takes a second of
/// processor time.
const HOSTS_AT_ONCE: u32 = 8;

/// Request for a RabbitMQ: the user `guest` with its usual password, no plugins.
#[derive(Clone, Debug)]
pub struct RabbitMq {
    version: Version,
    wishes: Wishes,
    as_shipped: bool,
}

impl RabbitMq {
    /// RabbitMQ 4; by URL, the server that `OUTBOX_RABBITMQ_URL` names, with the command
    /// `OUTBOX_RABBITMQ_CTL` as its `rabbitmqctl`, such as `docker exec rabbit rabbitmqctl`.
    #[must_use]
    pub fn newest() -> Self {
        Self { version: NEWEST, wishes: Wishes::default(), as_shipped: false }
    }

    /// RabbitMQ 4.0, the oldest that is supported, whose queues move safely between priorities; by
    /// URL, the server that `OUTBOX_RABBITMQ_OLDEST_URL` names, with `OUTBOX_RABBITMQ_OLDEST_CTL`.
    #[must_use]
    pub fn oldest() -> Self {
        Self { version: OLDEST, ..Self::newest() }
    }

    /// Adds a line to `rabbitmq.conf`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.wishes.config.push(line.to_owned());
        self
    }

    /// Listens with TLS too: see [`RabbitMqServer::tls_url`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.wishes.tls = true;
        self
    }

    /// Limits its memory as RabbitMQ does by itself, to a share of the machine's. For benchmarks: a
    /// long run fills the gigabyte of a test's server, whose alarm then holds up publishers.
    #[must_use]
    pub fn as_shipped(mut self) -> Self {
        self.as_shipped = true;
        self
    }

    /// Returns the server that all tests of this program share: the one that the URL in the
    /// environment names, or one that the first test starts.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the server is unavailable, or did not start.
    pub fn shared(self) -> Result<RabbitMqServer, Missing> {
        static SHARED: Shared<RabbitMqServer> = Shared::new();
        let Version { name, part, url, ctl } = self.version;
        let Some(given) = self.wishes.given(url) else {
            return SHARED.get(format!("{self:?}"), || {
                if !self.wishes.is_plain() || self.as_shipped {
                    return self.start();
                }
                Ok(RabbitMqServer { server: part.shared(self)?, given: None, hosts: Arc::default() })
            });
        };
        SHARED.get(format!("given {name}"), || {
            let ctl = given::url(ctl).ok_or_else(|| {
                Missing::absent(name, format!("{url} is set: set {ctl} to a command that is its rabbitmqctl"))
            })?;
            let server = Arc::new(Server::given(name));
            Ok(RabbitMqServer { server, given: Some(Given { url: given, ctl }), hosts: Arc::default() })
        })
    }

    /// Starts a server of the test's own, which it may stop, kill and pause. It ends when the
    /// handle and its clones are dropped.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the server is unavailable, or did not start.
    pub fn start(self) -> Result<RabbitMqServer, Missing> {
        Ok(RabbitMqServer { server: self.version.part.start(self)?, given: None, hosts: Arc::default() })
    }
}

/// Purposes of the ports, in this order.
struct Ports {
    amqp: u16,
    mapper: u16,
    distribution: u16,
    tls: u16,
}

impl Ports {
    fn of(ports: &[u16]) -> Self {
        let port = |index: usize| ports.get(index).copied().unwrap_or_default();
        Self { amqp: port(0), mapper: port(1), distribution: port(2), tls: port(3) }
    }
}

/// Returns a program of RabbitMQ, with the name of its node.
fn program(home: &Home, ports: &Ports, folder: &str, program: &str) -> Program {
    let mut command = home.tree().command(home.user(), folder, program);
    command.env("HOME", home.inside(""));
    command.env("RABBITMQ_NODENAME", "test@localhost");
    command.env("RABBITMQ_CONFIG_FILE", home.inside("rabbitmq.conf"));
    command.env("RABBITMQ_MNESIA_BASE", home.inside("data"));
    command.env("RABBITMQ_LOG_BASE", home.inside("logs"));
    command.env("RABBITMQ_PID_FILE", home.inside("pid"));
    command.env("RABBITMQ_ENABLED_PLUGINS_FILE", home.inside("plugins"));
    command.env("RABBITMQ_DIST_PORT", ports.distribution.to_string());
    command.env("ERL_EPMD_PORT", ports.mapper.to_string());
    command.env("ERL_EPMD_ADDRESS", "127.0.0.1");
    command
}

impl Kind for RabbitMq {
    fn name(&self) -> String {
        self.version.name.to_owned()
    }

    fn version_is_behind(&self) -> &'static str {
        "Starting RabbitMQ "
    }

    fn ports(&self) -> usize {
        if self.wishes.tls { 4 } else { 3 }
    }

    fn initialise(&self, home: &Home) -> Result<(), String> {
        home.write("plugins", "[].\n")?;
        if self.wishes.tls { tls::write(home) } else { Ok(()) }
    }

    fn command(&self, home: &Home, ports: &[u16]) -> Result<Program, String> {
        let ports = Ports::of(ports);
        let mut settings = format!("listeners.tcp.1 = 127.0.0.1:{}\n{SETTINGS}", ports.amqp);
        if !self.as_shipped {
            settings.push_str(MEMORY);
        }
        if self.wishes.tls {
            settings.push_str(&format!(
                "listeners.ssl.1 = 127.0.0.1:{}\nssl_options.cacertfile = {}\nssl_options.certfile = {}\n\
                 ssl_options.keyfile = {}\nssl_options.verify = verify_none\n",
                ports.tls,
                home.inside(tls::AUTHORITIES),
                home.inside(tls::CERTIFICATE),
                home.inside(tls::KEY),
            ));
        }
        settings.push_str(&self.wishes.lines());
        home.write("rabbitmq.conf", &settings)?;
        // A remnant of the last run: its process is gone, and its number may be another's.
        let _ = std::fs::remove_file(home.outside("pid"));
        let mut command = program(home, &ports, &home.inside(""), "/bin/sh");
        // Debian's program of that name in the path is another one, which becomes another user.
        command.env("SERVER", if home.tree().is_contained() { "rabbitmq-server" } else { SERVER });
        command.args(["-c", SERVE]);
        Ok(command)
    }

    fn is_ready(&self, _home: &Home, ports: &[u16], said: &str) -> bool {
        said.contains("Server startup complete")
            && std::net::TcpStream::connect(("127.0.0.1", Ports::of(ports).amqp)).is_ok()
    }

    fn ask_to_stop(&self, home: &Home, _pid: u32) {
        let pid = std::fs::read_to_string(home.outside("pid")).unwrap_or_default();
        let pid = pid.trim().parse().ok().and_then(|pid| known_to_itself_as(home.path(), pid));
        if let Some(pid) = pid {
            send(pid, Signal::TERM);
        }
    }
}

/// A server that is run outside of the tests.
#[derive(Clone, Debug)]
struct Given {
    url: String,
    ctl: String,
}

/// A RabbitMQ. Clones are the same server. [`Server`] holds the methods common to every server.
#[derive(Clone)]
pub struct RabbitMqServer {
    server: Arc<Server>,
    given: Option<Given>,
    /// Unused virtual hosts that were already created.
    hosts: Arc<Mutex<Vec<String>>>,
}

impl RabbitMqServer {
    /// Returns the URL of its virtual host `/`, or the one that was given.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.given {
            Some(given) => given.url.clone(),
            None => format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port(0)),
        }
    }

    /// Returns a URL with TLS, of the virtual host `/`. For a server that was requested with
    /// [`RabbitMq::tls`].
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("amqps://guest:guest@localhost:{}/%2f", self.port(3))
    }

    /// Creates an empty virtual host, and returns its URL. No other test uses it; it is deleted
    /// with the server, and on a server that was given by URL it stays.
    ///
    /// # Panics
    ///
    /// If the server does not create it.
    #[must_use]
    #[track_caller]
    pub fn fresh_vhost(&self) -> String {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.is_empty() {
            let url = self.url();
            let user = given::user(&url).unwrap_or("guest");
            let made: Vec<String> = (0..HOSTS_AT_ONCE).map(|_| fresh::name()).collect();
            let names: Vec<String> = made.iter().map(|name| format!("<<\"{name}\">>")).collect();
            let all = r#"<<".*">>"#;
            self.ctl(&[
                "eval",
                &format!(
                    "[begin ok = rabbit_vhost:add(Name, <<\"outbox\">>), \
                     ok = rabbit_auth_backend_internal:set_permissions(<<\"{user}\">>, Name, {all}, {all}, {all}, \
                     <<\"outbox\">>) end || Name <- [{}]].",
                    names.join(", ")
                ),
            ]);
            *hosts = made;
        }
        let name = hosts.pop().unwrap_or_default();
        given::with_path(&self.url(), &name)
    }

    /// Runs `rabbitmqctl`, and returns its output. The virtual host of a URL is its last part:
    /// `["-p", name, ...]`.
    ///
    /// # Panics
    ///
    /// If it fails.
    #[track_caller]
    #[expect(clippy::must_use_candidate, reason = "most commands write nothing")]
    pub fn ctl(&self, args: &[&str]) -> String {
        let mut command = match &self.given {
            Some(given) => {
                let mut words = given.ctl.split_whitespace();
                let mut command = Program::here(Command::new(words.next().unwrap_or("rabbitmqctl")));
                command.args(words);
                command
            }
            None => {
                let ports: Vec<u16> = (0..3).map(|index| self.port(index)).collect();
                program(self.home(), &Ports::of(&ports), "/", "/usr/lib/rabbitmq/bin/rabbitmqctl")
            }
        };
        command.arg("-q").args(args);
        command.run().unwrap_or_else(|error| panic!("rabbitmqctl {args:?}: {error}"))
    }
}

impl std::fmt::Debug for RabbitMqServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitMqServer").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Deref for RabbitMqServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}
