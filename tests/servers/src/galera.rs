//! A Galera cluster for tests: nodes of MariaDB, each of which takes writes.

use std::sync::Arc;
use std::time::Duration;

use crate::given;
use crate::home::Home;
use crate::missing::Missing;
use crate::mysql::{MySql, MySqlServer};
use crate::ports::Port;
use crate::program::Program;
use crate::server::Shared;
use crate::until::until;

/// Number of nodes: of two, neither would continue without the other.
const NODES: usize = 3;
const NAME: &str = "a Galera cluster";
/// Time limit for nodes to get in sync. On a quiet machine it takes two seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// All nodes begin with copies of one data folder, so that missing writes can always be sent to a
/// node one by one.
const SETTINGS: &str = "
wsrep-on = ON
wsrep-provider = /usr/lib/galera/libgalera_smm.so
wsrep-cluster-name = outbox
wsrep-node-address = 127.0.0.1
wsrep-sst-method = records
wsrep-slave-threads = 2
binlog-format = ROW
default-storage-engine = InnoDB
innodb-autoinc-lock-mode = 2
";
/// A node that was killed or isolated is given up after two seconds.
const PROVIDER: &str = "gcache.size=32M; evs.keepalive_period=PT0.3S; evs.suspect_timeout=PT2S; evs.inactive_timeout=PT4S; \
                        evs.inactive_check_period=PT0.3S; evs.install_timeout=PT4S; gmcast.peer_timeout=PT2S";

/// Run by `sh`, with the server's program and the arguments that start the cluster. A node that was
/// killed needs its last position: it is recovered from its tables. The server looks for the
/// program of `records` in its path.
const SERVE: &str = r#"
export PATH="$PWD:$PATH"
[ -e joined ] || { touch joined && exec "$0" --defaults-file=my.cnf $1; }
"$0" --defaults-file=my.cnf --wsrep-recover --log-error="$PWD/recovered.err"
at=$(sed -n 's/.*Recovered position: *//p' recovered.err | tail -n 1)
rm -f recovered.err
exec "$0" --defaults-file=my.cnf ${at:+--wsrep-start-position="$at"}
"#;

/// Programs that a joining node and its donor run beside themselves, with the path of a file as
/// their address. All nodes have the same tables, so they only exchange where the records begin. A
/// node that lacks more than the records hold fails.
const TRANSFER: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in --role) role=$2 ;; --address) address=$2 ;; --gtid) gtid=$2 ;; --bypass) bypass=yes ;; esac
  shift
done
if [ "$role" = joiner ]; then
  rm -f position
  echo "ready $PWD/position"
  while [ ! -e position ]; do sleep 0.02; done
  cat position
else
  [ "$bypass" = yes ] || { echo 'it lacks more than there are records of' >&2 && exit 1; }
  echo "$gtid" >"$address.part" && mv "$address.part" "$address" && echo "done $gtid"
fi
"#;

/// Request for a Galera cluster: three nodes of MariaDB 10.11, on each the user `root`, from
/// 127.0.0.1, without a password.
#[derive(Clone, Debug, Default)]
pub struct Galera {
    config: Vec<String>,
}

impl Galera {
    /// Galera 4 with MariaDB 10.11.
    #[must_use]
    pub fn newest() -> Self {
        Self::default()
    }

    /// Adds a line to the section `mysqld` of each node's `my.cnf`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.config.push(line.to_owned());
        self
    }

    /// Returns the cluster that all tests of this program share.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the cluster is unavailable, or did not start.
    pub fn shared(self) -> Result<GaleraCluster, Missing> {
        static SHARED: Shared<GaleraCluster> = Shared::new();
        SHARED.get(format!("{self:?}"), || self.start())
    }

    /// Starts a cluster of the test's own, whose nodes it may stop, kill and pause. It ends when
    /// the handle and its clones are dropped.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the cluster is unavailable, or did not start.
    pub fn start(self) -> Result<GaleraCluster, Missing> {
        let ports = || Port::take_some(NODES).map_err(|reason| Missing::failed(NAME, reason));
        let (group, transfer) = (ports()?, ports()?);
        let members = group.iter().map(|port| format!("127.0.0.1:{}", port.number())).collect::<Vec<_>>();
        // One after another: each joining node receives the earlier writes from a node in sync.
        let mut nodes = Vec::with_capacity(NODES);
        for (at, (group, transfer)) in group.into_iter().zip(transfer).enumerate() {
            let member = Group {
                begins: at == 0,
                members: members.clone(),
                port: group.number(),
                transfer: transfer.number(),
            };
            let node = self.config.iter().fold(MySql::of(member), |node, line| node.config(line));
            nodes.push(Node { server: node.start()?, _ports: [group, transfer] });
        }
        let cluster = GaleraCluster { nodes: Arc::new(nodes) };
        cluster.in_step(&[0, 1, 2]).map_err(|reason| Missing::failed(NAME, reason))?;
        Ok(cluster)
    }
}

/// A node's knowledge of its cluster.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// True if the node starts the cluster.
    begins: bool,
    /// The addresses of all nodes among themselves.
    members: Vec<String>,
    /// Its own port.
    port: u16,
    /// The port on which it receives missing writes.
    transfer: u16,
}

