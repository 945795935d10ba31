//! A connection that consumes: made within a time limit, and cut when it must be.

use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::tcp::AsyncTcpStream;
use lapin::types::FieldTable;
use lapin::{Channel, ConnectionProperties, ExchangeKind};
use tokio::time::timeout;

use crate::config::Config;
use crate::error::Fault;
use crate::login::MAX_FRAME_BYTES;
use crate::socket;
use crate::topology::{Declaration, Declares};

/// A connection. Dropped, it is cut: what was not acknowledged over it is delivered again.
pub(crate) struct Connection {
    inner: lapin::Connection,
    plug: Arc<Plug>,
    timeout: Duration,
}

impl Connection {
    /// Connects. Never takes longer than the configured time, whatever the other side does or does
    /// not.
    ///
    /// Cancellation: safe, nothing stays behind.
    pub(crate) async fn open(config: &Config, purpose: &str) -> Result<Self, Fault> {
        let plug = Arc::new(Plug::default());
        // Pulled when this future fails or is dropped: the library goes on connecting on a thread
        // of its own.
        let guard = PullOnDrop(Some(Arc::clone(&plug)));
        let heartbeat = u16::try_from(config.heartbeat.as_secs()).unwrap_or(u16::MAX);
        let uri = config.address.uri(heartbeat, MAX_FRAME_BYTES);
        let properties =
            ConnectionProperties::default().with_connection_name(format!("{} {purpose}", config.name).into());
        let (tls, is_tls, of_plug) = (config.tls.clone(), config.address.is_tls(), Arc::clone(&plug));
        let (limit, host, port) = (config.timeout, config.address.host().to_owned(), config.address.port());
        let connecting = lapin::Connection::connector(
            uri,
            lapin::runtime::default_runtime().map_err(|error| Fault::connecting(&config.address, error))?,
            async move |_, runtime| {
                let connect = async {
                    let place = (host.as_str(), port);
                    let connecting =
                        socket::connect(place, limit, |address| AsyncTcpStream::connect(&runtime, address));
                    let stream = connecting.await?;
                    if let AsyncTcpStream::Plain(stream) = &stream {
                        of_plug.hold(duplicate(stream.get_ref())?)?;
                    }
                    if is_tls { stream.into_tls(&host, tls.as_ref()).await } else { Ok(stream) }
                };
                // The thread must not outlive the attempt by much.
                let connected =
                    timeout(limit, connect).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                connected.map_err(|error| lapin::ErrorKind::IOError(Arc::new(error)).into())
            },
            properties,
        );
        let connected = timeout(config.timeout, connecting).await;
        let inner = connected
            .map_err(|_| Fault::silent(&config.address, "connecting", config.timeout))?
            .map_err(|error| Fault::connecting(&config.address, error))?;
        guard.disarm();
        Ok(Self { inner, plug, timeout: config.timeout })
    }

    /// Opens a channel.
    pub(crate) async fn channel(&self) -> Result<Channel, Fault> {
        self.answer("opening a channel", self.inner.create_channel()).await
    }

    /// Waits for an answer of the broker, for as long as it may take.
    pub(crate) async fn answer<T>(
        &self,
        what: impl std::fmt::Display,
        asked: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, Fault> {
        Fault::unless_answered(what, self.timeout, asked).await
    }

    /// Ends it politely, if that goes quickly.
    pub(crate) async fn close(&self) {
        match timeout(self.timeout, self.inner.close(200, "OK".into())).await {
            // The library closes the socket itself: one that is cut meanwhile is an error in its
            // log.
            Ok(Ok(())) => self.plug.let_go(),
            // Nothing to be done about an error: it is over either way.
            _ => self.cut(),
        }
    }

    /// Ends it at once. The broker takes back what was not acknowledged.
    pub(crate) fn cut(&self) {
        self.plug.pull();
    }

    /// Ends it at once where what comes next fails, or is dropped half-way.
    pub(crate) fn cut_on_drop(&self) -> PullOnDrop {
        PullOnDrop(Some(Arc::clone(&self.plug)))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // First of all: handles of the library that are dropped after this would still talk to the
        // broker.
        self.cut();
    }
}

impl Declares for Connection {
    async fn declare(&self, what: String, declaration: Declaration) -> Result<(), Fault> {
        let channel = self.channel().await?;
        match declaration {
            Declaration::Exchange { name, kind, is_passive } => {
                let options = ExchangeDeclareOptions {
                    passive: is_passive,
                    durable: true,
                    ..ExchangeDeclareOptions::default()
                };
                let kind = ExchangeKind::Custom(kind.to_owned());
                let asked = channel.exchange_declare(name, kind, options, FieldTable::default());
                self.answer(what, asked).await
            }
            Declaration::Queue { name, arguments, is_passive } => {
                let options = QueueDeclareOptions {
                    passive: is_passive,
                    durable: true,
                    ..QueueDeclareOptions::default()
                };
                self.answer(what, channel.queue_declare(name, options, arguments)).await.map(drop)
            }
            Declaration::Binding { queue, exchange, routing_key } => {
                let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
                self.answer(what, channel.queue_bind(queue, exchange, routing_key, options, arguments)).await
            }
        }
    }
}

/// A second handle of the same socket.
#[cfg(unix)]
fn duplicate(stream: &impl std::os::fd::AsFd) -> io::Result<std::net::TcpStream> {
    stream.as_fd().try_clone_to_owned().map(Into::into)
}

/// A second handle of the same socket.
#[cfg(windows)]
fn duplicate(stream: &impl std::os::windows::io::AsSocket) -> io::Result<std::net::TcpStream> {
    stream.as_socket().try_clone_to_owned().map(Into::into)
}

/// A handle of a connection's socket, to cut it whatever the library is waiting for: it has no
/// other way to end a connection that does not answer, or that the broker has blocked.
#[derive(Debug, Default)]
struct Plug {
    state: Mutex<PluggedSocket>,
}

#[derive(Debug, Default)]
struct PluggedSocket {
    socket: Option<std::net::TcpStream>,
    pulled: bool,
}

impl Plug {
    /// Takes the socket; fails when it was pulled before.
    fn hold(&self, socket: std::net::TcpStream) -> io::Result<()> {
        let mut state = self.state();
        if state.pulled {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        state.socket = Some(socket);
        Ok(())
    }

    fn pull(&self) {
        let mut state = self.state();
        state.pulled = true;
        if let Some(socket) = state.socket.take() {
            // It may have been closed by the other side already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Leaves the socket to the library.
    fn let_go(&self) {
        self.state().socket = None;
    }

    fn state(&self) -> MutexGuard<'_, PluggedSocket> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cuts a connection unless it is disarmed.
pub(crate) struct PullOnDrop(Option<Arc<Plug>>);

impl PullOnDrop {
    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for PullOnDrop {
    fn drop(&mut self) {
        if let Some(plug) = &self.0 {
            plug.pull();
        }
    }
}
