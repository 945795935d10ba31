//! A TCP proxy that disturbs connections as networks do.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::given;

/// A TCP proxy on a port of 127.0.0.1 in front of one server.
///
/// It forwards everything by default. [`hold`](Self::hold) and [`swallow`](Self::swallow) end with
/// [`pass`](Self::pass); all apply to existing and to new connections. A connection that lost bytes
/// stays broken: it is silent until it is cut. Dropping the proxy cuts everything.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The server of new connections.
    target: SocketAddr,
    mode: Mode,
    /// Holds behind this in a request.
    hold_behind: Option<Vec<u8>>,
    refuse: bool,
    swallow_new: bool,
    delay: Duration,
    closed: bool,
    /// Connections in both directions, each with its number.
    open: Vec<(u64, TcpStream, TcpStream)>,
    /// Number of connections accepted so far, refused ones included.
    came: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Pass,
    Hold,
    Swallow,
    SwallowAnswers,
}

/// Direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Request,
    Answer,
}

impl Proxy {
    /// Starts a proxy in front of `host:port`, or of the server of a URL.
    ///
    /// # Panics
    ///
    /// If the address is invalid, or no port is free.
    #[must_use]
    #[track_caller]
    pub fn to(server: &str) -> Self {
        let target = address_of(server);
        let listening = || -> io::Result<(TcpListener, SocketAddr)> {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = listening().unwrap_or_else(|error| panic!("a port for a proxy: {error}"));
        let state = State {
            target,
            mode: Mode::Pass,
            hold_behind: None,
            refuse: false,
            swallow_new: false,
            delay: Duration::ZERO,
            closed: false,
            open: Vec::new(),
            came: 0,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accepting.accept(&listener));
        Self { address, shared }
    }

    /// Returns its listening address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns a URL of the server, through the proxy.
    #[must_use]
    pub fn url(&self, server: &str) -> String {
        given::with_address(server, &self.address.to_string())
    }

    /// Leads new connections to another server, as a name that moves in a failover. Existing ones
    /// stay.
    ///
    /// # Panics
    ///
    /// If the address is invalid.
    #[track_caller]
    pub fn lead_to(&self, server: &str) {
        self.shared.state().target = address_of(server);
    }

    /// Cuts every existing connection, in the middle of its data. New ones may be opened.
    pub fn cut(&self) {
        self.shared.state().cut();
        self.shared.changed.notify_all();
    }

    /// Cuts the oldest connection.
    pub fn cut_oldest(&self) {
        let oldest = self.shared.state().open.iter().map(|(number, ..)| *number).min();
        if let Some(number) = oldest {
            self.shared.end(number);
        }
    }

    /// Sets whether new connections never forward anything, in either direction. Existing ones
    /// continue.
    pub fn swallow_new(&self, swallow: bool) {
        self.shared.state().swallow_new = swallow;
    }

    /// Sets whether new connections are closed as soon as they arrive. Existing ones stay.
    pub fn refuse(&self, refuse: bool) {
        self.shared.state().refuse = refuse;
    }

    /// Delays every piece that arrives, in both directions, by this time.
    pub fn delay(&self, time: Duration) {
        self.shared.state().delay = time;
    }

    /// Forwards nothing, and loses nothing: like a network that is down for a while.
    pub fn hold(&self) {
        self.mode(Mode::Hold);
    }

    /// Forwards everything up to the first request that has these bytes, and them, and then
    /// [holds](Self::hold). They have to arrive in one piece.
    pub fn hold_behind(&self, bytes: &[u8]) {
        self.shared.state().hold_behind = Some(bytes.to_vec());
    }

    /// Returns true if it holds what arrives.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.shared.state().mode == Mode::Hold
    }

    /// Accepts everything, in both directions, and forwards none of it: like a network that drops
    /// packets silently.
    pub fn swallow(&self) {
        self.mode(Mode::Swallow);
    }

    /// Forwards requests, and drops the answers: the server performs the requests, and the client
    /// never learns of it.
    pub fn swallow_answers(&self) {
        self.mode(Mode::SwallowAnswers);
    }

