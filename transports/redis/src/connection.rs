//! Connections: made when they are needed, given up when anything is in doubt, never repaired.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline, ServerError, Value};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::config::Config;
use crate::error::Error;
use crate::nodes::Nodes;
use crate::routing::Routing;
use crate::scripts::Scripts;

/// Address of the server, and what was learnt of it.
pub(crate) struct Server {
    /// The server; of a cluster, the nodes that are asked for the others, in turn.
    seeds: Vec<Client>,
    /// The place of the seed that is asked first: the one that answered last, or that behind one
    /// that did not.
    first: AtomicUsize,
    cluster: bool,
    connect_timeout: Duration,
    closed: watch::Sender<bool>,
    /// The longest payload that was configured, in bytes.
    configured: usize,
    /// That, or the longest string that the server takes, as far as it said so to the last
    /// connection.
    max_bytes: AtomicUsize,
    /// Key that exists for no longer than a trial write.
    probe: String,
    connections: AtomicU64,
}

/// Leaves the address out: it may hold a password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("closed", &self.closed).finish_non_exhaustive()
    }
}

/// A connection with the scripts that its server has been given. Clones share it.
#[derive(Clone)]
pub(crate) struct Connection {
    wire: Wire,
    pub(crate) scripts: Arc<Scripts>,
    /// True if this user may send transactions.
    pub(crate) transactions: bool,
    number: u64,
}

#[derive(Clone)]
enum Wire {
    One(MultiplexedConnection),
    Cluster(Arc<Nodes>),
}

impl Server {
    pub(crate) fn new(seeds: Vec<Client>, config: &Config) -> Self {
        let configured = config.max_message_bytes.unwrap_or(usize::MAX);
        Self {
            seeds,
            first: AtomicUsize::new(0),
            cluster: config.cluster,
            connect_timeout: config.connect_timeout,
            closed: watch::Sender::new(false),
            configured,
            max_bytes: AtomicUsize::new(configured),
            probe: Routing::new(config.prefix.clone()).probe(),
            connections: AtomicU64::new(0),
        }
    }

    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if *self.closed.borrow() { Err(Error::closed()) } else { Ok(()) }
    }

    pub(crate) async fn until_closed(&self) {
        // It fails when the sender is gone, which is here.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// The longest payload that can be sent, in bytes.
    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes.load(Ordering::Relaxed)
    }

    /// Learns the longest string that the server takes. `None`: a user who may not ask, or a server
    /// that does not tell: then what was configured counts.
    pub(crate) fn learn(&self, told: Option<usize>) {
        self.max_bytes.store(self.configured.min(told.unwrap_or(usize::MAX)), Ordering::Relaxed);
    }

    /// Makes a connection. Whatever goes wrong, nothing was asked yet.
    ///
    /// The seeds are asked one after the other. Each may take its share of the time that is left,
    /// so that a silent one leaves some to the others.
    pub(crate) async fn connect(&self) -> Result<Connection, Error> {
        self.check_open()?;
        let (until, first) = (Instant::now() + self.connect_timeout, self.first.load(Ordering::Relaxed));
        let mut failed =
            Error::route("unreachable", "the list of redis addresses is empty; name at least one");
        for (asked, left) in (1..=self.seeds.len()).rev().enumerate() {
            let place = (first + asked) % self.seeds.len();
            let Some(seed) = self.seeds.get(place) else { break };
            // Before it is asked: who waits may give up meanwhile.
            self.first.store(place + 1, Ordering::Relaxed);
            let share =
                until.saturating_duration_since(Instant::now()) / u32::try_from(left).unwrap_or(u32::MAX);
            match timeout(share, self.connect_by(seed)).await {
                Ok(Ok(connection)) => {
                    self.first.store(place, Ordering::Relaxed);
                    return Ok(connection);
                }
                Ok(Err(error)) => failed = error,
                Err(_) => {
                    let words = format!("connection timed out: no answer from redis within {share:?}");
                    failed = Error::route("unreachable", words);
                }
            }
        }
        Err(failed.while_connecting())
    }

    async fn connect_by(&self, seed: &Client) -> Result<Connection, Error> {
        let mut hello = Pipeline::new();
        Scripts::load(&mut hello);
        hello.cmd("CONFIG").arg("GET").arg("proto-max-bulk-len");
        hello.cmd("WATCH").arg(&self.probe).cmd("EVAL").arg("return 1").arg(0).cmd("MULTI").cmd("EXEC");
        let (wire, said) = if self.cluster {
            let nodes = Nodes::connect(seed).await?;
            let said = nodes.send_to_all(&hello).await?;
            (Wire::Cluster(Arc::new(nodes)), said)
        } else {
            let mut one = plain(seed).await?;
            let said = one.send_packed_commands(&hello, 0, hello.len()).await.map_err(Error::connecting)?;
            (Wire::One(one), vec![said])
        };
        for answers in &said {
            if let Some(refused) = answers[..Scripts::COUNT].iter().find_map(refusal) {
                // Older ones do not know the first line of a script that says what it may do.
                let is_old = refused.words.contains("compiling script");
                return Err(if is_old { Error::too_old("older than Redis 7.0") } else { refused });
            }
        }
        self.learn(said.iter().filter_map(|answers| limit(answers.get(Scripts::COUNT))).min());
        let transactions = said.iter().all(|answers| takes_transactions(&answers[Scripts::COUNT + 1..]));
        let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        // A script has the same name everywhere: a hash of its text.
        let scripts = Arc::new(Scripts::loaded(said.first().map_or(&[], Vec::as_slice))?);
        tracing::debug!(number, transactions, "connected to redis");
        Ok(Connection { wire, scripts, transactions, number })
    }
}

