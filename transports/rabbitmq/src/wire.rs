//! A connection that publishes: one task reads and writes, channels queue what is to be sent.
//!
//! The client library keeps a future, a promise and three frames for each message until it is
//! confirmed, and hands them between threads: three quarters of what publishing cost a relay. Here
//! a batch is written into a few buffers that go out whole, and a confirmation is two numbers.
//! Consuming, where a message is worth a handler's time, goes over the library
//! ([`crate::connection`]).

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use amq_protocol::protocol::{AMQPClass, confirm, connection, exchange, queue};
use futures_util::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use lapin::tcp::AsyncTcpStream;
use lapin::types::{FieldTable, ShortString};
use outbox_contract::TransportErrorKind;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::broker::Broker;
use crate::channel::Channel;
use crate::config::Config;
use crate::error::Fault;
use crate::frames::Incoming;
use crate::login::{self, Agreed, MAX_FRAME_BYTES, of_socket};
use crate::multiplexer::{Multiplexer, Write};
use crate::socket;
use crate::topology::{Declaration, Declares};

/// So many channels may wait for the broker to confirm that they are closed. One more, and the
/// connection is made anew.
const MAX_CLOSING: usize = 64;

/// Time limit for the last word to a broker that ends the connection.
const LAST_WORD: Duration = Duration::from_secs(1);

/// A connection that publishes. Dropped, it is cut.
pub(crate) struct Wire {
    board: Arc<Mutex<Multiplexer>>,
    task: JoinHandle<()>,
    pub(crate) broker: Broker,
    pub(crate) max_frame_bytes: usize,
    timeout: Duration,
}

impl Wire {
    /// Connects. Never takes longer than the configured time, whatever the other side does or does
    /// not.
    ///
    /// Cancellation: safe, nothing stays behind.
    pub(crate) async fn open(config: &Config, purpose: &str) -> Result<Arc<Self>, Fault> {
        let heartbeat = u16::try_from(config.heartbeat.as_secs()).unwrap_or(u16::MAX);
        let uri = config.address.uri(heartbeat, MAX_FRAME_BYTES);
        let mut incoming = Incoming::new(MAX_FRAME_BYTES as usize);
        let opening = async {
            let mut socket = connect(config).await?;
            let name = format!("{} {purpose}", config.name);
            let (broker, agreed) = login::login(&mut socket, &mut incoming, &uri, name).await?;
            Ok((socket, broker, agreed))
        };
        let (socket, broker, agreed) = timeout(config.timeout, opening)
            .await
            .map_err(|_| Fault::silent(&config.address, "connecting", config.timeout))?
            .map_err(|error| Fault::connecting(&config.address, error))?;
        let board = Arc::new(Mutex::new(Multiplexer::new(agreed.max_channels)));
        let task = tokio::spawn(carry(socket, incoming, End(Arc::clone(&board)), agreed));
        let max_frame_bytes = agreed.max_frame_bytes;
        Ok(Arc::new(Self { board, task, broker, max_frame_bytes, timeout: config.timeout }))
    }

    /// Returns true if batches may go over it.
    pub(crate) fn is_usable(&self) -> bool {
        let board = self.board();
        board.over().is_none() && board.closing() <= MAX_CLOSING
    }

    /// Why the broker takes nothing for now.
    pub(crate) fn blocked_by(&self) -> Option<String> {
        self.board().blocked().cloned()
    }

    /// Opens a channel.
    pub(crate) async fn channel(self: &Arc<Self>) -> Result<Channel, Fault> {
        Channel::open(Arc::clone(self)).await
    }

    /// Returns the number of messages that wait in a queue.
    pub(crate) async fn waiting_in(self: &Arc<Self>, queue: &ShortString) -> Result<u32, Fault> {
        let what = format!("reading the depth of queue {:?}", queue.as_str());
        let declare = queue::Declare { queue: queue.clone(), passive: true, ..queue::Declare::default() };
        let declare = AMQPClass::Queue(queue::AMQPMethod::Declare(declare));
        match self.channel().await?.ask(&what, declare).await? {
            AMQPClass::Queue(queue::AMQPMethod::DeclareOk(queue::DeclareOk { message_count, .. })) => {
                Ok(message_count)
            }
            _ => Err(Fault::new(
                TransportErrorKind::Unavailable,
                "connection",
                format!("{what}: no answer to it"),
            )),
        }
    }

    /// A channel on which the broker confirms what is published.
    pub(crate) async fn confirming_channel(self: &Arc<Self>) -> Result<Channel, Fault> {
        let idle = self.board().take_idle();
        if let Some((id, tags)) = idle {
            return Ok(Channel::again(Arc::clone(self), id, tags));
        }
        let mut channel = self.channel().await?;
        let select = confirm::AMQPMethod::Select(confirm::Select { nowait: false });
        channel.ask("asking for confirmations", AMQPClass::Confirm(select)).await?;
        channel.confirms();
        Ok(channel)
    }

