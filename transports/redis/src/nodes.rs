//! Connections to all primaries of a cluster, which together answer like one server.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use redis::aio::MultiplexedConnection;
use redis::{Client, ConnectionAddr, ConnectionInfo, Pipeline, Value};

use crate::connection::{plain, refusal};
use crate::error::Error;
use crate::slots::{Address, Slots};

/// The primaries as they were when the connections were made. Never repaired: when slots have
/// moved, all are made anew.
pub(crate) struct Nodes {
    slots: Slots,
    /// In the order of the nodes of `slots`.
    connections: Vec<MultiplexedConnection>,
}

impl Nodes {
    /// Asks one node for the others, and connects to all primaries.
    pub(crate) async fn connect(seed: &Client) -> Result<Self, Error> {
        let mut asked = plain(seed).await?;
        let mut question = Pipeline::new();
        question.cmd("CLUSTER").arg("SLOTS");
        let answers = asked.send_packed_commands(&question, 0, 1).await?;
        let answer = answers.first().unwrap_or(&Value::Nil);
        if let Some(refused) = refusal(answer) {
            let words = format!(
                "the server is not a cluster node; build the transport without cluster(): {}",
                refused.words
            );
            return Err(Error { class: "configuration", words, ..refused });
        }
        let info = seed.get_connection_info();
        let slots = Slots::read(answer, &host(info))?;
        if slots.nodes.is_empty() {
            return Err(Error::route(
                "cluster-down",
                "the cluster has no slots assigned; check CLUSTER INFO",
            ));
        }
        let connections = slots.nodes.iter().map(|address| async {
            let client = Client::open(at(info, address))?;
            plain(&client).await
        });
        let connections = try_join_all(connections).await?;
        Ok(Self { slots, connections })
    }

    /// Sends each command to the node of its key, in order on each node, and gives the answers in
    /// the order of the commands.
    ///
    /// # Errors
    ///
    /// When one node fails, nothing is known of what was sent to any.
    pub(crate) async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, Error> {
        let mut dealt: BTreeMap<usize, (Pipeline, Vec<usize>)> = BTreeMap::new();
        let mut node = 0;
        for (place, command) in pipeline.cmd_iter().enumerate() {
            node = self.slots.node_of(command, node)?;
            let (commands, places) = dealt.entry(node).or_insert_with(|| (Pipeline::new(), Vec::new()));
            commands.add_command(command.clone());
            places.push(place);
        }
        let asked = dealt.iter().map(|(node, (commands, _))| async move {
            let connection = self.connections.get(*node).ok_or_else(|| Error::unexpected("CLUSTER SLOTS"))?;
            let answers = connection.clone().send_packed_commands(commands, 0, commands.len()).await?;
            Ok::<_, Error>(answers)
        });
        let answers = try_join_all(asked).await?;
        let mut in_order = vec![Value::Nil; pipeline.len()];
        for ((_, places), answers) in dealt.values().zip(answers) {
            for (place, answer) in places.iter().zip(answers) {
                in_order[*place] = answer;
            }
        }
        Ok(in_order)
    }

    /// Returns the addresses of the nodes, in their order.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = String> + '_ {
        self.slots.nodes.iter().map(|(host, port)| format!("{host}:{port}"))
    }

    /// Sends the same to every node, and gives the answers node by node.
    pub(crate) async fn send_to_all(&self, pipeline: &Pipeline) -> Result<Vec<Vec<Value>>, Error> {
        let asked = self.connections.iter().map(|connection| async {
            Ok(connection.clone().send_packed_commands(pipeline, 0, pipeline.len()).await?)
        });
        try_join_all(asked).await
    }
}

fn host(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => String::new(),
    }
}

/// Returns the address of another node: as the one that was named, but for its host and port.
fn at(info: &ConnectionInfo, (host, port): &Address) -> ConnectionInfo {
    let (host, port) = (host.clone(), *port);
    let addr = match info.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(addr)
}
