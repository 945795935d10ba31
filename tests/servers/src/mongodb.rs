//! MongoDB for tests: one that is given by URL, or a stand-in.

use std::sync::Arc;

use outbox_mongo_front::{Fault, Front, FrontError, Options};

use crate::missing::Missing;
use crate::ports::Port;
use crate::postgres::{Postgres, PostgresServer};
use crate::server::Shared;
use crate::{fresh, given, notes};

const VARIABLE: &str = "OUTBOX_MONGODB_URL";
const NAME: &str = "the stand-in for MongoDB";
/// Number of ports to try when programs that know nothing of the locks take them.
const TRIES: usize = 5;

/// Request for a MongoDB: the only member of replica set `rs0`, without a password.
///
/// MongoDB can't be installed from packages. A stand-in is started instead, which
/// [`outbox_mongo_front`] describes: its wire protocol, in front of PostgreSQL 18 with the
/// DocumentDB extension.
#[derive(Clone, Debug, Default)]
pub struct MongoDb {
    options: Options,
    plain: bool,
}

impl MongoDb {
    /// A MongoDB 7; by URL, the server that `OUTBOX_MONGODB_URL` names.
    #[must_use]
    pub fn newest() -> Self {
        Self { options: Options::default(), plain: true }
    }

    /// A stand-in with other options. It is never one that was given by URL.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        Self { options, plain: false }
    }

    /// Returns the server that all tests of this program share: the one that the URL in the
    /// environment names, or a stand-in that the first test starts.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the server is unavailable, or did not start.
    pub fn shared(self) -> Result<MongoDbServer, Missing> {
        static SHARED: Shared<MongoDbServer> = Shared::new();
        if let Some(url) = given::url(VARIABLE).filter(|_| self.plain) {
            notes::used(&notes::of("MongoDB", "given by URL"));
            return Ok(MongoDbServer { own: None, given: url });
        }
        SHARED.get(format!("{self:?}"), || self.start())
    }

    /// Starts a stand-in of the test's own, with an engine of its own, which it may stop, kill and
    /// pause. It ends when the handle and its clones are dropped.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the server is unavailable, or did not start.
    pub fn start(self) -> Result<MongoDbServer, Missing> {
        let engine = Postgres::documentdb().start()?;
        self.in_front_of(&engine)
    }

    /// Starts another stand-in in front of the same engine, and so with the same data. For tests
    /// that need other options, without waiting for an engine.
    ///
    /// # Errors
    ///
    /// [`Missing`]: it did not start, or `server` was given by URL.
    pub fn beside(self, server: &MongoDbServer) -> Result<MongoDbServer, Missing> {
        match &server.own {
            Some(own) => self.in_front_of(&own.engine),
            None => Err(Missing::absent(NAME, format!("{VARIABLE} names a server, which is no stand-in"))),
        }
    }

    fn in_front_of(self, engine: &PostgresServer) -> Result<MongoDbServer, Missing> {
        let mut tries = 1;
        loop {
            let port = Port::take().map_err(|reason| Missing::failed(NAME, reason))?;
            match Front::start(&engine.url(), self.options.clone().port(port.number())) {
                Ok(front) => {
                    notes::used(&notes::of("MongoDB: a stand-in on DocumentDB", "tests/servers/prepare"));
                    let own = Own { front, _port: port, engine: engine.clone() };
                    return Ok(MongoDbServer { own: Some(Arc::new(own)), given: String::new() });
                }
                Err(FrontError::Port { .. }) if tries < TRIES => tries += 1,
                Err(error) => return Err(Missing::failed(NAME, error.to_string())),
            }
        }
    }
}

/// A MongoDB. Clones are the same server.
#[derive(Clone)]
pub struct MongoDbServer {
    own: Option<Arc<Own>>,
    given: String,
}

impl std::fmt::Debug for MongoDbServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A given URL may hold a password.
        f.debug_struct("MongoDbServer").field("own", &self.own).finish_non_exhaustive()
    }
}

/// A stand-in that was started here. The front ends before its engine does.
#[derive(Debug)]
struct Own {
    front: Front,
    _port: Port,
    engine: PostgresServer,
}

impl MongoDbServer {
    #[track_caller]
    fn own(&self) -> &Own {
        let Some(own) = &self.own else {
            panic!(
                "MongoDB was given by URL: a test that stops it or looks into it must start one of its own"
            )
        };
        own
    }

    /// Returns true if it is a stand-in that was started here, so that it can be stopped, killed
    /// and paused.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Returns the engine behind the stand-in.
    ///
    /// # Panics
    ///
    /// If it was given by URL.
    #[must_use]
    #[track_caller]
    pub fn engine(&self) -> &PostgresServer {
        &self.own().engine
    }

    /// Returns its URL, or the one that was given.
    #[must_use]
    pub fn url(&self) -> String {
        self.own.as_ref().map_or_else(|| self.given.clone(), |own| own.front.url())
    }

    /// Returns its URL for a user; both in plain letters and digits. For a server that was
    /// requested with [`Options::user`].
    #[must_use]
    pub fn url_of(&self, user: &str, password: &str) -> String {
        self.url().replace("mongodb://", &format!("mongodb://{user}:{password}@")) + "&authSource=admin"
    }

    /// Returns the name of a database that no other test uses, even on a server that outlives the
    /// test program. Its first document creates it.
    #[must_use]
    pub fn fresh_database(&self) -> String {
        fresh::name()
    }

    /// Returns the same URL with another host and port, such as those of a [`Proxy`](crate::Proxy).
    /// A driver would leave a proxy for the address that the server names in its handshake, so the
    /// URL disables discovery.
    #[must_use]
    pub fn url_at(&self, address: &str) -> String {
        let url = given::with_address(&self.url(), address);
        let url = url.replace("replicaSet=rs0", "directConnection=true");
        if url.contains("directConnection=true") { url } else { format!("{url}&directConnection=true") }
    }

    /// Stops it in order: running commands finish, open transactions are rolled back, connections
    /// are closed.
    #[track_caller]
    pub fn stop(&self) {
        self.own().front.stop();
    }

    /// Kills it at once, with every connection and every transaction.
    #[track_caller]
    pub fn kill(&self) {
        self.own().front.kill();
    }

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill), with the same data on
    /// the same port; returns when it serves.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[track_caller]
    pub fn start_again(&self) {
        if let Err(error) = self.own().front.start_again() {
            panic!("{NAME}: start again: {error}");
        }
    }

    /// Pauses it: connections stay, new ones are accepted, and no request is answered.
    #[track_caller]
    pub fn pause(&self) {
        self.own().front.pause();
    }

    /// Resumes it after [`pause`](Self::pause), with the requests that arrived meanwhile.
    #[track_caller]
    pub fn resume(&self) {
        self.own().front.resume();
    }

    /// Injects a fault into the next commands.
    #[track_caller]
    pub fn fail_next(&self, fault: Fault) {
        self.own().front.fail_next(fault);
    }

    /// Removes the injected faults that have not happened yet.
    #[track_caller]
    pub fn fail_no_more(&self) {
        self.own().front.fail_no_more();
    }
}