impl Group {
    /// Lines of its configuration.
    pub(crate) fn lines(&self) -> String {
        let Self { members, port, transfer, .. } = self;
        format!(
            "{SETTINGS}wsrep-node-name = node-{port}\nwsrep-cluster-address = gcomm://{}\n\
             wsrep-provider-options = \"base_host=127.0.0.1; base_port={port}; gmcast.listen_addr=tcp://127.0.0.1:{port}; \
             ist.recv_addr=127.0.0.1:{transfer}; {PROVIDER}\"\n",
            members.join(",")
        )
    }

    /// Returns the command that runs it in the foreground.
    pub(crate) fn command(&self, home: &Home, server: &str) -> Program {
        let mut command = home.tree().command(home.user(), &home.inside(""), "/bin/sh");
        command.args(["-c", SERVE, server, if self.begins { "--wsrep-new-cluster" } else { "" }]);
        command
    }
}

/// Writes the program that nodes run when one of them joins.
pub(crate) fn write(home: &Home) -> Result<(), String> {
    home.write_program("wsrep_sst_records", TRANSFER)
}

#[derive(Debug)]
struct Node {
    server: MySqlServer,
    _ports: [Port; 2],
}

/// A Galera cluster. Clones are the same one.
#[derive(Clone, Debug)]
pub struct GaleraCluster {
    nodes: Arc<Vec<Node>>,
}

impl GaleraCluster {
    /// Returns the number of nodes, dead ones included.
    #[must_use]
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// Returns a node, from 0 on. A test may stop, kill and pause it, and start it again while
    /// others run: then see [`until_in_step`](Self::until_in_step).
    ///
    /// # Panics
    ///
    /// If there are fewer nodes.
    #[must_use]
    #[track_caller]
    pub fn node(&self, number: usize) -> &MySqlServer {
        let node = self.nodes.get(number);
        &node
            .unwrap_or_else(|| panic!("the cluster has no node {number}: they are 0 to {}", NODES - 1))
            .server
    }

    /// Creates an empty database, and returns its URL on each node. No other test uses it.
    ///
    /// # Panics
    ///
    /// If a node does not create it.
    #[must_use]
    #[track_caller]
    pub fn fresh_database(&self) -> Vec<String> {
        let url = self.node(0).fresh_database();
        let name = url.rsplit('/').next().unwrap_or_default();
        let urls = self.nodes.iter().map(|node| given::with_path(&node.server.url(), name));
        let urls: Vec<String> = urls.collect();
        for node in self.nodes.iter() {
            // A node that lags has not created it yet.
            node.server
                .query(&node.server.url(), &format!("set wsrep_sync_wait = 15; show create database {name}"));
        }
        urls
    }

    /// Isolates a node from the others, though not from its clients: it has no quorum, and the
    /// others continue without it. Returns when all nodes know.
    ///
    /// # Panics
    ///
    /// If the nodes do not notice.
    #[track_caller]
    pub fn isolate(&self, number: usize) {
        self.set_isolated(number, true);
        let others: Vec<usize> = (0..self.size()).filter(|other| *other != number).collect();
        self.expect(
            &format!("isolate node {number}"),
            self.until(|| {
                status(self.node(number), "wsrep_ready").is_some_and(|ready| ready == "OFF")
                    && self.are_in_step(&others)
            }),
        );
    }

    /// Ends the isolation of a node that was [isolated](Self::isolate); returns when all are in
    /// sync.
    ///
    /// # Panics
    ///
    /// If the node does not return.
    #[track_caller]
    pub fn rejoin(&self, number: usize) {
        self.set_isolated(number, false);
        let all: Vec<usize> = (0..self.size()).collect();
        self.until_in_step(&all);
    }

    /// Isolates a node or ends its isolation, and waits for nothing.
    ///
    /// # Panics
    ///
    /// If the node refuses.
    #[track_caller]
    pub fn set_isolated(&self, number: usize, isolated: bool) {
        let node = self.node(number);
        let isolated = u8::from(isolated);
        node.query(&node.url(), &format!("set global wsrep_provider_options = 'gmcast.isolate={isolated}'"));
    }

    /// Waits until these nodes, and no others, are the cluster and take writes.
    ///
    /// # Panics
    ///
    /// If they do not get there.
    #[track_caller]
    pub fn until_in_step(&self, nodes: &[usize]) {
        self.expect("get in step", self.in_step(nodes));
    }

    fn in_step(&self, nodes: &[usize]) -> Result<(), String> {
        self.until(|| self.are_in_step(nodes))
    }

    fn are_in_step(&self, nodes: &[usize]) -> bool {
        nodes.iter().all(|number| {
            let node = self.node(*number);
            let says = |name, value: &str| status(node, name).is_some_and(|said| said == value);
            says("wsrep_cluster_size", &nodes.len().to_string())
                && says("wsrep_cluster_status", "Primary")
                && says("wsrep_local_state_comment", "Synced")
                && says("wsrep_ready", "ON")
        })
    }

    fn until(&self, done: impl Fn() -> bool) -> Result<(), String> {
        until(PATIENCE, done)
            .then_some(())
            .ok_or_else(|| format!("its nodes do not agree within {PATIENCE:?}"))
    }

    #[track_caller]
    fn expect(&self, what: &str, result: Result<(), String>) {
        if let Err(reason) = result {
            panic!("{NAME}: {what}: {reason}");
        }
    }
}

/// One line of a node's status.
fn status(node: &MySqlServer, name: &str) -> Option<String> {
    let said = node.try_query(&node.url(), &format!("show status like '{name}'")).ok()?;
    said.split('\t').nth(1).map(str::to_owned)
}
