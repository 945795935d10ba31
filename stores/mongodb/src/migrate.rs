//! Migration: the collections and indexes of this version, and whether they are there.
//!
//! Every step does nothing where it was done before, so any number of programs may migrate at once.

use std::time::Duration;

use mongodb::IndexModel;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{IndexOptions, WriteConcern};
use outbox_contract::{Route, StoreError, StoreErrorKind};

use crate::database::{
    AUDIT, DEAD, Database, HISTORY, IDENTITY, IS_HANDLED, KEY, MESSAGE, PARKED, RETENTION, ROLE, ROUTE,
    SCHEDULED, SCHEMA, STRIPE,
};
use crate::error::{
    ALTERED, Failed, INDEX_KEY_CONFLICT, INDEX_OPTIONS_CONFLICT, NAMESPACE_EXISTS, NO_TRANSACTIONS,
    NOT_MIGRATED, code, is_duplicate,
};
use crate::transaction::Attempts;
use crate::{lease, stripes};

/// The version of the collections that this code needs.
const NEEDED: i32 = 1;

/// MongoDB 6.0, in the number by which servers and drivers agree on what they speak.
const OLDEST_WIRE_VERSION: i32 = 17;

/// Every collection: a transaction must not be the first to write to one.
const COLLECTIONS: [&str; 14] = [
    MESSAGE, STRIPE, ROUTE, KEY, PARKED, DEAD, HISTORY, SCHEDULED, IS_HANDLED, RETENTION, ROLE, IDENTITY,
    AUDIT, SCHEMA,
];

/// An index: its collection, its name, its fields in order, and whether the server removes
/// documents by it.
struct Index {
    collection: &'static str,
    name: &'static str,
    fields: &'static [&'static str],
    removes: bool,
}

const fn index(collection: &'static str, name: &'static str, fields: &'static [&'static str]) -> Index {
    Index { collection, name, fields, removes: false }
}

const fn removing(collection: &'static str) -> Index {
    Index { collection, name: "removal", fields: &["remove_at"], removes: true }
}

/// Every index beside those of `_id`. The hot collection has none: rows are found by route and
/// position, which are its `_id`.
const INDEXES: &[Index] = &[
    index(STRIPE, "route", &["route"]),
    index(KEY, "due", &["route", "next_attempt_at"]),
    index(PARKED, "key", &["route", "topic", "order_key", "number"]),
    index(DEAD, "death", &["died_at", "step", "position"]),
    index(DEAD, "route", &["route", "topic"]),
    index(SCHEDULED, "due", &["due_at", "turn"]),
    index(SCHEDULED, "route", &["route"]),
    index(HISTORY, "delivery", &["delivered_at", "position"]),
    index(AUDIT, "at", &["at"]),
    removing(AUDIT),
    removing(HISTORY),
    index(IS_HANDLED, "handling", &["_id.consumer", "handled_at"]),
];

impl Index {
    fn keys(&self) -> Document {
        self.fields.iter().map(|field| ((*field).to_owned(), Bson::Int32(1))).collect()
    }

    fn model(&self) -> IndexModel {
        let mut options = IndexOptions::builder().name(self.name.to_owned()).build();
        if self.removes {
            options.expire_after = Some(Duration::ZERO);
        }
        IndexModel::builder().keys(self.keys()).options(options).build()
    }

    /// Returns true if an existing index is this one.
    fn is(&self, there: &IndexModel) -> bool {
        let fields: Vec<&String> = there.keys.keys().collect();
        let ascends = there
            .keys
            .values()
            .all(|way| matches!(way, Bson::Int32(1) | Bson::Int64(1)) || *way == Bson::Double(1.0));
        let removes = there.options.as_ref().and_then(|options| options.expire_after) == Some(Duration::ZERO);
        fields == self.fields && ascends && removes == self.removes
    }
}

pub(crate) async fn migrate(database: &Database) -> Result<(), StoreError> {
    const OPERATION: &str = "migrate";
    check_server(database, OPERATION).await?;
    let version = version(database).await.map_err(|failed| failed.in_step(OPERATION))?;
    if version > NEEDED {
        return Err(too_new(OPERATION, version));
    }
    let mut attempts = Attempts::new(database.options.conflict_timeout);
    while let Err(failed) = make(database).await {
        attempts.after(OPERATION, failed).await?;
    }
    if version < NEEDED {
        tracing::info!(version = NEEDED, "the collections of the outbox were created");
    }
    Ok(())
}

