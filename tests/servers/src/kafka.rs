//! Apache Kafka for tests.

mod cluster;
mod node;

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

pub use self::cluster::KafkaCluster;
use self::node::{JARS, Listener, NAME, Node, PART, Role, shared_classes};
use crate::missing::Missing;
use crate::proxy::Proxy;
use crate::server::{Server, Shared};
use crate::tls;
use crate::wishes::Wishes;

const URL: &str = "OUTBOX_KAFKA_URL";
/// The users of a Kafka with authentication, each with its password.
const USERS: [(&str, &str); 2] = [Kafka::ADMIN, Kafka::NOBODY];

/// Request for an Apache Kafka: one broker, or a cluster of three; by default without TLS and
/// passwords.
#[derive(Clone, Debug)]
pub struct Kafka {
    wishes: Wishes,
    authorized: bool,
    asks_for_certificates: bool,
    certified_as: Option<String>,
    proxied: bool,
    as_shipped: bool,
}

impl Kafka {
    /// Name and password of a user that may do everything, with [`authorized`](Self::authorized).
    pub const ADMIN: (&str, &str) = ("admin", "secret-of-admin");
    /// Name and password of a user that may do nothing but log in, with
    /// [`authorized`](Self::authorized).
    pub const NOBODY: (&str, &str) = ("nobody", "secret-of-nobody");

    /// Apache Kafka 4.3; by URL, the server that `OUTBOX_KAFKA_URL` names, such as
    /// `127.0.0.1:9092`.
    #[must_use]
    pub fn newest() -> Self {
        Self {
            wishes: Wishes::default(),
            authorized: false,
            asks_for_certificates: false,
            certified_as: None,
            proxied: false,
            as_shipped: false,
        }
    }

    /// Adds a line to `server.properties`; in a cluster, to that of every node.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.wishes.config.push(line.to_owned());
        self
    }

    /// Listens with TLS too: see [`KafkaServer::tls_url`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.wishes.tls = true;
        self
    }

    /// Listens with TLS too, and there accepts only clients with a certificate of the same
    /// authority: see [`KafkaServer::identity`].
    #[must_use]
    pub fn asks_for_certificates(mut self) -> Self {
        self.asks_for_certificates = true;
        self.tls()
    }

    /// Listens with TLS too, with a certificate that holds only this name, and not the one that
    /// clients connect to.
    #[must_use]
    pub fn certified_as(mut self, name: &str) -> Self {
        self.certified_as = Some(name.to_owned());
        self.tls()
    }

    /// Requires a password of clients (SASL/PLAIN; SCRAM too, of users that [`KafkaServer::tool`]
    /// created), and checks their permissions (`StandardAuthorizer`): see [`Kafka::ADMIN`] and
    /// [`Kafka::NOBODY`].
    #[must_use]
    pub fn authorized(mut self) -> Self {
        self.authorized = true;
        self
    }

    /// Puts a proxy in front of every broker, and advertises its address to clients: see
    /// [`KafkaServer::proxy`]. Brokers reach each other without it, and so do clients with TLS.
    #[must_use]
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Runs Java with the options of Kafka's own start script: both compilers, the G1 collector and
    /// a heap of 1 GB. For benchmarks: a test's broker lives too briefly for them.
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
    pub fn shared(self) -> Result<KafkaServer, Missing> {
        static SHARED: Shared<KafkaServer> = Shared::new();
        let is_plain = self.wishes.is_plain() && !self.authorized && !self.proxied && !self.as_shipped;
        let given = self.wishes.given(URL).filter(|_| is_plain);
        match given {
            Some(url) => SHARED.get("given".to_owned(), || {
                let server = Arc::new(Server::given(NAME));
                Ok(KafkaServer { server, node: self.node(Role::Alone), given: Some(url) })
            }),
            None if is_plain => SHARED.get(format!("{self:?}"), || {
                let node = self.node(Role::Alone);
                Ok(KafkaServer { server: PART.shared(node.clone())?, node, given: None })
            }),
            None => SHARED.get(format!("{self:?}"), || self.start()),
        }
    }

    /// Starts a server of the test's own, of one broker, which it may stop, kill and pause. It ends
    /// when the handle and its clones are dropped.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the server is unavailable, or did not start.
    pub fn start(self) -> Result<KafkaServer, Missing> {
        self.start_node(Role::Alone)
    }

    /// Starts a cluster of the test's own: three brokers, whose topics have three replicas of which
    /// two must take a write (`min.insync.replicas`), and a controller. It ends when the handle and
    /// its clones are dropped.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the cluster is unavailable, or did not start.
    pub fn start_cluster(self) -> Result<KafkaCluster, Missing> {
        KafkaCluster::start(&self)
    }

    fn node(&self, role: Role) -> Node {
        let Self { wishes, authorized, asks_for_certificates, certified_as, proxied, as_shipped } =
            self.clone();
        let proxy = Arc::default();
        Node { role, wishes, authorized, asks_for_certificates, certified_as, proxied, as_shipped, proxy }
    }

    fn start_node(&self, role: Role) -> Result<KafkaServer, Missing> {
        let node = self.node(role);
        Ok(KafkaServer { server: PART.start(node.clone())?, node, given: None })
    }
}

