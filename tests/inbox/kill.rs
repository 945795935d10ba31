//! A consumer that dies behind each step, and one that continues where it was.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use outbox_engine::Step;
use sqlx::Row;

use crate::inbox::consumer::{BATCH, CRASH, FAILING, FOLDER, MODE, open};
use crate::inbox::file_broker::{FileBroker, Sent};

/// Five messages of each of four keys, one of which fails, with repeats of old ones behind newer
/// ones.
fn messages() -> Vec<Sent> {
    let mut sent: Vec<Sent> = Vec::new();
    for _ in 0..5 {
        for key in ["a", "b", FAILING, "c"] {
            sent.push(Sent { id: uuid::Uuid::now_v7(), key: key.to_owned() });
        }
    }
    for stale in [0, 2, 6, 10] {
        sent.push(sent[stale].clone());
    }
    sent
}

/// Runs the consumer until it ends or dies.
fn consumer(folder: &Path, mode: &str, batch: usize, crash: Option<(usize, u32)>) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "inbox::consumer::consumer_process", "--ignored"])
        .env(FOLDER, folder)
        .env(MODE, mode)
        .env(BATCH, batch.to_string())
        .stdout(Stdio::null());
    match crash {
        Some((step, time)) => command.env(CRASH, format!("{step} {time}")).stderr(Stdio::null()),
        None => command.env_remove(CRASH),
    };
    command.status().unwrap()
}

async fn assert_once_and_in_order(folder: &Path, sent: &[Sent], what: &str) {
    let store = open(folder).await;
    let rows =
        sqlx::query("select id, key from effects order by place").fetch_all(store.pool()).await.unwrap();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in rows {
        found.entry(row.get("key")).or_default().push(row.get("id"));
    }
    let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for sent in sent {
        let ids = expected.entry(sent.key.clone()).or_default();
        if !ids.contains(&sent.id.to_string()) {
            ids.push(sent.id.to_string());
        }
    }
    assert_eq!(found, expected, "effects, {what}");
    let emitted =
        sqlx::query("select headers, key from outbox_message where route = 'default' order by position");
    let mut replies: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in emitted.fetch_all(store.pool()).await.unwrap() {
        let headers: BTreeMap<String, String> = serde_json::from_slice(row.get("headers")).unwrap();
        replies.entry(row.get("key")).or_default().push(headers["of"].clone());
    }
    assert_eq!(replies, expected, "what was emitted, {what}");
}

async fn killed_behind_each_step(mode: &str, batch: usize) {
    let mut crashes = 0;
    for (step, name) in Step::ALL.iter().enumerate() {
        for time in [1, 3] {
            let folder = tempfile::tempdir().unwrap();
            let sent = messages();
            FileBroker::new(folder.path()).send(&sent);
            let what = format!("{mode}, batches of {batch}, killed behind {name:?} number {time}");
            // A step may occur fewer times than that; then there is no crash.
            crashes += usize::from(!consumer(folder.path(), mode, batch, Some((step, time))).success());
            assert!(consumer(folder.path(), mode, batch, None).success(), "{what}");
            assert_once_and_in_order(folder.path(), &sent, &what).await;
        }
    }
    assert!(crashes >= Step::ALL.len(), "only {crashes} processes died");
}

#[tokio::test]
async fn effects_are_once_though_the_consumer_is_killed_behind_each_step() {
    killed_behind_each_step("direct", 1).await;
}

#[tokio::test]
async fn effects_are_once_though_the_consumer_is_killed_in_batches() {
    killed_behind_each_step("direct", 6).await;
}

#[tokio::test]
async fn effects_are_once_though_the_consumer_is_killed_in_stored_mode() {
    killed_behind_each_step("stored", 1).await;
}
