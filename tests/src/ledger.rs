//! A database as the suites see it, whatever its kind: the appended messages, and the writes of
//! handlers beside them.

mod memory;
mod mongodb;
mod mysql;
mod sql;

use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use outbox_contract::backend::Committed;
use outbox_contract::{AppendError, MessageId, Outgoing, Store, StoreError, Transactional, Transport};
use outbox_engine::{HandlerError, InboxHandle};
use outbox_store_memory::MemoryStore;
use outbox_store_mongodb::MongoDbStore;
use outbox_store_mysql::MySqlStore;
use outbox_store_postgres::PostgresStore;
use outbox_store_sqlite::SqliteStore;

use crate::kind::StoreKind;
use crate::life::Life;
use crate::pair::Pair;

/// An error, as text.
pub type Failed = Box<dyn Error + Send + Sync>;

/// A handler's committed writes for a message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effect {
    /// The key of the message.
    pub key: String,
    /// Number of the effect within its key, from 1.
    pub number: i64,
    /// The message.
    pub id: MessageId,
}

impl Effect {
    fn from_row((key, number, id): (String, i64, String)) -> Result<Self, Failed> {
        Ok(Self { key, number, id: id.parse()? })
    }
}

/// Fate of messages that were to be committed.
#[derive(Debug)]
pub enum Written {
    /// They are committed.
    Yes,
    /// They are not, and never will be.
    No(Failed),
    /// The result is unknown.
    Unknown(Failed),
}

/// A database: a store, and tables that a handler writes to.
#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// Returns the store.
    fn store(&self) -> Arc<dyn Store>;

    /// Creates the tables of the outbox and those of the handler.
    ///
    /// # Errors
    ///
    /// The database's error.
    async fn prepare(&self) -> Result<(), Failed>;

    /// Commits messages in a transaction of their own, tried once. Calls `committing` right before
    /// the commit.
    async fn write(&self, messages: &[Outgoing], committing: &(dyn Fn() + Sync)) -> Written;

    /// Appends messages in a transaction of their own, and rolls it back.
    async fn roll_back(&self, messages: &[Outgoing]) -> Written;

    /// Returns the committed effects of handlers: key by key, in the order in which they happened.
    ///
    /// # Errors
    ///
    /// The database's error.
    async fn effects(&self) -> Result<Vec<Effect>, Failed>;

    /// Starts an inbox that leaves an effect of every message.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or the configuration is wrong.
    async fn inbox(
        &self,
        life: Life,
        pair: &Pair,
        transport: Arc<dyn Transport>,
    ) -> Result<InboxHandle, Failed>;
}

/// Opens the database of a URL. One in memory is another one each time.
///
/// # Errors
///
/// Its scheme is unknown here, or the database's error.
pub async fn open(url: &str) -> Result<Arc<dyn Ledger>, Failed> {
    Ok(match StoreKind::of_url(url)? {
        StoreKind::Memory => Arc::new(memory::Memory::new(MemoryStore::new())),
        StoreKind::Sqlite => Arc::new(SqliteStore::connect(url).await?),
        StoreKind::Postgres => Arc::new(PostgresStore::connect(url).await?),
        StoreKind::MySql | StoreKind::MariaDb => Arc::new(MySqlStore::connect(url).await?),
        StoreKind::MongoDb => Arc::new(MongoDbStore::connect(url).await?),
    })
}

/// The connection of a database's transaction.
pub(crate) type ConnectionOf<E> = <<E as Effects>::Store as Transactional>::Connection;

/// Differences between databases. There is no unique constraint on ids: the test must see a double
/// effect, and not prevent it.
pub(crate) trait Effects: Clone + Send + Sync + 'static {
    type Store: Transactional + Clone;

    fn store(&self) -> &Self::Store;

    /// Creates the tables: the number of handled messages of each key, and their ids.
    fn make_tables(&self) -> impl Future<Output = Result<(), Failed>> + Send;

    /// Records an effect in the handler's transaction.
    fn note(
        &self,
        tx: &mut ConnectionOf<Self>,
        key: &str,
        id: MessageId,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Returns all effects, ordered by key and number.
    fn all(&self) -> impl Future<Output = Result<Vec<Effect>, Failed>> + Send;
}

#[async_trait]
impl<E: Effects> Ledger for E {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(Effects::store(self).clone())
    }

    async fn prepare(&self) -> Result<(), Failed> {
        Effects::store(self).migrate().await?;
        self.make_tables().await
    }

    async fn write(&self, messages: &[Outgoing], committing: &(dyn Fn() + Sync)) -> Written {
        let store = Effects::store(self);
        let tx = match append(store, messages).await {
            Ok(tx) => tx,
            Err(error) => return Written::No(error),
        };
        committing();
        match store.commit(tx).await {
            Committed::Yes => Written::Yes,
            Committed::No(error) => Written::No(error.into()),
            Committed::Unknown(error) => Written::Unknown(error.into()),
        }
    }

    async fn roll_back(&self, messages: &[Outgoing]) -> Written {
        let store = Effects::store(self);
        match append(store, messages).await {
            Ok(tx) => {
                // A transaction without a commit is rolled back by the server.
                let _unheard: Result<(), StoreError> = store.rollback(tx).await;
                Written::No("rolled back, as it was to be".into())
            }
            Err(error) => Written::No(error),
        }
    }

    async fn effects(&self) -> Result<Vec<Effect>, Failed> {
        self.all().await
    }

    async fn inbox(
        &self,
        life: Life,
        pair: &Pair,
        transport: Arc<dyn Transport>,
    ) -> Result<InboxHandle, Failed> {
        life.start(self, pair, transport).await
    }
}

/// Begins a transaction in which these messages are appended.
async fn append<S: Transactional>(store: &S, messages: &[Outgoing]) -> Result<S::Tx<'static>, Failed> {
    let mut tx = store.begin().await?;
    let appended: Result<(), AppendError> = store.append(&mut tx, messages).await;
    if let Err(error) = appended {
        // As above; here its result does not matter.
        let _unheard: Result<(), StoreError> = store.rollback(tx).await;
        return Err(error.into());
    }
    Ok(tx)
}
