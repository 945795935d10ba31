//! A Redis Cluster for tests: three primaries.

use std::sync::Arc;
use std::time::Duration;

use crate::fresh;
use crate::missing::Missing;
use crate::ports::Port;
use crate::redis::{Redis, RedisServer};
use crate::server::Shared;
use crate::until::until;

/// Number of primaries, which share the slots.
const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;
/// Time limit for nodes to agree on their identities. On a quiet machine it takes two seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// Request for a Redis Cluster of three primaries without a password, which keep no messages on
/// disk.
#[derive(Clone, Debug)]
pub struct RedisCluster {
    node: Redis,
}

impl RedisCluster {
    /// Redis 8.
    #[must_use]
    pub fn newest() -> Self {
        Self { node: Redis::newest() }
    }

    /// Adds a line to the `redis.conf` of each node.
    #[must_use]
    pub fn config(self, line: &str) -> Self {
        Self { node: self.node.config(line) }
    }

    /// Returns the cluster that all tests of this program share.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the cluster is unavailable, or did not start.
    pub fn shared(self) -> Result<RedisClusterServer, Missing> {
        static SHARED: Shared<RedisClusterServer> = Shared::new();
        SHARED.get(format!("{self:?}"), || self.start())
    }

    /// Starts a cluster of the test's own. It ends when the handle and its clones are dropped.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the cluster is unavailable, or did not start.
    pub fn start(self) -> Result<RedisClusterServer, Missing> {
        let nodes = (0..PRIMARIES).map(|_| self.node()).collect::<Result<Vec<_>, _>>()?;
        let cluster = RedisClusterServer { nodes: Arc::new(nodes) };
        cluster.join().map_err(|reason| Missing::failed("a Redis Cluster", reason))?;
        Ok(cluster)
    }

    fn node(&self) -> Result<Node, Missing> {
        // The nodes speak to each other on a port of their own. Redis would take one above those
        // that are ours.
        let bus = Port::take().map_err(|reason| Missing::failed("a Redis Cluster", reason))?;
        let node = self.node.clone().config("cluster-enabled yes").config("cluster-node-timeout 5000");
        let server = node.config(&format!("cluster-port {}", bus.number())).start()?;
        Ok(Node { server, bus })
    }
}

#[derive(Debug)]
struct Node {
    server: RedisServer,
    bus: Port,
}

/// A Redis Cluster. Clones are the same one.
#[derive(Clone, Debug)]
pub struct RedisClusterServer {
    nodes: Arc<Vec<Node>>,
}

impl RedisClusterServer {
    /// Returns the URL of its first node.
    #[must_use]
    pub fn url(&self) -> String {
        self.node(0).url()
    }

    /// Returns the URLs of all nodes.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.server.url()).collect()
    }

    /// Returns one of its three nodes, from 0 on.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    #[must_use]
    #[track_caller]
    pub fn node(&self, index: usize) -> &RedisServer {
        &self.nodes[index].server
    }

    /// Returns a prefix of names that no other test uses.
    #[must_use]
    pub fn fresh_prefix(&self) -> String {
        fresh::name()
    }

    /// Moves the slot of a key, with all keys in it, to another node; returns when all nodes know.
    ///
    /// # Panics
    ///
    /// If the nodes refuse.
    #[track_caller]
    pub fn move_slot(&self, key: &str, to: usize) {
        let slot = self.node(0).cli(&["CLUSTER", "KEYSLOT", key]);
        let ids: Vec<String> = self.nodes.iter().map(|node| node.server.cli(&["CLUSTER", "MYID"])).collect();
        let from = self.owner(key);
        if from == to {
            return;
        }
        self.node(to).cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[from]]);
        self.node(from).cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[to]]);
        let port = self.node(to).tcp_port().to_string();
        loop {
            let keys = self.node(from).cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
            let keys: Vec<&str> = keys.lines().collect();
            if keys.is_empty() {
                break;
            }
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "60000", "KEYS"];
            migrate.extend(keys);
            self.node(from).cli(&migrate);
        }
        // The new owner first: otherwise the slot would have no owner for a moment.
        for at in [to].into_iter().chain(0..PRIMARIES) {
            self.node(at).cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids[to]]);
        }
        assert_eq!(self.owner(key), to, "slot {slot} did not move");
    }

    /// Returns the node that owns the slot of a key: the others would redirect a client to it.
    ///
    /// # Panics
    ///
    /// If no node owns it.
    #[must_use]
    #[track_caller]
    pub fn owner(&self, key: &str) -> usize {
        let owner = self.nodes.iter().position(|node| node.server.try_cli(&["EXISTS", key]).is_ok());
        owner.unwrap_or_else(|| panic!("no node has the slot of {key}"))
    }

    fn join(&self) -> Result<(), String> {
        let share = SLOTS.div_ceil(PRIMARIES);
        for (at, node) in self.nodes.iter().enumerate() {
            // Each has its own epoch, so that no node has to yield to another.
            let epoch = (at + 1).to_string();
            node.server.try_cli(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch])?;
            let (first, last) = (at * share, ((at + 1) * share).min(SLOTS) - 1);
            node.server.try_cli(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
        }
        for node in self.nodes.iter().skip(1) {
            let (port, bus) = (node.server.tcp_port().to_string(), node.bus.number().to_string());
            self.node(0).try_cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
        }
        if !until(PATIENCE, || self.nodes.iter().all(|node| knows_all(&node.server))) {
            return Err(format!("its nodes do not agree within {PATIENCE:?}"));
        }
        Ok(())
    }
}

fn knows_all(node: &RedisServer) -> bool {
    let Ok(info) = node.try_cli(&["CLUSTER", "INFO"]) else { return false };
    let says = |line: &str| info.lines().any(|said| said.trim() == line);
    says("cluster_state:ok")
        && says(&format!("cluster_slots_ok:{SLOTS}"))
        && says(&format!("cluster_known_nodes:{PRIMARIES}"))
        && says(&format!("cluster_size:{PRIMARIES}"))
}
