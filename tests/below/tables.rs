//! The tables of an outbox, as somebody restores them who knows nothing of how they belong together.

use mongodb::bson::{Document, doc};
use mongodb::options::ClientOptions;
use mongodb::{Client, Database};
use outbox_tests::kind::StoreKind;
use sqlx::mysql::MySqlPool;
use sqlx::{AssertSqlSafe, Executor as _};

/// The columns of a message that are not computed.
const COLUMNS: &str = "route, position, stripe, number, id, topic, `key`, event_type, schema_version, content_type, headers, payload, occurred_at, appended_at";

/// The collection and the table for the copy.
const COPY: &str = "copy_of_outbox_message";

/// A database with an outbox in it.
pub(crate) enum Tables {
    MySql(MySqlPool),
    MongoDb(Database),
}

impl Tables {
    pub(crate) async fn open(url: &str) -> Self {
        match StoreKind::of_url(url).unwrap() {
            StoreKind::MongoDb => {
                let client = Client::with_options(ClientOptions::parse(url).await.unwrap()).unwrap();
                Self::MongoDb(client.default_database().unwrap())
            }
            _ => Self::MySql(MySqlPool::connect(url).await.unwrap()),
        }
    }

    /// Copies what is to be published.
    pub(crate) async fn copy(&self) {
        match self {
            Self::MySql(pool) => {
                run(pool, &format!("create table {COPY} as select {COLUMNS} from outbox_message")).await;
            }
            Self::MongoDb(database) => copy_all(database, "outbox_message", COPY).await,
        }
    }

    /// Puts the copy back where it stood.
    pub(crate) async fn put_back(&self) {
        match self {
            Self::MySql(pool) => {
                run(pool, &format!("insert into outbox_message ({COLUMNS}) select {COLUMNS} from {COPY}"))
                    .await;
            }
            Self::MongoDb(database) => copy_all(database, COPY, "outbox_message").await,
        }
    }

    /// Sets the counters of all stripes to what they are at first.
    pub(crate) async fn set_counters_back(&self) {
        match self {
            Self::MySql(pool) => {
                let counters = "number = 0, position = 0, first_number = 0, first_position = 0";
                run(pool, &format!("update outbox_stripe set {counters}")).await;
            }
            Self::MongoDb(database) => {
                let counters = doc! { "number": 0_i64, "position": 0_i64, "first_number": 0_i64, "first_position": 0_i64 };
                let stripes = database.collection::<Document>("outbox_stripe");
                stripes.update_many(doc! {}, doc! { "$set": counters }).await.unwrap();
            }
        }
    }
}

async fn run(pool: &MySqlPool, statement: &str) {
    pool.execute(AssertSqlSafe(statement.to_owned())).await.unwrap();
}

async fn copy_all(database: &Database, from: &str, to: &str) {
    let mut cursor = database.collection::<Document>(from).find(doc! {}).await.unwrap();
    let mut all = Vec::new();
    while cursor.advance().await.unwrap() {
        all.push(cursor.deserialize_current().unwrap());
    }
    database.collection::<Document>(to).insert_many(all).await.unwrap();
}
