//! Every operation of the dashboard on every kind of store.

use std::time::Duration;

use outbox::admin::{Filter, View};
use outbox::mongodb::{MongoDbOptions, MongoDbStore};
use outbox::mysql::{MySqlOptions, MySqlStore};
use outbox::postgres::{PostgresOptions, PostgresStore};
use outbox::sqlite::{SqliteOptions, SqliteStore};
use outbox::{MessageId, Transactional};
use outbox_servers::{MongoDb, MySql, OrSkip, Postgres};

use crate::world::{Browser, World};

const HISTORY: Option<Duration> = Some(Duration::from_secs(3_600));

/// A dead letter is requeued from its page, by a filter, by its cause and as one of those chosen.
async fn dead_letters<S: Transactional + Clone>(world: &World<S>, browser: &Browser) {
    let id = world.view(View::DeadLetters).await[0].stored.message.id;
    let again = async || {
        assert_eq!(world.number(View::DeadLetters).await, 0);
        world.bury(id, "order 17: no such column").await;
    };
    browser.press(&format!("/message?id={id}"), "Requeue").await.says("Requeued 1 dead letter.");
    again().await;
    browser.get("/dead?type=order.canceled").await.is(200).says("No dead letter fits the filter.");
    browser.press("/dead?key=dead&type=order.placed", "Requeue all").await.says("Requeued 1 dead letter.");
    again().await;
    browser.press("/causes?text=column", "Requeue").await.says("Requeued 1 dead letter.");
    again().await;
    let asks = browser.get(&format!("/confirm?op=purge&chosen=1&id={id}&back=/dead")).await.is(200);
    browser.send(&asks.form_of_confirmation()).await.is(303);
    assert_eq!(world.number(View::DeadLetters).await, 0);
}

async fn keys<S: Transactional + Clone>(world: &World<S>, browser: &Browser) {
    let at = |key: &str| format!("/key?topic=orders&key={key}");
    let states = async || {
        let keys = world.store.failing_keys(&Filter::all_routes()).await.unwrap();
        let mut states: Vec<_> = keys.into_iter().map(|key| (key.key.key.to_string(), key.held)).collect();
        states.sort();
        states
    };
    let of = |keys: &[(&str, bool)]| -> Vec<_> {
        keys.iter().map(|(key, held)| ((*key).to_owned(), *held)).collect()
    };
    browser.press(&at("waiting"), "Hold").await.says("Held the key waiting of orders.");
    assert_eq!(states().await, of(&[("failing", false), ("held", true), ("waiting", true)]));
    browser.press("/keys?key=waiting", "Release all").await.says("Released 1 key.");
    browser.press(&at("held"), "Release: try again now").await.says("Released 1 key.");
    assert_eq!(states().await, of(&[("failing", false), ("held", false), ("waiting", false)]));
    browser.press(&at("failing"), "Skip the first message").await.says("Skipped the first message of 1 key.");
    browser.press(&at("held"), "Discard all parked messages").await.says("Discarded the messages of 1 key.");
    let dead = world.view(View::DeadLetters).await;
    let reasons: Vec<String> = dead.into_iter().map(|listed| listed.death.unwrap().reason).collect();
    assert_eq!(reasons, ["skipped", "discarded"]);
    assert_eq!(world.number(View::Parked).await, 0);
}

/// Presses every button of a full outbox, sees its effect, and its record.
async fn operations<S: Transactional + Clone>(store: S) {
    store.migrate().await.unwrap();
    let world = World::of(store);
    world.fill().await;
    let browser = world.browser();
    dead_letters(&world, &browser).await;
    keys(&world, &browser).await;
    let past: MessageId = world.view(View::History).await[0].stored.message.id;
    let replayed = "Replayed 1 delivered message.";
    browser.press(&format!("/message?view=history&id={past}"), "Replay").await.says(replayed);
    browser.press("/messages?view=history&key=past", "Replay all").await.says(replayed);
    browser.press("/scheduled", "Cancel all").await.says("Canceled 1 scheduled message.");
    assert_eq!(world.number(View::Scheduled).await, 0);
    for (button, said) in [
        ("Pause the route", "Paused the route default."),
        ("Resume the route", "Resumed the route default."),
        ("Pause", "Paused the topic orders."),
    ] {
        browser.press("/topics", button).await.says(said);
    }
    browser.get("/").await.is(200).says("the topic orders is paused");
    browser.press("/topics", "Resume").await.says("Resumed the topic orders.");
    browser.press("/dead?route=default", "Purge all").await.says("Purged 2 dead letters.");
    assert_eq!(world.number(View::DeadLetters).await, 0);

    let audit = world.store.audit(&Filter::all_routes()).await.unwrap();
    assert!(audit.iter().all(|entry| entry.actor.as_str() == "local (dashboard)"), "{audit:?}");
    let done: Vec<&str> = audit.iter().map(|entry| entry.operation.as_str()).collect();
    let expected = [
        "requeue",
        "requeue",
        "requeue",
        "purge",
        "hold",
        "release",
        "release",
        "skip",
        "discard",
        "replay",
        "replay",
        "cancel_scheduled",
        "pause",
        "resume",
        "pause",
        "resume",
        "purge",
    ];
    assert_eq!(done, expected);
    browser.get("/audit").await.is(200).says("cancel_scheduled");
}

#[tokio::test]
async fn every_operation_of_the_dashboard_works_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = SqliteOptions::default();
    options.history = HISTORY;
    operations(SqliteStore::open_with(&folder.path().join("shop.db"), options).await.unwrap()).await;
}

#[tokio::test]
async fn every_operation_of_the_dashboard_works_on_postgresql() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let mut options = PostgresOptions::default();
    options.history = HISTORY;
    operations(PostgresStore::connect_with(&server.fresh_database(), options).await.unwrap()).await;
}

#[tokio::test]
async fn every_operation_of_the_dashboard_works_on_mysql() {
    let Some(server) = MySql::newest().shared().or_skip() else { return };
    let mut options = MySqlOptions::default();
    options.history = HISTORY;
    operations(MySqlStore::connect_with(&server.fresh_database(), options).await.unwrap()).await;
}

#[tokio::test]
async fn every_operation_of_the_dashboard_works_on_mongodb() {
    let Some(server) = MongoDb::newest().shared().or_skip() else { return };
    let mut options = MongoDbOptions::default();
    options.history = HISTORY;
    let url = server.url().replacen("/?", &format!("/{}?", server.fresh_database()), 1);
    operations(MongoDbStore::connect_with(&url, options).await.unwrap()).await;
}
