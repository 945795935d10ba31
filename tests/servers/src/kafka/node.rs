//! One process of Apache Kafka: a broker, a controller, or both at once.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::Signal;

use crate::home::Home;
use crate::part::Part;
use crate::ports::Port;
use crate::prepared::{MADE, Recipe};
use crate::processes::send;
use crate::program::Program;
use crate::proxy::Proxy;
use crate::server::Kind;
use crate::tls;
use crate::wishes::Wishes;

pub(super) const NAME: &str = "Apache Kafka 4.3";
pub(super) const PART: Part = Part {
    name: "kafka",
    release: "bookworm",
    user: "daemon",
    image: Some(("apache/kafka:4.3.1", "OUTBOX_KAFKA_IMAGE")),
};
/// Path of the jars in the prepared folder.
pub(super) const JARS: &str = "/opt/kafka/libs/*";
/// Id of the node that is a cluster's controller; its brokers count from 0.
const CONTROLLER: u32 = 100;
/// Id of the node that is a whole single-node cluster.
const ALONE: u32 = 1;
/// Name of the cluster; any name will do.
const CLUSTER: &str = "b3V0Ym94LWthZmthLXRlcw";

/// Internal topics are small, as a test program has few consumers, and members of the new protocol
/// ask for their partitions twice a second. The cleaner would take half of the heap for itself.
const SETTINGS: &str = "
controller.listener.names=CONTROLLER
num.partitions=4
auto.create.topics.enable=false
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
group.consumer.min.heartbeat.interval.ms=500
group.consumer.heartbeat.interval.ms=500
log.cleaner.dedupe.buffer.size=8388608
";
const ONE_COPY: &str = "
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
";
/// Every node has these, as the controller creates topics. A broker that was killed loses its
/// partitions after six seconds.
const THREE_COPIES: &str = "
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=1000
";
/// A user has only the permissions that were granted. Brokers and the controller reach each other
/// without a password, by listeners of their own.
const AUTHORIZED: &str = "
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:admin
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
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
/// Run by `sh`. A node that was formatted once is not formatted again: that takes a second. A
/// test's broker lives too briefly for the better of the two compilers: with the other one it
/// starts with half of the work.
const FORMAT: &str = "java -Xmx64m -XX:TieredStopAtLevel=1 -cp \"$JARS\" \
    kafka.tools.StorageTool format --ignore-formatted -t \"$CLUSTER\" -c server.properties >&2";
const JAVA: &str = "java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC";
/// Options of `kafka-server-start.sh`.
const JAVA_AS_SHIPPED: &str =
    "java -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 -Xms1G -Xmx1G";
const KAFKA: &str =
    "-Dlog4j2.configurationFile=logging.properties -cp \"$JARS\" kafka.Kafka server.properties";
/// Ends a broker once it serves, within five minutes: it saves its classes then.
const MAKE: &str = "tries=3000
    until grep -q 'Kafka Server started' log; do
      tries=$((tries - 1))
      [ $tries -gt 0 ] && kill -0 $! || { cat log >&2 && exit 1; }
      sleep 0.1
    done
    kill $!; wait $! || :";
/// File of a broker's classes, as Java has them in memory: with them it starts in half of the time.
const CLASSES: &str = "classes.jsa";

/// Role of a node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// Broker and controller at once, alone.
    Alone,
    /// Holds the metadata of a cluster.
    Controller,
    /// One broker of a cluster, with the port of its controller.
    Broker { number: u32, controller: u16 },
}

/// Users of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listener {
    Clients,
    ClientsWithTls,
    Brokers,
    Controller,
}

impl Listener {
    fn name(self) -> &'static str {
        match self {
            Self::Clients => "CLIENT",
            Self::ClientsWithTls => "TLS",
            Self::Brokers => "INTERNAL",
            Self::Controller => "CONTROLLER",
        }
    }
}

/// The proxy in front of the clients' listener, with the port behind it. There is none before that
/// is known, which is when the node is first started.
pub(super) type InFront = Option<(u16, Arc<Proxy>)>;

/// Settings requested for a node. Clones are the same node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) role: Role,
    pub(super) wishes: Wishes,
    pub(super) authorized: bool,
    pub(super) asks_for_certificates: bool,
    pub(super) certified_as: Option<String>,
    pub(super) proxied: bool,
    pub(super) as_shipped: bool,
    /// Set by the node when it starts, read by its handle.
    pub(super) proxy: Arc<Mutex<InFront>>,
}

impl Node {
    /// A node without special settings.
    pub(super) fn plain(role: Role) -> Self {
        Self {
            role,
            wishes: Wishes::default(),
            authorized: false,
            asks_for_certificates: false,
            certified_as: None,
            proxied: false,
            as_shipped: false,
            proxy: Arc::default(),
        }
    }