/// One process of an Apache Kafka. Clones are the same server. [`Server`] holds the methods common
/// to every server.
#[derive(Clone)]
pub struct KafkaServer {
    server: Arc<Server>,
    node: Node,
    given: Option<String>,
}

impl KafkaServer {
    /// Returns its address for clients: `127.0.0.1:9092`; or the one that was given. For a server
    /// that was requested with [`Kafka::proxied`] it is that of the proxy.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.given {
            Some(url) => url.clone(),
            None if self.node.proxied => self.proxy().addr().to_string(),
            None => self.address("127.0.0.1", Listener::Clients),
        }
    }

    /// Returns its address with TLS. For a server that was requested with [`Kafka::tls`].
    ///
    /// # Panics
    ///
    /// If the server was given by URL, or does not speak TLS.
    #[must_use]
    #[track_caller]
    pub fn tls_url(&self) -> String {
        self.address("localhost", Listener::ClientsWithTls)
    }

    /// Returns the files (PEM) of a client certificate that it accepts, and of its key. For a
    /// server that was requested with [`Kafka::asks_for_certificates`].
    #[must_use]
    pub fn identity(&self) -> (PathBuf, PathBuf) {
        (self.home().outside(tls::CLIENT), self.home().outside(tls::CLIENT_KEY))
    }

    /// Returns its address for other brokers: without authentication and without a proxy.
    ///
    /// # Panics
    ///
    /// If the server was given by URL.
    #[must_use]
    #[track_caller]
    pub fn internal_url(&self) -> String {
        self.address("127.0.0.1", Listener::Brokers)
    }

    /// Returns the proxy in front of it. For a server that was requested with [`Kafka::proxied`].
    ///
    /// # Panics
    ///
    /// If there is none.
    #[must_use]
    #[track_caller]
    pub fn proxy(&self) -> Arc<Proxy> {
        let proxy = self.node.proxy.lock().unwrap_or_else(PoisonError::into_inner);
        match proxy.as_ref() {
            Some((_, proxy)) => Arc::clone(proxy),
            None => panic!("{} was not asked for with a proxy", self.name()),
        }
    }

    /// Runs one of Kafka's own tools, such as `org.apache.kafka.tools.TopicCommand`, and returns
    /// its output. It takes seconds: each tool is a Java process of its own.
    ///
    /// # Errors
    ///
    /// The tool's output, if it fails.
    ///
    /// # Panics
    ///
    /// If the server was given by URL.
    pub fn tool(&self, class: &str, args: &[&str]) -> Result<String, String> {
        let home = self.home();
        // Some tools write their failure to standard error, and exit with 0.
        let mut java = home.tree().command(home.user(), "/", "/bin/sh");
        java.args(["-c", "exec java \"$@\" 2>&1", "sh"]);
        java.args(["-Xmx128m", "-XX:TieredStopAtLevel=1"]).args(shared_classes(home));
        java.args(["-cp", JARS, class]).args(args);
        java.run()
    }

    #[track_caller]
    fn address(&self, host: &str, listener: Listener) -> String {
        let Some(index) = self.node.index(listener) else {
            panic!("{} has no listener for {listener:?}", self.name())
        };
        format!("{host}:{}", self.port(index))
    }
}

impl std::fmt::Debug for KafkaServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaServer").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Deref for KafkaServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}