/// Reads the answers to an empty transaction, behind a script by its text, as what looks at the
/// epochs is. A node that does not hold the key refuses to watch it, which says that the command is
/// permitted.
fn takes_transactions(answers: &[Value]) -> bool {
    let [watch, Value::Int(1), Value::Okay, Value::Array(_)] = answers else { return false };
    refusal(watch).is_none_or(|refused| matches!(refused.class, "cluster" | "cluster-moving"))
}

/// Reads the longest string that a server takes.
pub(crate) fn limit(answer: Option<&Value>) -> Option<usize> {
    let Some(Value::Array(pair)) = answer else { return None };
    text(pair.get(1)?).ok()?.parse().ok()
}

impl Connection {
    /// Sends commands together, and gives all answers, refusals among them.
    pub(crate) async fn send(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>, Error> {
        match &mut self.wire {
            Wire::One(one) => Ok(one.send_packed_commands(pipeline, 0, pipeline.len()).await?),
            Wire::Cluster(nodes) => nodes.send(pipeline).await,
        }
    }

    /// Sends the same to the server, or to every node of a cluster, and gives the answers of each,
    /// with the address of a node.
    async fn send_to_all(&mut self, pipeline: &Pipeline) -> Result<Vec<(Option<String>, Vec<Value>)>, Error> {
        match &mut self.wire {
            Wire::One(one) => Ok(vec![(None, one.send_packed_commands(pipeline, 0, pipeline.len()).await?)]),
            Wire::Cluster(nodes) => {
                let answers = nodes.send_to_all(pipeline).await?;
                Ok(nodes.addresses().map(Some).zip(answers).collect())
            }
        }
    }

    pub(crate) fn is_of_cluster(&self) -> bool {
        matches!(self.wire, Wire::Cluster(_))
    }
}

/// One connection to one server. Those who wait for an answer set the limit; the client's own would
/// cut reads that are meant to wait.
pub(crate) async fn plain(client: &Client) -> Result<MultiplexedConnection, Error> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await.map_err(Error::connecting)
}