async fn make(database: &Database) -> Result<(), Failed> {
    let there = database.inner.list_collection_names().await?;
    for name in COLLECTIONS.iter().filter(|name| !there.iter().any(|there| there == *name)) {
        match database.inner.create_collection(*name).await {
            Err(error) if code(&error) != Some(NAMESPACE_EXISTS) => return Err(error.into()),
            _ => {}
        }
    }
    for index in INDEXES {
        let collection = database.inner.collection::<Document>(index.collection);
        match collection.create_index(index.model()).await {
            Err(error) if matches!(code(&error), Some(INDEX_OPTIONS_CONFLICT | INDEX_KEY_CONFLICT)) => {
                return Err(altered("migrate", &format!("the index {} of {}", index.name, index.collection))
                    .with_source(error)
                    .into());
            }
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
    }
    // Last: who finds the version finds everything.
    let version = doc! { "_id": NEEDED, "name": "create" };
    match database.schema().insert_one(version).await {
        Err(error) if !is_duplicate(&error) => return Err(error.into()),
        _ => {}
    }
    stripes::make(database, &Route::default()).await?;
    lease::make(database, &Route::default()).await
}

/// Says whether the collections are the ones that this version needs.
pub(crate) async fn check(database: &Database) -> Result<(), StoreError> {
    const OPERATION: &str = "check";
    let failed = |error| Failed::from(error).in_step(OPERATION);
    check_server(database, OPERATION).await?;
    require(database, OPERATION).await.map_err(|failed| failed.in_step(OPERATION))?;
    let there = database.inner.list_collection_names().await.map_err(failed)?;
    if let Some(missing) = COLLECTIONS.iter().find(|name| !there.iter().any(|there| there == *name)) {
        return Err(altered(OPERATION, &format!("{missing} is missing")));
    }
    for index in INDEXES {
        let collection = database.inner.collection::<Document>(index.collection);
        let mut cursor = collection.list_indexes().await.map_err(failed)?;
        let mut is_there = false;
        while cursor.advance().await.map_err(failed)? {
            is_there |= index.is(&cursor.deserialize_current().map_err(failed)?);
        }
        if !is_there {
            let (name, fields) = (index.name, index.fields.join(", "));
            let what =
                format!("the index {name} of {} over {fields} is missing, or differs", index.collection);
            return Err(altered(OPERATION, &what));
        }
    }
    if let Some(concern) =
        database.client.write_concern().filter(|concern| **concern != WriteConcern::majority())
    {
        tracing::warn!(
            ?concern,
            "the default write concern of this client is below `majority`; a failover can roll back committed transactions, and their messages with them"
        );
    }
    Ok(())
}

/// Refuses what has no collections of an outbox.
pub(crate) async fn require(database: &Database, operation: &'static str) -> Result<(), Failed> {
    match version(database).await? {
        version if version > NEEDED => Err(too_new(operation, version).into()),
        NEEDED => Ok(()),
        _ => Err(not_migrated(operation).into()),
    }
}

/// The version of the collections; 0 where there are none.
async fn version(database: &Database) -> Result<i32, Failed> {
    let last = database.schema().find_one(doc! {}).sort(doc! { "_id": -1 }).await?;
    Ok(last.and_then(|last| last.get_i32("_id").ok()).unwrap_or_default())
}

pub(crate) fn not_migrated(operation: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::NotMigrated, operation, NOT_MIGRATED)
}

fn too_new(operation: &'static str, version: i32) -> StoreError {
    StoreError::new(
        StoreErrorKind::SchemaTooNew,
        operation,
        format!(
            "the collections have version {version}, and this program supports {NEEDED}; upgrade the program"
        ),
    )
}

fn altered(operation: &'static str, what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::SchemaAltered, operation, format!("{ALTERED} ({what})"))
}

/// Refuses a server that can't do what the store needs.
pub(crate) async fn check_server(database: &Database, operation: &'static str) -> Result<(), StoreError> {
    let hello = database.client.database("admin").run_command(doc! { "hello": 1 }).await;
    let hello = hello.map_err(|error| Failed::from(error).in_step(operation))?;
    let (kind, words) = match fitness(&hello) {
        Ok(()) => return Ok(()),
        Err(unfit) => unfit,
    };
    Err(StoreError::new(kind, operation, words))
}

/// Returns the problem with a server, by its own description.
fn fitness(hello: &Document) -> Result<(), (StoreErrorKind, String)> {
    let unsupported = |words: String| Err((StoreErrorKind::Unsupported, words));
    let wire = hello.get_i32("maxWireVersion").unwrap_or_default();
    if hello.get_str("msg").is_ok_and(|kind| kind == "isdbgrid") {
        return unsupported(
            "this is a router of a sharded cluster, where what is read of a transaction need not be whole; connect to a replica set".to_owned(),
        );
    }
    if hello.get_str("setName").is_err() {
        return unsupported(NO_TRANSACTIONS.to_owned());
    }
    if wire < OLDEST_WIRE_VERSION {
        return unsupported(format!(
            "the server speaks version {wire} of the protocol, and the outbox needs {OLDEST_WIRE_VERSION}: MongoDB 6.0 or later"
        ));
    }
    let is_primary = hello.get_bool("isWritablePrimary").or_else(|_| hello.get_bool("ismaster"));
    if !is_primary.unwrap_or_default() {
        return Err((
            StoreErrorKind::Unavailable,
            "this server is not the primary; connect with all addresses and the name of the replica set, without directConnection".to_owned(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primary() -> Document {
        doc! { "isWritablePrimary": true, "setName": "rs0", "maxWireVersion": 21 }
    }

    #[track_caller]
    fn assert_unfit(change: Document, kind: StoreErrorKind, says: &str) {
        let mut hello = primary();
        hello.extend(change);
        let hello = hello.into_iter().filter(|(_, value)| *value != Bson::Null).collect();
        let (is, words) = fitness(&hello).unwrap_err();
        assert_eq!(is, kind, "{words}");
        assert!(words.contains(says), "{words}");
    }

    #[test]
    fn a_server_that_can_not_do_it_is_told_apart() {
        assert_eq!(fitness(&primary()), Ok(()));
        assert_unfit(doc! { "setName": Bson::Null }, StoreErrorKind::Unsupported, "replica set");
        assert_unfit(
            doc! { "setName": Bson::Null, "msg": "isdbgrid" },
            StoreErrorKind::Unsupported,
            "sharded cluster",
        );
        assert_unfit(doc! { "maxWireVersion": 13 }, StoreErrorKind::Unsupported, "MongoDB 6.0");
        assert_unfit(
            doc! { "isWritablePrimary": false, "secondary": true },
            StoreErrorKind::Unavailable,
            "not the primary",
        );
    }
}