    /// Waits for an answer of the broker, for as long as it may take.
    pub(crate) async fn answer<T>(
        &self,
        what: impl fmt::Display,
        asked: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, Fault> {
        Fault::unless_answered(what, self.timeout, asked).await
    }

    /// Ends it politely, if that goes quickly.
    pub(crate) async fn close(&self) {
        let close =
            connection::Close { reply_code: 200, reply_text: "OK".into(), ..connection::Close::default() };
        self.board().queue_method(0, AMQPClass::Connection(connection::AMQPMethod::Close(close)));
        let over = poll_fn(|context| self.board().poll_over(context));
        // Nothing to be done about silence: it is over either way.
        let _ = timeout(self.timeout, over).await;
        self.cut();
    }

    /// Ends it at once.
    pub(crate) fn cut(&self) {
        self.task.abort();
        self.board().end(of_socket(std::io::ErrorKind::ConnectionAborted.into()));
    }

    pub(crate) fn board(&self) -> MutexGuard<'_, Multiplexer> {
        lock(&self.board)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Declares for Arc<Wire> {
    async fn declare(&self, what: String, declaration: Declaration) -> Result<(), Fault> {
        let method = match declaration {
            Declaration::Exchange { name, kind, is_passive } => {
                AMQPClass::Exchange(exchange::AMQPMethod::Declare(exchange::Declare {
                    exchange: name,
                    kind: kind.into(),
                    passive: is_passive,
                    durable: true,
                    ..exchange::Declare::default()
                }))
            }
            Declaration::Queue { name, arguments, is_passive } => {
                AMQPClass::Queue(queue::AMQPMethod::Declare(queue::Declare {
                    queue: name,
                    passive: is_passive,
                    durable: true,
                    arguments,
                    ..queue::Declare::default()
                }))
            }
            Declaration::Binding { queue, exchange, routing_key } => {
                let arguments = FieldTable::default();
                let bind = queue::Bind { queue, exchange, routing_key, nowait: false, arguments };
                AMQPClass::Queue(queue::AMQPMethod::Bind(bind))
            }
        };
        self.channel().await?.ask(what, method).await.map(drop)
    }
}

/// A socket to the broker, with TLS if the address says so.
async fn connect(
    config: &Config,
) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>, lapin::Error> {
    let runtime = lapin::runtime::default_runtime()?;
    let host = config.address.host();
    let place = (host, config.address.port());
    let connecting =
        socket::connect(place, config.timeout, |address| AsyncTcpStream::connect(&runtime, address));
    let stream = connecting.await.map_err(of_socket)?;
    if !config.address.is_tls() {
        return Ok(stream);
    }
    stream.into_tls(host, config.tls.as_ref()).await.map_err(of_socket)
}

/// Reads and writes until the connection is over.
async fn carry(
    socket: impl AsyncRead + AsyncWrite + Send + Unpin,
    incoming: Incoming,
    end: End,
    agreed: Agreed,
) {
    let End(board) = &end;
    let (reader, writer) = socket.split();
    let mut reading = pin!(read(reader, incoming, board, agreed.heartbeat));
    let mut writing = pin!(write(writer, board, agreed.heartbeat));
    let error = tokio::select! {
        biased;
        error = &mut reading => {
            if error.is_none() {
                // The broker ended it, and gets an answer.
                let _ = timeout(LAST_WORD, writing).await;
            }
            error
        }
        error = &mut writing => {
            if error.is_some() {
                // The broker may have said why it takes nothing any more: then that is what is
                // told.
                let _ = timeout(LAST_WORD, reading).await;
            }
            error
        }
    };
    if let Some(error) = error {
        lock(board).end(error);
    }
}

/// Wakes everybody who waits, however the task ends, be it before it began.
struct End(Arc<Mutex<Multiplexer>>);

impl Drop for End {
    fn drop(&mut self) {
        lock(&self.0).end(of_socket(std::io::ErrorKind::ConnectionAborted.into()));
    }
}

/// Takes in what comes. None: the connection was ended by a word of the broker.
async fn read(
    mut socket: impl AsyncRead + Unpin,
    mut incoming: Incoming,
    board: &Mutex<Multiplexer>,
    heartbeat: Option<Duration>,
) -> Option<lapin::Error> {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        {
            let mut board = lock(board);
            loop {
                match incoming.next() {
                    Ok(Some(frame)) => board.take(frame),
                    Ok(None) => break,
                    Err(error) => return Some(of_socket(error)),
                }
                if board.over().is_some() {
                    return None;
                }
            }
        }
        let reading = socket.read(&mut bytes);
        let read = match heartbeat {
            // Two of them missing is silence.
            Some(heartbeat) => timeout(heartbeat * 2, reading).await.unwrap_or_else(|_| {
                let words =
                    format!("heartbeat timeout: nothing came from the broker for {:?}", heartbeat * 2);
                Err(std::io::Error::new(std::io::ErrorKind::TimedOut, words))
            }),
            None => reading.await,
        };
        match read {
            Ok(0) => return Some(of_socket(std::io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => incoming.push(&bytes[..count]),
            Err(error) => return Some(of_socket(error)),
        }
    }
}

/// Writes what is queued, and now and then that we are there. None: all is written, and nothing
/// more comes.
async fn write(
    mut socket: impl AsyncWrite + Unpin,
    board: &Mutex<Multiplexer>,
    heartbeat: Option<Duration>,
) -> Option<lapin::Error> {
    loop {
        let next = poll_fn(|context| lock(board).poll_write(context));
        let next = match heartbeat {
            Some(heartbeat) => match timeout(heartbeat / 2, next).await {
                Ok(next) => next,
                Err(_) => {
                    lock(board).queue_heartbeat();
                    continue;
                }
            },
            None => next.await,
        };
        let Write::Bytes(bytes) = next else { return None };
        if let Err(error) = write_all(&mut socket, &bytes).await {
            return Some(of_socket(error));
        }
        lock(board).written(bytes.len());
    }
}

async fn write_all(socket: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<()> {
    socket.write_all(bytes).await?;
    socket.flush().await
}

fn lock(board: &Mutex<Multiplexer>) -> MutexGuard<'_, Multiplexer> {
    // A change is made in one step, or panics before it: what is there is whole.
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
