//! Shared parts of the tests: a store in a directory of its own, messages, a relay that owns
//! everything.

#[path = "../../../../sql/testing/steps.rs"]
mod steps;

use std::path::PathBuf;

use outbox_contract::{Message, Store};
use outbox_store_sqlite::SqliteStore;
use tempfile::TempDir;

pub(crate) use steps::*;

/// A migrated store in a file of its own.
pub(crate) struct Fixture {
    pub(crate) directory: TempDir,
    pub(crate) store: SqliteStore,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(directory.path().join("outbox.db")).await.unwrap();
        store.migrate().await.unwrap();
        Self { directory, store }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("outbox.db")
    }
}

pub(crate) fn message(key: &str, text: &str) -> Message {
    Message::new("orders", "order.placed")
        .unwrap()
        .with_key(key)
        .unwrap()
        .with_payload(text.to_owned().into_bytes())
}
