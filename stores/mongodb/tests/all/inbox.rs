//! The suite that an inbox on every store must pass. A fresh database for each test, on the server
//! that is given by URL, or on the stand-in.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::bson::{Document, doc};
use mongodb::options::ReturnDocument;
use mongodb::{ClientSession, Collection, Database};
use outbox_servers::{MongoDb, MongoDbServer, OrSkip};
use outbox_store_mongodb::{MongoDbOptions, MongoDbStore};
use outbox_testkit::inbox_suite::{Effect, EffectError, Effects, InboxHarness};
use outbox_testkit::store_suite::{Capability, StoreHarness};

async fn open(url: &str) -> Arc<MongoDbStore> {
    let mut options = MongoDbOptions::default();
    options.history = Some(Duration::from_secs(3_600));
    // A test runs as long as it has to, on however slow a machine.
    options.conflict_timeout = Duration::from_secs(100);
    options.server_selection_timeout = Duration::from_secs(100);
    Arc::new(MongoDbStore::connect_with(url, options).await.expect("the server takes connections"))
}

/// Effects in a collection of the same database, and in another one how many each key has: nothing
/// else counts up here.
#[derive(Clone)]
struct Effected {
    effects: Collection<Document>,
    counters: Collection<Document>,
}

impl Effected {
    async fn made_in(database: Database) -> Self {
        for name in ["effects", "counters"] {
            // Before anybody writes: in a transaction they could not be made everywhere.
            database.create_collection(name).await.expect("a collection can be made");
        }
        Self { effects: database.collection("effects"), counters: database.collection("counters") }
    }
}

impl Effects<MongoDbStore> for Effected {
    async fn write(&self, tx: &mut ClientSession, effect: Effect) -> Result<(), EffectError> {
        let counted = self
            .counters
            .find_one_and_update(doc! { "_id": &effect.key }, doc! { "$inc": { "effects": 1_i64 } })
            .upsert(true)
            .return_document(ReturnDocument::After)
            .session(&mut *tx)
            .await?;
        let number = counted.ok_or("the counter was not made")?.get_i64("effects")?;
        let effect = doc! { "key": effect.key, "number": number, "message": effect.message.to_string() };
        self.effects.insert_one(effect).session(&mut *tx).await?;
        Ok(())
    }

    async fn read(&self) -> Result<Vec<Effect>, EffectError> {
        let found = self.effects.find(doc! {}).sort(doc! { "key": 1, "number": 1 }).await?;
        let found: Vec<Document> = found.try_collect().await?;
        let effect = |it: Document| -> Result<Effect, EffectError> {
            Ok(Effect { key: it.get_str("key")?.to_owned(), message: it.get_str("message")?.parse()? })
        };
        found.into_iter().map(effect).collect()
    }
}

struct Subject {
    store: Arc<MongoDbStore>,
    _server: MongoDbServer,
}

impl StoreHarness for Subject {
    type Store = MongoDbStore;
    const LACKS: &'static [Capability] = &[Capability::ExpiredIds, Capability::TransactionLimit];

    async fn fresh() -> Self {
        let server = MongoDb::newest().shared().expect("it was there when it was asked for");
        let url = in_database(&server.url(), &server.fresh_database());
        Self { store: open(&url).await, _server: server }
    }

    fn store(&self) -> Arc<MongoDbStore> {
        Arc::clone(&self.store)
    }

    fn skipped() -> Option<String> {
        MongoDb::newest().shared().or_skip().is_none().then(|| "there is no MongoDB".to_owned())
    }
}

impl InboxHarness for Subject {
    type Effects = Effected;

    async fn effects(&self) -> Effected {
        Effected::made_in(self.store.client().default_database().expect("the URL names a database")).await
    }
}

/// A URL with another database in it.
fn in_database(url: &str, name: &str) -> String {
    let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
    let host = address.strip_prefix("mongodb://").or_else(|| address.strip_prefix("mongodb+srv://"));
    let end =
        address.len() - host.and_then(|host| host.split_once('/')).map_or(0, |(_, name)| name.len() + 1);
    format!("{}/{name}?{parameters}", &address[..end])
}

outbox_testkit::inbox_conformance!(Subject);
