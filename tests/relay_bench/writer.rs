//! Writers of a business: each transaction writes a row of its own table, and a message.

use mongodb::bson::doc;
use outbox_contract::{Message, Outbox, Transactional};
use outbox_store_mongodb::MongoDbStore;
use outbox_store_mysql::MySqlStore;
use outbox_store_postgres::PostgresStore;
use outbox_store_sqlite::SqliteStore;
use outbox_tests::on_store;
use sqlx::{AssertSqlSafe, Executor as _};

/// A database that programs write to.
pub(crate) trait Writer: Clone + Send + Sync + Sized + 'static {
    /// Opens the database of a URL.
    fn reach(url: &str) -> impl Future<Output = Self> + Send;

    /// Creates the table of the business.
    fn prepare(&self) -> impl Future<Output = ()> + Send;

    /// Writes a row of the business and a message, in one transaction that is committed when this
    /// returns.
    fn write(&self, message: Message) -> impl Future<Output = ()> + Send;
}

/// Number of tries of a transaction that meets others.
const MAX_TRIES: u32 = 20;
/// Code of SQLite's error for a database that another writer has locked.
const BUSY: &str = "5";
const INSERT: &str = "insert into business (body) values ('x')";

/// Implements it for a store of SQL, with the definition of the table's primary key.
macro_rules! writer {
    ($store:ty, $key:literal, $begin:expr) => {
        impl Writer for $store {
            async fn reach(url: &str) -> Self {
                Self::connect(url).await.expect("the database answers")
            }

            async fn prepare(&self) {
                let table = format!("create table business (id {}, body text)", $key);
                self.pool().execute(AssertSqlSafe(table)).await.expect("a table can be created");
            }

            async fn write(&self, message: Message) {
                let mut tx = loop {
                    match $begin(self).await {
                        Ok(tx) => break tx,
                        // Others have written for longer than the driver waits.
                        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(BUSY) => {}
                        Err(error) => panic!("not begun: {error}"),
                    }
                };
                sqlx::query(INSERT).execute(&mut *tx).await.expect("written");
                Outbox::new(self.clone()).append_message(&mut tx, message).await.expect("appended");
                tx.commit().await.expect("committed");
            }
        }
    };
}

writer!(PostgresStore, "bigint generated always as identity primary key", async |store: &PostgresStore| {
    store.pool().begin().await
});
writer!(MySqlStore, "bigint auto_increment primary key", async |store: &MySqlStore| store
    .pool()
    .begin()
    .await);
// A transaction that reads before it writes would fail where another one has written since.
writer!(SqliteStore, "integer primary key", async |store: &SqliteStore| store
    .pool()
    .begin_with("begin immediate")
    .await);

impl Writer for MongoDbStore {
    async fn reach(url: &str) -> Self {
        Self::connect(url).await.expect("the database answers")
    }

    async fn prepare(&self) {
        let database = self.client().default_database().expect("the URL names a database");
        database.create_collection("business").await.expect("a collection can be created");
    }

    /// A transaction that meets another one is begun again, as the driver's manual says.
    async fn write(&self, message: Message) {
        let database = self.client().default_database().expect("the URL names a database");
        let business = database.collection("business");
        for tries in 1.. {
            let mut session = self.begin().await.expect("begun");
            business.insert_one(doc! { "body": "x" }).session(&mut session).await.expect("written");
            let appended = Outbox::new(self.clone()).append_message(&mut session, message.clone()).await;
            if appended.is_ok() && self.commit(session).await.into_result().is_ok() {
                return;
            }
            assert!(tries < MAX_TRIES, "not written: {appended:?}");
        }
    }
}

/// Creates the table of the business in the database of a URL.
pub(crate) async fn prepare(url: &str) {
    on_store!(url, S => S::reach(url).await.prepare().await)
}