    /// Returns the listeners in the order of the node's ports.
    fn listeners(&self) -> Vec<Listener> {
        let mut listeners = match self.role {
            Role::Alone => vec![Listener::Clients, Listener::Brokers, Listener::Controller],
            Role::Controller => return vec![Listener::Controller],
            Role::Broker { .. } => vec![Listener::Clients, Listener::Brokers],
        };
        if self.wishes.tls {
            listeners.push(Listener::ClientsWithTls);
        }
        listeners
    }

    /// Returns the index of a listener among the node's ports.
    pub(super) fn index(&self, listener: Listener) -> Option<usize> {
        self.listeners().iter().position(|is| *is == listener)
    }

    fn protocol(&self, listener: Listener) -> &'static str {
        match (listener, self.authorized) {
            (Listener::Clients, true) => "SASL_PLAINTEXT",
            (Listener::ClientsWithTls, true) => "SASL_SSL",
            (Listener::ClientsWithTls, false) => "SSL",
            _ => "PLAINTEXT",
        }
    }

    /// Returns the proxy in front of a port of this node; always the same while the port is.
    fn proxy_to(&self, port: u16) -> Arc<Proxy> {
        let mut proxy = self.proxy.lock().unwrap_or_else(PoisonError::into_inner);
        match proxy.as_ref() {
            Some((behind, proxy)) if *behind == port => Arc::clone(proxy),
            _ => {
                let made = Arc::new(Proxy::to(&format!("127.0.0.1:{port}")));
                *proxy = Some((port, Arc::clone(&made)));
                made
            }
        }
    }

    fn number(&self) -> u32 {
        match self.role {
            Role::Alone => ALONE,
            Role::Controller => CONTROLLER,
            Role::Broker { number, .. } => number,
        }
    }

    /// Returns the file that makes a data folder this node's, though it is a copy of another's:
    /// brokers of a cluster may not share one.
    fn identity(&self) -> String {
        let number = self.number();
        format!(
            "version=1\ncluster.id={CLUSTER}\nnode.id={number}\ndirectory.id=b3V0Ym94LW5vZGUt{number:05}A\n"
        )
    }

    fn properties(&self, home: &Home, ports: &[u16]) -> String {
        let listeners = self.listeners();
        let port = |listener: Listener| {
            let index = listeners.iter().position(|is| *is == listener);
            index.and_then(|index| ports.get(index)).copied().unwrap_or_default()
        };
        let joined = |separator: &str, item: &dyn Fn(&Listener) -> Option<String>| -> String {
            listeners.iter().filter_map(item).collect::<Vec<_>>().join(separator)
        };
        let listens = joined(",", &|is| Some(format!("{}://127.0.0.1:{}", is.name(), port(*is))));
        let advertised = joined(",", &|is| match is {
            Listener::Controller => None,
            Listener::Clients if self.proxied => {
                Some(format!("CLIENT://{}", self.proxy_to(port(*is)).addr()))
            }
            // The name in the certificate, too.
            Listener::ClientsWithTls => Some(format!("TLS://localhost:{}", port(*is))),
            _ => Some(format!("{}://127.0.0.1:{}", is.name(), port(*is))),
        });
        // A broker needs the controller's listener, which it does not have itself.
        let all = [Listener::Clients, Listener::ClientsWithTls, Listener::Brokers, Listener::Controller];
        let protocols = all.map(|is| format!("{}:{}", is.name(), self.protocol(is))).join(",");
        let number = self.number();
        let (roles, voter, copies) = match self.role {
            Role::Alone => ("broker,controller", (ALONE, port(Listener::Controller)), ONE_COPY),
            Role::Controller => ("controller", (CONTROLLER, port(Listener::Controller)), THREE_COPIES),
            Role::Broker { controller, .. } => ("broker", (CONTROLLER, controller), THREE_COPIES),
        };
        let mut lines = format!(
            "{SETTINGS}{copies}process.roles={roles}\nnode.id={number}\nlisteners={listens}\n\
             listener.security.protocol.map={protocols}\ncontroller.quorum.voters={}@127.0.0.1:{}\nlog.dirs={}\n",
            voter.0,
            voter.1,
            home.inside("data"),
        );
        if !advertised.is_empty() {
            lines.push_str(&format!(
                "advertised.listeners={advertised}\ninter.broker.listener.name=INTERNAL\n"
            ));
        }
        if self.authorized {
            lines.push_str(AUTHORIZED);
            let users = super::USERS.map(|(name, password)| format!(" user_{name}=\"{password}\""));
            for listener in ["client", "tls"] {
                for mechanism in ["256", "512"] {
                    lines.push_str(&format!(
                        "listener.name.{listener}.scram-sha-{mechanism}.sasl.jaas.config=\
                         org.apache.kafka.common.security.scram.ScramLoginModule required;\n"
                    ));
                }
                lines.push_str(&format!(
                    "listener.name.{listener}.plain.sasl.jaas.config=\
                     org.apache.kafka.common.security.plain.PlainLoginModule required{};\n",
                    users.concat()
                ));
            }
        }
        if self.wishes.tls {
            lines.push_str(&format!(
                "listener.name.tls.ssl.keystore.type=PEM\nlistener.name.tls.ssl.keystore.location={}\n",
                home.inside(tls::BOTH)
            ));
        }
        if self.asks_for_certificates {
            lines.push_str(&format!(
                "listener.name.tls.ssl.client.auth=required\nlistener.name.tls.ssl.truststore.type=PEM\n\
                 listener.name.tls.ssl.truststore.location={}\n",
                home.inside(tls::AUTHORITIES)
            ));
        }
        lines.push_str(&self.wishes.lines());
        lines
    }
}

