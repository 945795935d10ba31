//! Ways to a store: by a client of the user, or by an address.

use mongodb::Client;
use mongodb::options::ClientOptions;
use outbox_contract::backend::rules::options::refuse;
use outbox_contract::{StoreError, StoreErrorKind};

use crate::config::MongoDbOptions;
use crate::error::{meaning, store_error};
use crate::migrate;
use crate::store::MongoDbStore;

impl MongoDbStore {
    /// Creates a store in a database of a client, with the default options. Nothing is sent yet.
    ///
    /// Begin transactions on sessions of this client. Its read preference, read concern and write
    /// concern apply to your own transactions; the store sets its own.
    #[must_use]
    pub fn new(client: Client, database: &str) -> Self {
        Self::of(client, database, MongoDbOptions::default())
    }

    /// Like [`new`](Self::new), with options.
    ///
    /// # Errors
    ///
    /// [`Invalid`](StoreErrorKind::Invalid) with every [problem with the
    /// options](MongoDbOptions::problems).
    pub fn with_options(client: Client, database: &str, options: MongoDbOptions) -> Result<Self, StoreError> {
        refuse("connect", &options.problems())?;
        Ok(Self::of(client, database, options))
    }

    /// Connects to the database of a URL, `mongodb://host1,host2/DATABASE?replicaSet=NAME`, with the
    /// default options. Checks the server, so that a wrong address is reported at once.
    ///
    /// # Errors
    ///
    /// `Invalid` for an invalid URL, or one without a database; `NotPermitted` for a user or password
    /// that is refused; `Unsupported` for a standalone server, a router of a sharded cluster, or a
    /// version before 6.0; `Unavailable`.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, MongoDbOptions::default()).await
    }

    /// Like [`connect`](Self::connect), with options.
    ///
    /// # Errors
    ///
    /// The same as of `connect`, and `Invalid` with every problem with the options.
    pub async fn connect_with(url: &str, options: MongoDbOptions) -> Result<Self, StoreError> {
        refuse("connect", &options.problems())?;
        let mut client = ClientOptions::parse(url).await.map_err(|error| misread(&error))?;
        let Some(database) = client.default_database.clone() else {
            return Err(StoreError::new(
                StoreErrorKind::Invalid,
                "connect",
                "the address names no database; write mongodb://HOST/DATABASE?replicaSet=NAME",
            ));
        };
        client.server_selection_timeout.get_or_insert(options.server_selection_timeout);
        let client = Client::with_options(client).map_err(|error| store_error("connect", error))?;
        let store = Self::of(client, &database, options);
        migrate::check_server(store.database(), "connect").await?;
        Ok(store)
    }
}

/// Without the driver's own words: it takes a password that is not percent-encoded for a host, a
/// port or an option, and shows what it took.
fn misread(error: &mongodb::error::Error) -> StoreError {
    let (kind, words) = meaning(error);
    let remedy = "write mongodb://USER:PASSWORD@HOST/DATABASE?replicaSet=NAME, and percent-encode user and password (? is %3F, / is %2F, @ is %40, \
                  : is %3A, % is %25); the address is not shown, for it may hold a password";
    StoreError::new(kind, "connect", format!("{words}; {remedy}"))
}
