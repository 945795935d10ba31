//! Apache Kafka for tests.

use std::ops::Deref;
use std::process::Command;
use std::sync::Arc;

use rustix::process::Signal;

use crate::home::Home;
use crate::missing::Missing;
use crate::part::Part;
use crate::processes::send;
use crate::server::{Kind, Server, Shared};
use crate::wishes::Wishes;

const NAME: &str = "Apache Kafka 4.3";
const PART: Part = Part { name: "kafka", release: "bookworm", user: "daemon" };
const URL: &str = "OUTBOX_KAFKA_URL";
/// Where the jars are in the prepared folder.
const JARS: &str = "/opt/kafka/libs/*";
/// The node is broker and controller at once. Internal topics are small, as a test program has few consumers, and
/// members of the new protocol ask for their partitions twice a second.
const SETTINGS: &str = "
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
num.partitions=4
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.consumer.min.heartbeat.interval.ms=500
group.consumer.heartbeat.interval.ms=500
";
const LOGGING: &str = "
status=error
appender.console.type=Console
appender.console.name=out
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1}: %m%n
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
";
/// Any will do: it is the cluster's name.
const CLUSTER: &str = "b3V0Ym94LWthZmthLXRlcw";
/// Run by `sh`. Formatting what is formatted changes nothing.
const SERVE: &str = "java -Xmx128m -cp \"$JARS\" kafka.tools.StorageTool format --ignore-formatted -t \"$CLUSTER\" -c server.properties \
    && exec java -Xms128m -Xmx384m -XX:+UseSerialGC -Dlog4j2.configurationFile=logging.properties -cp \"$JARS\" kafka.Kafka server.properties";

/// A wish for an Apache Kafka of one broker, without TLS and passwords.
#[derive(Clone, Debug)]
pub struct Kafka {
    wishes: Wishes,
}

impl Kafka {
    /// Apache Kafka 4.3; by URL what `OUTBOX_KAFKA_URL` names, such as `127.0.0.1:9092`.
    #[must_use]
    pub fn newest() -> Self {
        Self { wishes: Wishes::default() }
    }

    /// Adds a line to `server.properties`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.wishes.config.push(line.to_owned());
        self
    }

    /// The server that all tests of this program share: the one that the URL in the environment names, or one that the first test starts.
    ///
    /// # Errors
    ///
    /// [`Missing`]: it can't be had, or did not start.
    pub fn shared(self) -> Result<KafkaServer, Missing> {
        static SHARED: Shared<KafkaServer> = Shared::new();
        match self.wishes.given(URL) {
            Some(url) => SHARED.get("given".to_owned(), || {
                Ok(KafkaServer { server: Arc::new(Server::given(NAME)), given: Some(url) })
            }),
            None => SHARED.get(format!("{self:?}"), || self.start()),
        }
    }

    /// A server of the test's own, which it may stop, kill and pause. It ends when the handle and its clones are dropped.
    ///
    /// # Errors
    ///
    /// [`Missing`]: it can't be had, or did not start.
    pub fn start(self) -> Result<KafkaServer, Missing> {
        Ok(KafkaServer { server: PART.start(self)?, given: None })
    }
}

impl Kind for Kafka {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn ports(&self) -> usize {
        2
    }

    fn initialise(&self, home: &Home) -> Result<(), String> {
        home.write("logging.properties", LOGGING)
    }

    fn command(&self, home: &Home, ports: &[u16]) -> Result<Command, String> {
        let port = |index: usize| ports.get(index).copied().unwrap_or_default();
        let (broker, controller) = (port(0), port(1));
        let mut settings = format!(
            "{SETTINGS}listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{broker}\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\nlog.dirs={}\n",
            home.inside("data"),
        );
        settings.push_str(&self.wishes.lines());
        home.write("server.properties", &settings)?;
        let mut command = home.tree().command(home.user(), &home.inside(""), "/bin/sh");
        command.env("JARS", JARS).env("CLUSTER", CLUSTER).args(["-c", SERVE]);
        Ok(command)
    }

    fn is_ready(&self, _home: &Home, ports: &[u16], said: &str) -> bool {
        let listens =
            ports.first().is_some_and(|port| std::net::TcpStream::connect(("127.0.0.1", *port)).is_ok());
        said.contains("Kafka Server started") && listens
    }

    fn ask_to_stop(&self, _home: &Home, pid: u32) {
        send(pid, Signal::TERM);
    }
}

/// An Apache Kafka. Clones are the same server. What every server can do is in [`Server`].
#[derive(Clone)]
pub struct KafkaServer {
    server: Arc<Server>,
    given: Option<String>,
}

impl KafkaServer {
    /// Its address, as clients want it: `127.0.0.1:9092`; or the one that was given.
    #[must_use]
    pub fn url(&self) -> String {
        self.given.clone().unwrap_or_else(|| format!("127.0.0.1:{}", self.port(0)))
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