    /// Forwards everything again, including held data.
    pub fn pass(&self) {
        self.mode(Mode::Pass);
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.state().open.len()
    }

    /// Returns the number of connections since the start, refused ones included.
    #[must_use]
    pub fn came(&self) -> u64 {
        self.shared.state().came
    }

    fn mode(&self, mode: Mode) {
        self.shared.state().mode = mode;
        self.shared.changed.notify_all();
    }
}

/// Returns the address in `host:port`, or in a URL.
#[track_caller]
fn address_of(server: &str) -> SocketAddr {
    let server = server.split_once("://").map_or(server, |(_, rest)| rest);
    let server = server.split(['/', '?']).next().unwrap_or_default();
    let server = server.rsplit_once('@').map_or(server, |(_, address)| address);
    let address = server.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    address.unwrap_or_else(|| panic!("{server:?} is no host and port"))
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closed = true;
        state.cut();
        drop(state);
        self.shared.changed.notify_all();
        // Wakes the thread that accepts, which then ends and releases the port.
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    fn cut(&mut self) {
        for (_, client, server) in self.open.drain(..) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            let mut state = self.state();
            if state.closed {
                return;
            }
            let Ok(client) = client else { continue };
            state.came += 1;
            if state.refuse {
                continue;
            }
            let (number, target) = (state.came, state.target);
            drop(state);
            // A client of an unavailable server sees its connection closed.
            let _ = self.connect(number, client, target);
        }
    }

    fn connect(self: &Arc<Self>, number: u64, client: TcpStream, target: SocketAddr) -> io::Result<()> {
        let server = TcpStream::connect_timeout(&target, Duration::from_secs(60))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let ways = [
            (client.try_clone()?, server.try_clone()?, Way::Request),
            (server.try_clone()?, client.try_clone()?, Way::Answer),
        ];
        let mut state = self.state();
        if state.closed {
            return Ok(());
        }
        state.open.push((number, client, server));
        let broken = state.swallow_new;
        drop(state);
        for (from, to, way) in ways {
            let shared = Arc::clone(self);
            thread::spawn(move || {
                // An error is the end of one of the two: the other is closed too.
                let _ = shared.carry(number, &from, &to, way, broken);
                shared.end(number);
            });
        }
        Ok(())
    }

    /// `broken`: the connection lost bytes before.
    fn carry(
        &self,
        number: u64,
        mut from: &TcpStream,
        mut to: &TcpStream,
        way: Way,
        mut broken: bool,
    ) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let length = from.read(&mut buffer)?;
            if length == 0 {
                return Ok(());
            }
            let mut piece = buffer.get(..length).unwrap_or_default();
            let mut state = self.state();
            if way == Way::Request
                && let Some(end) = state.end_of_what_goes(piece)
            {
                // Under the lock: whoever sees that it holds knows that this was forwarded.
                to.write_all(piece.get(..end).unwrap_or_default())?;
                piece = piece.get(end..).unwrap_or_default();
                state.hold_behind = None;
                state.mode = Mode::Hold;
            }
            while state.mode == Mode::Hold && !state.closed && state.is_open(number) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if !state.is_open(number) {
                return Ok(());
            }
            broken |=
                state.mode == Mode::Swallow || (state.mode == Mode::SwallowAnswers && way == Way::Answer);
            let delay = state.delay;
            drop(state);
            if broken {
                continue;
            }
            if !delay.is_zero() {
                thread::sleep(delay);
            }
            to.write_all(piece)?;
        }
    }

    fn end(&self, number: u64) {
        let mut state = self.state();
        if let Some(index) = state.open.iter().position(|(open, ..)| *open == number) {
            let (_, client, server) = state.open.swap_remove(index);
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    /// Returns how much of a request goes before the proxy holds, if it is to.
    fn end_of_what_goes(&self, request: &[u8]) -> Option<usize> {
        let wanted = self.hold_behind.as_deref()?;
        let found = request.windows(wanted.len().max(1)).position(|window| window == wanted)?;
        Some(found + wanted.len())
    }

    fn is_open(&self, number: u64) -> bool {
        self.open.iter().any(|(open, ..)| *open == number)
    }
}