/// One connection that several share, made anew after it was in doubt.
#[derive(Debug)]
pub(crate) struct Link {
    server: Arc<Server>,
    // A plain mutex: held for one look or one store.
    slot: Mutex<Option<Connection>>,
    /// Held by the one that makes a connection.
    connecting: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server, slot: Mutex::new(None), connecting: tokio::sync::Mutex::new(()) }
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// The connection. Those who come while it is being made wait for it.
    pub(crate) async fn connection(&self) -> Result<Connection, Error> {
        self.server.check_open()?;
        if let Some(connection) = self.slot().clone() {
            return Ok(connection);
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(connection) = self.slot().clone() {
            return Ok(connection);
        }
        let connection = self.server.connect().await?;
        Ok(self.slot().insert(connection).clone())
    }

    /// Sends commands together. A connection on which nothing came back, or came back in time, is
    /// not used again; nor is one whose server has lost its scripts, or says that it is no primary:
    /// behind the same address may be another one by now.
    pub(crate) async fn send(
        &self,
        connection: &mut Connection,
        pipeline: &Pipeline,
    ) -> Result<Vec<Value>, Error> {
        let in_doubt = InDoubt { link: self, number: connection.number, armed: true };
        let answers = connection.send(pipeline).await?;
        let misplaced = |value: &Value| {
            refusal(value).is_some_and(|error| matches!(error.class, "read-only" | "no-script" | "cluster"))
        };
        if !answers.iter().any(misplaced) {
            in_doubt.settle();
        }
        Ok(answers)
    }

    /// As `send`, with a limit of time.
    pub(crate) async fn request(&self, pipeline: &Pipeline, within: Duration) -> Result<Vec<Value>, Error> {
        let mut connection = self.connection().await?;
        self.within(&mut connection, pipeline, within).await
    }

    /// As `send`, with a limit of time, for commands that name the scripts of a connection.
    pub(crate) async fn within(
        &self,
        connection: &mut Connection,
        pipeline: &Pipeline,
        within: Duration,
    ) -> Result<Vec<Value>, Error> {
        let answers = timeout(within, self.send(connection, pipeline)).await;
        answers.unwrap_or_else(|_| Err(Error::silent(within)))
    }

    /// Sends the same to the server, or to every node of a cluster, with a limit of time.
    pub(crate) async fn ask_all(
        &self,
        pipeline: &Pipeline,
        within: Duration,
    ) -> Result<Vec<(Option<String>, Vec<Value>)>, Error> {
        let mut connection = self.connection().await?;
        let in_doubt = InDoubt { link: self, number: connection.number, armed: true };
        let answers = timeout(within, connection.send_to_all(pipeline)).await;
        let answers = answers.unwrap_or_else(|_| Err(Error::silent(within)))?;
        in_doubt.settle();
        Ok(answers)
    }

    /// Lets go of this connection, whose state is not what it should be.
    pub(crate) fn distrust(&self, connection: &Connection) {
        self.give_up(connection.number);
    }

    /// Lets go of the connection.
    pub(crate) fn shut(&self) {
        *self.slot() = None;
    }

    fn give_up(&self, number: u64) {
        let mut slot = self.slot();
        if slot.as_ref().is_some_and(|connection| connection.number == number) {
            *slot = None;
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Connection>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request without an answer so far. Dropped like that, the connection is given up: what is asked
/// next must not stand in line behind an answer that never comes.
struct InDoubt<'l> {
    link: &'l Link,
    number: u64,
    armed: bool,
}

impl InDoubt<'_> {
    fn settle(mut self) {
        self.armed = false;
    }
}

impl Drop for InDoubt<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.link.give_up(self.number);
        }
    }
}

/// Returns the refusal of the server, if this is one.
pub(crate) fn refusal(value: &Value) -> Option<Error> {
    match value {
        Value::ServerError(error) => Some(Error::refused(&words(error))),
        _ => None,
    }
}

fn words(error: &ServerError) -> String {
    format!("{} {}", error.code(), error.details().unwrap_or_default())
}

/// An answer that is a text.
pub(crate) fn text(value: &Value) -> Result<String, Error> {
    match value {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Ok(text.clone()),
        Value::Int(number) => Ok(number.to_string()),
        Value::Okay => Ok("OK".to_owned()),
        Value::ServerError(error) => Err(Error::refused(&words(error))),
        _ => Err(Error::unexpected("a question for a text")),
    }
}

/// An answer that is a number.
pub(crate) fn number(value: &Value) -> Result<u64, Error> {
    text(value)?.parse().map_err(|_| Error::unexpected("a question for a number"))
}

/// An answer that is a list.
pub(crate) fn list(value: &Value) -> Result<&[Value], Error> {
    match value {
        Value::Array(values) => Ok(values),
        Value::Nil => Ok(&[]),
        Value::ServerError(error) => Err(Error::refused(&words(error))),
        _ => Err(Error::unexpected("a question for a list")),
    }
}
