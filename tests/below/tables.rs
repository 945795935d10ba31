//! The tables of an outbox, as somebody restores them who knows nothing of how they belong
//! together.

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
            Self::MySql(pool) => run(pool, &put_back()).await,
            Self::MongoDb(database) => copy_all(database, COPY, "outbox_message").await,
        }
    }

    /// Puts the copy back and sets the counters of all stripes to what they are at first, at once.
    pub(crate) async fn put_back_without_counters(&self) {
        let counters = ["number", "position", "first_number", "first_position", "previous_position"];
        match self {
            Self::MySql(pool) => {
                let counters = counters.map(|counter| format!("{counter} = 0")).join(", ");
                let mut tx = pool.begin().await.unwrap();
                for statement in [format!("update outbox_stripe set {counters}"), put_back()] {
                    tx.execute(AssertSqlSafe(statement)).await.unwrap();
                }
                tx.commit().await.unwrap();
            }
            Self::MongoDb(database) => {
                let all = all_of(database, COPY).await;
                let counters: Document =
                    counters.map(|counter| (counter.to_owned(), 0_i64.into())).into_iter().collect();
                let mut session = database.client().start_session().await.unwrap();
                session.start_transaction().await.unwrap();
                let stripes = database.collection::<Document>("outbox_stripe");
                let update = stripes.update_many(doc! { "number": { "$gt": 0 } }, doc! { "$set": counters });
                update.session(&mut session).await.unwrap();
                let messages = database.collection::<Document>("outbox_message");
                messages.insert_many(all).session(&mut session).await.unwrap();
                session.commit_transaction().await.unwrap();
            }
        }
    }
}

fn put_back() -> String {
    format!("insert into outbox_message ({COLUMNS}) select {COLUMNS} from {COPY}")
}

async fn run(pool: &MySqlPool, statement: &str) {
    pool.execute(AssertSqlSafe(statement.to_owned())).await.unwrap();
}

async fn all_of(database: &Database, collection: &str) -> Vec<Document> {
    let mut cursor = database.collection::<Document>(collection).find(doc! {}).await.unwrap();
    let mut all = Vec::new();
    while cursor.advance().await.unwrap() {
        all.push(cursor.deserialize_current().unwrap());
    }
    all
}

async fn copy_all(database: &Database, from: &str, to: &str) {
    let all = all_of(database, from).await;
    database.collection::<Document>(to).insert_many(all).await.unwrap();
}
