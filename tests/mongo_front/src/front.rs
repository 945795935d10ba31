//! The front as a test holds it: a server in a thread of its own.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::connection;
use crate::engine::Engine;
use crate::fault::{Fault, Faults};
use crate::options::Options;
use crate::server::Server;

/// Time limit for running commands to end when the server stops.
const LAST: Duration = Duration::from_secs(30);
/// Interval of the search for sessions and cursors that were open for too long.
const CLEANS: Duration = Duration::from_secs(1);

/// State of the server, set from outside of its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Serves,
    /// Connections stay, and no request is answered.
    Pauses,
    /// No new command begins, and running ones end.
    Stops,
    /// Everything ends at once.
    Dies,
}

/// Reason why the front can't be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FrontError {
    /// The engine is unreachable, or is no PostgreSQL with the DocumentDB extension.
    #[error("the engine: {0}")]
    Engine(String),
    /// The port is unavailable.
    #[error("port {port} of 127.0.0.1: {error}")]
    Port {
        /// The requested port; 0 means any.
        port: u16,
        /// The system's error.
        error: std::io::Error,
    },
    /// The thread could not be created, or ended early.
    #[error("its thread: {0}")]
    Thread(String),
}

/// A stand-in for one MongoDB server. It ends when this value is dropped. All methods block until
/// their work is done.
#[derive(Debug)]
pub struct Front {
    engine: String,
    options: Options,
    port: u16,
    faults: Arc<Faults>,
    running: Mutex<Option<Running>>,
}

/// A start of the server.
#[derive(Debug)]
struct Running {
    mode: watch::Sender<Mode>,
    thread: JoinHandle<()>,
}

impl Front {
    /// Starts a server in front of an engine: a URL of PostgreSQL with the DocumentDB extension
    /// preloaded, and of a user who may create it. Returns when it serves.
    ///
    /// # Errors
    ///
    /// [`FrontError`]: the engine is unusable, or the port unavailable.
    pub fn start(engine: &str, options: Options) -> Result<Self, FrontError> {
        let mut front = Self {
            engine: engine.to_owned(),
            options,
            port: 0,
            faults: Arc::default(),
            running: Mutex::default(),
        };
        let (running, port) = front.run(front.options.port)?;
        front.port = port;
        *front.running() = Some(running);
        Ok(front)
    }

    /// Returns the port on 127.0.0.1. It stays the same over stops and starts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns its URL, without a user.
    #[must_use]
    pub fn url(&self) -> String {
        let set = if self.options.standalone { "directConnection=true" } else { "replicaSet=rs0" };
        format!("mongodb://127.0.0.1:{}/?{set}", self.port)
    }

    /// Injects a fault into the next commands.
    pub fn fail_next(&self, fault: Fault) {
        self.faults.add(fault);
    }

    /// Removes the injected faults that have not happened yet.
    pub fn fail_no_more(&self) {
        self.faults.clear();
    }

    /// Stops it in order: running commands end, open transactions are rolled back, connections are
    /// closed. Does nothing if it does not run.
    pub fn stop(&self) {
        self.end(Mode::Stops);
    }

