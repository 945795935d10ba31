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
    /// A store in a database of a client, with the default options. Nothing is sent yet.
    ///
    /// Transactions are begun on sessions of this client. What the client says of read preference
    /// and of read and write concern holds for your own transactions; the store says its own.
    #[must_use]
    pub fn new(client: Client, database: &str) -> Self {
        Self::of(client, database, MongoDbOptions::default())
    }

    /// As [`new`](Self::new), with options.
    ///
    /// # Errors
    ///
    /// [`Invalid`](StoreErrorKind::Invalid) with everything that is [wrong with the
    /// options](MongoDbOptions::problems).
    pub fn with_options(client: Client, database: &str, options: MongoDbOptions) -> Result<Self, StoreError> {
        refuse("connect", &options.problems())?;
        Ok(Self::of(client, database, options))
    }

    /// A store by its address, with the default options:
    /// `mongodb://host1,host2/DATABASE?replicaSet=NAME`. The address names the database.
    ///
    /// # Errors
    ///
    /// `Invalid` for what is no such address; `Unavailable` when no primary can be reached;
    /// `NotPermitted` when it does not let the user in; `Unsupported` when it stands alone, is a
    /// router of a sharded cluster, or is older than MongoDB 6.0.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, MongoDbOptions::default()).await
    }

    /// As [`connect`](Self::connect), with options.
    ///
    /// # Errors
    ///
    /// As `connect`, and `Invalid` with everything that is wrong with the options.
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
