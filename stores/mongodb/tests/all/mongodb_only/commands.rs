//! Commands sent to the server: their concerns, and their order.

use std::sync::{Arc, Mutex};

use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::{ClientOptions, ReadPreference, SelectionCriteria, WriteConcern};
use outbox_contract::backend::BucketSet;
use outbox_contract::{Outgoing, Route, Store, Transactional};
use outbox_store_mongodb::MongoDbStore;

use super::support::{Fixture, append, fetch, message, messages, relay};

/// The store on a client that notes its commands, and whose own concerns are the worst.
pub(crate) async fn noting(fixture: &Fixture) -> (MongoDbStore, Arc<Mutex<Vec<Document>>>) {
    let noted: Arc<Mutex<Vec<Document>>> = Arc::default();
    let mut options = ClientOptions::parse(&fixture.url).await.unwrap();
    let notes = Arc::clone(&noted);
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        if let CommandEvent::Started(started) = event {
            notes.lock().unwrap().push(started.command);
        }
    }));
    options.write_concern = Some(WriteConcern::nodes(1));
    options.selection_criteria =
        Some(SelectionCriteria::ReadPreference(ReadPreference::PrimaryPreferred { options: None }));
    let database = options.default_database.clone().unwrap();
    let client = Client::with_options(options).unwrap();
    let store = MongoDbStore::with_options(client, &database, fixture.store.options().clone()).unwrap();
    (store, noted)
}

pub(crate) fn name(command: &Document) -> String {
    let (name, value) = command.iter().next().unwrap();
    format!("{name} {}", value.as_str().unwrap_or_default())
}

/// The commands of each transaction, in the order in which these began.
pub(crate) fn of_transactions(commands: &[Document]) -> Vec<Vec<Document>> {
    let mut transactions: Vec<(Document, Vec<Document>)> = Vec::new();
    for command in commands.iter().filter(|command| command.contains_key("autocommit")) {
        let name = doc! { "session": command.get("lsid"), "number": command.get("txnNumber") };
        match transactions.iter_mut().find(|(of, _)| *of == name) {
            Some((_, of)) => of.push(command.clone()),
            None => transactions.push((name, vec![command.clone()])),
        }
    }
    transactions.into_iter().map(|(_, commands)| commands).collect()
}

fn concern<'a>(command: &'a Document, concern: &str, field: &str) -> Option<&'a mongodb::bson::Bson> {
    command.get_document(concern).ok()?.get(field)
}

/// Rows that were read before a lease could be old; keys that were read before the rows could have
/// begun to fail since.
#[tokio::test]
async fn a_fetch_reads_leases_then_rows_then_failing_keys() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, noted) = noting(&fixture).await;
    let relay = relay(&store).await;
    append(&store, [message("a")]).await;
    noted.lock().unwrap().clear();
    assert_eq!(messages(fetch(&store, relay).await).len(), 1);
    let commands = std::mem::take(&mut *noted.lock().unwrap());
    let names: Vec<String> = commands.iter().map(name).collect();
    assert_eq!(names, ["aggregate outbox_route", "find outbox_message", "find outbox_key"]);
    for command in &commands {
        let level = concern(command, "readConcern", "level").and_then(mongodb::bson::Bson::as_str);
        assert_eq!(level, Some("majority"), "{}", name(command));
        let preference = concern(command, "$readPreference", "mode").and_then(mongodb::bson::Bson::as_str);
        assert!(preference.is_none_or(|mode| mode == "primary"), "{preference:?}");
    }
}

/// Whatever the client says: only settlements may be lost.
#[tokio::test]
async fn everything_but_a_settlement_is_confirmed_by_a_majority() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, noted) = noting(&fixture).await;
    let relay = relay(&store).await;
    append(&store, [message("a")]).await;
    let read = messages(fetch(&store, relay).await);
    store.settle(&Route::default(), &[read[0].row()]).await.unwrap();
    store.elect("janitor", relay, std::time::Duration::from_secs(60)).await.unwrap();
    let commands = std::mem::take(&mut *noted.lock().unwrap());
    let mut confirmed = 0;
    for command in &commands {
        let said = concern(command, "writeConcern", "w");
        let in_transaction = command.contains_key("autocommit");
        match name(command).split(' ').next().unwrap() {
            "delete" => assert_eq!(said, Some(&mongodb::bson::Bson::Int32(1)), "{command}"),
            "commitTransaction" | "insert" | "update" | "findAndModify"
                if !in_transaction || command.contains_key("commitTransaction") =>
            {
                assert_eq!(said, Some(&"majority".into()), "{}", name(command));
                confirmed += 1;
            }
            _ => {}
        }
    }
    assert!(confirmed >= 3, "a heartbeat, a commit and an election: {confirmed}");
}

#[tokio::test]
async fn an_append_takes_two_round_trips_and_three_for_many_stripes() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, noted) = noting(&fixture).await;
    for (keys, expected) in [
        (1, vec!["findAndModify outbox_stripe", "insert outbox_message"]),
        (40, vec!["update outbox_stripe", "find outbox_stripe", "insert outbox_message"]),
    ] {
        // The first append of a route asks for its stripes.
        append(&store, [message("first")]).await;
        let outgoing: Vec<Outgoing> = (0..keys).map(|at| message(&format!("key-{at}")).into()).collect();
        let mut tx = store.begin().await.unwrap();
        noted.lock().unwrap().clear();
        store.append(&mut tx, &outgoing).await.unwrap();
        let names: Vec<String> = noted.lock().unwrap().iter().map(name).collect();
        assert_eq!(names, expected);
        store.rollback(tx).await.unwrap();
    }
}

/// The marks of stripes are read with what a majority has, and are of the buckets asked for.
#[tokio::test]
async fn marks_are_of_the_buckets_asked_for() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let (a, b) = (message("a"), message("b"));
    assert_ne!(a.bucket(), b.bucket());
    append(store, [a.clone(), b]).await;
    let only_a = BucketSet::from_iter([a.bucket()]);
    let marks = store.frontier().stripes(&Route::default(), &only_a).await.unwrap();
    assert_eq!(marks.iter().map(|mark| mark.last.stripe.bucket()).collect::<Vec<_>>(), [a.bucket()]);
    assert_eq!(store.frontier().stripes(&Route::default(), &BucketSet::ALL).await.unwrap().len(), 2);
    let documents = fixture.collection("outbox_stripe").count_documents(doc! {}).await.unwrap();
    assert_eq!(documents, 1_024);
}