    /// Kills it at once, in the middle of its work: every connection and every transaction. A
    /// running command has happened or not. Does nothing if it does not run.
    pub fn kill(&self) {
        self.end(Mode::Dies);
    }

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill), on the same port;
    /// returns when it serves. Does nothing if it runs.
    ///
    /// # Errors
    ///
    /// [`FrontError`]: the engine is unusable, or the port is taken.
    pub fn start_again(&self) -> Result<(), FrontError> {
        let mut running = self.running();
        if running.is_none() {
            *running = Some(self.run(self.port)?.0);
        }
        Ok(())
    }

    /// Answers no request until [`resume`](Self::resume); connections stay, and new ones are
    /// accepted. Running commands finish.
    pub fn pause(&self) {
        self.tell(Mode::Pauses);
    }

    /// Continues after [`pause`](Self::pause), with the requests that arrived meanwhile.
    pub fn resume(&self) {
        self.tell(Mode::Serves);
    }

    fn tell(&self, mode: Mode) {
        if let Some(running) = &*self.running() {
            running.mode.send_replace(mode);
        }
    }

    fn end(&self, mode: Mode) {
        let running = self.running().take();
        if let Some(Running { mode: tell, thread }) = running {
            tell.send_replace(mode);
            // A panic in the thread has been printed there, and its connections ended with it.
            let _ = thread.join();
        }
    }

    fn run(&self, port: u16) -> Result<(Running, u16), FrontError> {
        let (mode, told) = watch::channel(Mode::Serves);
        let (ready, served) = mpsc::channel();
        let (engine, options, faults) = (self.engine.clone(), self.options.clone(), Arc::clone(&self.faults));
        let thread = std::thread::Builder::new().name("mongo-front".to_owned());
        let thread = thread.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(life(&engine, options, port, faults, told, &ready)),
                Err(error) => drop(ready.send(Err(FrontError::Thread(error.to_string())))),
            }
        });
        let thread = thread.map_err(|error| FrontError::Thread(error.to_string()))?;
        let port = served.recv().map_err(|_| FrontError::Thread("it ended early".to_owned()))??;
        Ok((Running { mode, thread }, port))
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a server from its start to its end. Reports once whether it serves, and on which port.
async fn life(
    engine: &str,
    options: Options,
    port: u16,
    faults: Arc<Faults>,
    mode: watch::Receiver<Mode>,
    ready: &mpsc::Sender<Result<u16, FrontError>>,
) {
    let (listener, server) = match begin(engine, options, port, faults).await {
        Ok(begun) => begun,
        Err(error) => return drop(ready.send(Err(error))),
    };
    // The starter waits for this.
    let _ = ready.send(Ok(server.port));
    let mut clients = JoinSet::new();
    let mut told = mode.clone();
    let mut cleans = tokio::time::interval(CLEANS);
    loop {
        tokio::select! {
            biased;
            ends = told.wait_for(|mode| matches!(mode, Mode::Stops | Mode::Dies)) => {
                // A closed channel means the same as the end.
                if ends.is_ok_and(|mode| *mode == Mode::Stops) {
                    // Longer work is ended with the rest.
                    let _ = tokio::time::timeout(LAST, async { while clients.join_next().await.is_some() {} }).await;
                }
                break;
            }
            Some(_) = clients.join_next() => {}
            _ = cleans.tick() => server.clean(),
            accepted = listener.accept() => if let Ok((socket, _)) = accepted {
                clients.spawn(connection::serve(Arc::clone(&server), socket, mode.clone()));
            },
        }
    }
    drop(listener);
    clients.shutdown().await;
    // If the engine itself is gone, nothing is left to end.
    let _ = tokio::time::timeout(LAST, server.engine.end_all()).await;
}

async fn begin(
    engine: &str,
    options: Options,
    port: u16,
    faults: Arc<Faults>,
) -> Result<(TcpListener, Arc<Server>), FrontError> {
    let time = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let name = format!("mongo-front-{}-{time}", std::process::id());
    let wrong = |error: tokio_postgres::Error| {
        let database = error.as_db_error().map(|error| error.message().to_owned());
        FrontError::Engine(database.unwrap_or_else(|| error.to_string()))
    };
    let engine = Engine::new(engine, &name).map_err(wrong)?;
    engine.prepare().await.map_err(wrong)?;
    let listen = async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let port = listener.local_addr()?.port();
        Ok((listener, port))
    };
    let (listener, port) = listen.await.map_err(|error| FrontError::Port { port, error })?;
    let (sessions, cursors, clock) = Default::default();
    let server = Server { options, port, engine, sessions, cursors, faults, clock };
    Ok((listener, Arc::new(server)))
}