/// A script in a home, which finds the jars.
fn shell(home: &Home, script: &str) -> Program {
    let mut command = home.tree().command(home.user(), &home.inside(""), "/bin/sh");
    command.env("JARS", JARS).env("CLUSTER", CLUSTER).args(["-c", script]);
    command
}

/// Returns Java's option for classes that are in a home.
pub(super) fn shared_classes(home: &Home) -> Option<String> {
    // An absolute path, as tools have another working folder.
    home.outside(CLASSES).exists().then(|| format!("-XX:SharedArchiveFile={}", home.inside(CLASSES)))
}

/// Returns a formatted data folder, and the classes of a broker that has served.
fn prepared(home: &Home) -> Result<Option<PathBuf>, String> {
    let programs = [format!("/etc/made-{}", PART.name), JARS.trim_end_matches("/*").to_owned()];
    let programs = programs.each_ref().map(String::as_str);
    let settings = [FORMAT, JAVA, MAKE, SETTINGS, ONE_COPY].concat();
    let recipe = Recipe { part: PART.name, user: PART.user, programs: &programs, settings: &settings };
    // A second attempt: another program may take a port before the broker does.
    recipe.folder(home.tree(), make).or_else(|_| recipe.folder(home.tree(), make))
}

fn make(home: &Home) -> Result<(), String> {
    let node = Node::plain(Role::Alone);
    let ports = Port::take_some(node.listeners().len())?;
    let numbers: Vec<u16> = ports.iter().map(Port::number).collect();
    home.write("server.properties", &node.properties(home, &numbers))?;
    home.write("logging.properties", LOGGING)?;
    let script = [
        "set -e",
        FORMAT,
        &format!("cp -a data {MADE}/data"),
        &format!("{JAVA} -XX:ArchiveClassesAtExit={MADE}/{CLASSES} {KAFKA} >log &"),
        MAKE,
        &format!("[ -e {MADE}/{CLASSES} ]"),
    ];
    shell(home, &script.join("\n")).run().map(drop)
}

impl Kind for Node {
    fn name(&self) -> String {
        match self.role {
            Role::Alone => NAME.to_owned(),
            Role::Controller => format!("{NAME}, controller"),
            Role::Broker { number, .. } => format!("{NAME}, broker {number}"),
        }
    }

    fn version_is_behind(&self) -> &'static str {
        "Kafka version: "
    }

    fn ports(&self) -> usize {
        self.listeners().len()
    }

    fn initialise(&self, home: &Home) -> Result<(), String> {
        if let Some(made) = prepared(home)? {
            home.copy(&made.join("data"), "data")?;
            home.link(&made.join(CLASSES), CLASSES)?;
            home.write("data/meta.properties", &self.identity())?;
        }
        match &self.certified_as {
            Some(name) => tls::write_of(home, &[name])?,
            None if self.wishes.tls => tls::write(home)?,
            None => {}
        }
        home.write("logging.properties", LOGGING)
    }

    fn command(&self, home: &Home, ports: &[u16]) -> Result<Program, String> {
        home.write("server.properties", &self.properties(home, ports))?;
        // A cluster runs four at once, with little load.
        let heap = match self.role {
            Role::Alone => "-Xms128m -Xmx384m",
            Role::Controller => "-Xms32m -Xmx128m",
            Role::Broker { .. } => "-Xms64m -Xmx256m",
        };
        let java = match self.as_shipped {
            true => JAVA_AS_SHIPPED.to_owned(),
            false => [JAVA, heap, &shared_classes(home).unwrap_or_default()].join(" "),
        };
        let serve = format!("[ -e data/meta.properties ] || {FORMAT} || exit 1\nexec {java} {KAFKA}");
        Ok(shell(home, &serve))
    }

    fn is_ready(&self, _home: &Home, ports: &[u16], said: &str) -> bool {
        // A broker logs it when the controller lets it serve. No other process writes to this log.
        let listens =
            ports.first().is_some_and(|port| std::net::TcpStream::connect(("127.0.0.1", *port)).is_ok());
        said.contains("Kafka Server started") && listens
    }

    fn ask_to_stop(&self, _home: &Home, pid: u32) {
        send(pid, Signal::TERM);
    }
}
