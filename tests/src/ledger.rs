//! A database as the suites see it, whichever it is: what is appended there, and what handlers have written beside it.

mod memory;
mod mongodb;
mod mysql;
mod sql;

use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use outbox_contract::transactional::Committed;
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

/// What went wrong, in words.
pub type Failed = Box<dyn Error + Send + Sync>;

/// That a handler has committed its writes for a message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effect {
    /// The key of the message.
    pub key: String,
    /// Which effect of the key it is, from 1.
    pub number: i64,
    /// The message.
    pub id: MessageId,
}

impl Effect {
    fn from_row((key, number, id): (String, i64, String)) -> Result<Self, Failed> {
        Ok(Self { key, number, id: id.parse()? })
    }
}

/// What became of messages that were to be committed.
#[derive(Debug)]
pub enum Written {
    /// They are committed.
    Yes,
    /// They are not, and never will be.
    No(Failed),
    /// Nobody knows.
    Unknown(Failed),
}

/// A database: a store, and tables that a handler writes to.
#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// The store.
    fn store(&self) -> Arc<dyn Store>;

    /// Makes the tables of the outbox and those of the handler.
    ///
    /// # Errors
    ///
    /// What the database says.
    async fn prepare(&self) -> Result<(), Failed>;

    /// Commits messages in a transaction of their own, tried once. It is told when the commit is about to be asked for.
    async fn write(&self, messages: &[Outgoing], committing: &(dyn Fn() + Sync)) -> Written;

    /// Appends messages in a transaction of their own, and rolls it back.
    async fn roll_back(&self, messages: &[Outgoing]) -> Written;

    /// What handlers have committed: key by key, in the order in which it was done.
    ///
    /// # Errors
    ///
    /// What the database says.
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
/// Its scheme is not known here, or what the database says.
pub async fn open(url: &str) -> Result<Arc<dyn Ledger>, Failed> {
    Ok(match StoreKind::of_url(url)? {
        StoreKind::Memory => Arc::new(memory::Memory::new(MemoryStore::new())),
        StoreKind::Sqlite => Arc::new(SqliteStore::connect(url).await?),
        StoreKind::Postgres => Arc::new(PostgresStore::connect(url).await?),
        StoreKind::MySql | StoreKind::MariaDb => Arc::new(MySqlStore::connect(url).await?),
        StoreKind::MongoDb => Arc::new(MongoDbStore::connect(url).await?),
    })
}

/// The transaction of a database.
pub(crate) type TxOf<E> = <<E as Effects>::Store as Transactional>::Tx<'static>;

/// What is different in each database. No id is forced to be there once: an effect that is there twice must be seen, not hindered.
pub(crate) trait Effects: Clone + Send + Sync + 'static {
    type Store: Transactional + Clone;

    fn store(&self) -> &Self::Store;

    /// Makes the tables: how many messages of each key were handled, and which was which.
    fn make_tables(&self) -> impl Future<Output = Result<(), Failed>> + Send;

    /// Notes an effect in the handler's transaction.
    fn note(
        &self,
        tx: &mut TxOf<Self>,
        key: &str,
        id: MessageId,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// All effects, ordered by key and number.
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
                // What the server is not told to commit, it rolls back.
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

/// A transaction in which these messages are appended.
async fn append<S: Transactional>(store: &S, messages: &[Outgoing]) -> Result<S::Tx<'static>, Failed> {
    let mut tx = store.begin().await?;
    let appended: Result<(), AppendError> = store.append(&mut tx, messages).await;
    if let Err(error) = appended {
        // As above; here it need not be waited for.
        let _unheard: Result<(), StoreError> = store.rollback(tx).await;
        return Err(error.into());
    }
    Ok(tx)
}
