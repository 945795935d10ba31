//! Kind of MongoDB that the stand-in plays.

use std::time::Duration;

/// Kind of MongoDB that the stand-in plays.
#[derive(Clone)]
pub struct Options {
    pub(crate) port: u16,
    pub(crate) standalone: bool,
    pub(crate) user: Option<(String, String)>,
    pub(crate) wire_version: i32,
    pub(crate) version: String,
    pub(crate) transaction_lifetime: Duration,
    pub(crate) cursor_lifetime: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            port: 0,
            standalone: false,
            user: None,
            wire_version: 21,
            version: "7.0.0".to_owned(),
            transaction_lifetime: Duration::from_secs(60),
            cursor_lifetime: Duration::from_secs(600),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the password.
        f.debug_struct("Options")
            .field("port", &self.port)
            .field("standalone", &self.standalone)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("version", &self.version)
            .field("transaction_lifetime", &self.transaction_lifetime)
            .field("cursor_lifetime", &self.cursor_lifetime)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Listens on this port of 127.0.0.1; 0 (the default) is any free port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Plays a server outside of a replica set, which has no transactions and no retryable writes.
    #[must_use]
    pub fn standalone(mut self) -> Self {
        self.standalone = true;
        self
    }

    /// Accepts only this user, by SCRAM-SHA-256. Without one everyone is accepted. Both words are
    /// plain ASCII.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        self
    }

    /// Plays another version: the answer to `buildInfo`, and the wire protocol number that drivers
    /// check (MongoDB 4.4: 9, 5.0: 13, 7.0: 21). By default `7.0.0` and 21.
    #[must_use]
    pub fn version(mut self, version: &str, wire: i32) -> Self {
        version.clone_into(&mut self.version);
        self.wire_version = wire;
        self
    }

    /// Sets the maximum lifetime of a transaction before it is aborted: 60 s by default, as
    /// MongoDB's `transactionLifetimeLimitSeconds`.
    #[must_use]
    pub fn transaction_lifetime(mut self, lifetime: Duration) -> Self {
        self.transaction_lifetime = lifetime;
        self
    }

    /// Sets the idle lifetime of a cursor: ten minutes by default, as MongoDB's
    /// `cursorTimeoutMillis`.
    #[must_use]
    pub fn cursor_lifetime(mut self, lifetime: Duration) -> Self {
        self.cursor_lifetime = lifetime;
        self
    }
}
