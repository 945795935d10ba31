//! A majority may be behind a write that this process was told of: what is read next waits until it
//! is not.

use std::sync::{Arc, Mutex};

use mongodb::Client;
use mongodb::bson::{Document, Timestamp};
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::ClientOptions;
use outbox_contract::backend::{
    BucketSet, DueRequest, KeyTransition, LeaseRequest, RelayId, RowId, Step, Stored, Then,
};
use outbox_contract::{Consumer, Failure, Outgoing, Route, Store, Transactional};
use outbox_store_mongodb::MongoDbStore;

use super::support::{Fixture, everything, fetch, lease_request, message, messages};

/// Requests and answers of a client, as far as times go, in order.
#[derive(Debug)]
enum Said {
    /// A read that waits for a time; or for none.
    Reads(String, Option<Timestamp>),
    /// A write that was answered, with when it was.
    Wrote(String, Timestamp),
}

/// A store whose client notes this.
async fn noting(fixture: &Fixture) -> (MongoDbStore, Arc<Mutex<Vec<Said>>>) {
    let noted: Arc<Mutex<Vec<Said>>> = Arc::default();
    let mut options = ClientOptions::parse(&fixture.url).await.unwrap();
    let notes = Arc::clone(&noted);
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        let said = match event {
            CommandEvent::Started(started) => read(&started.command),
            CommandEvent::Succeeded(succeeded) => wrote(&succeeded.command_name, &succeeded.reply),
            _ => None,
        };
        notes.lock().unwrap().extend(said);
    }));
    let database = options.default_database.clone().unwrap();
    let client = Client::with_options(options).unwrap();
    let store = MongoDbStore::with_options(client, &database, fixture.store.options().clone()).unwrap();
    (store, noted)
}

/// Returns a command that begins to read: later reads of a transaction see what its first one saw.
fn read(command: &Document) -> Option<Said> {
    let name = super::commands::name(command);
    let goes_on = command.contains_key("autocommit") && !command.contains_key("startTransaction");
    let reads = name.starts_with("find ") || name.starts_with("aggregate ");
    let after = command
        .get_document("readConcern")
        .ok()
        .and_then(|concern| concern.get_timestamp("afterClusterTime").ok());
    (reads && !goes_on).then_some(Said::Reads(name, after))
}

fn wrote(name: &str, reply: &Document) -> Option<Said> {
    let writes = matches!(name, "delete" | "update" | "findAndModify" | "insert" | "commitTransaction");
    let at = reply.get_timestamp("operationTime").ok().filter(|_| writes)?;
    Some(Said::Wrote(name.to_owned(), at))
}

/// Each read waits for the last write before it. How many there are after a write.
#[track_caller]
fn assert_reads_wait(noted: &Mutex<Vec<Said>>, what: &str) -> usize {
    let mut last: Option<(String, Timestamp)> = None;
    let mut reads = 0;
    for said in std::mem::take(&mut *noted.lock().unwrap()) {
        match said {
            Said::Wrote(name, at) => last = Some((name, at)),
            Said::Reads(name, after) => {
                let Some((write, at)) = &last else { continue };
                assert!(
                    after.is_some_and(|after| after >= *at),
                    "{what}: {name} waits for {after:?}, and {write} was at {at}"
                );
                reads += 1;
            }
        }
    }
    reads
}

/// A step in which a message fails and is due again at once.
fn fails(request: &LeaseRequest, epoch: outbox_contract::backend::Epoch, stored: &Stored) -> KeyTransition {
    let failure = Failure::new("refused", "no");
    KeyTransition::new(
        Route::default(),
        request.relay,
        (stored.bucket, epoch),
        stored.message.key_id(),
        None,
        Step::Fail {
            row: stored.row(),
            attempts: 1,
            first: failure.clone(),
            last: failure,
            then: Then::RetryAfter(std::time::Duration::ZERO),
            behind: Vec::<RowId>::new(),
        },
    )
}

#[tokio::test]
async fn what_is_read_after_a_write_waits_for_it() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, noted) = noting(&fixture).await;
    let request = lease_request(RelayId::new());
    let relay = request.relay;
    let leases = store.lease(&request).await.unwrap().leases;
    fetch(&store, relay).await;
    assert_eq!(assert_reads_wait(&noted, "a heartbeat"), 2, "leases and rows, of which there are none");

    let mut tx = store.begin().await.unwrap();
    let outgoing = [Outgoing::from(message("a")), message("b").into()];
    store.append(&mut tx, &outgoing).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
    noted.lock().unwrap().retain(|said| matches!(said, Said::Wrote(name, _) if name == "commitTransaction"));
    store.frontier().stripes(&Route::default(), &BucketSet::ALL).await.unwrap();
    let read = messages(fetch(&store, relay).await);
    assert_eq!(read.len(), 2);
    assert!(assert_reads_wait(&noted, "a commit") >= 4, "marks, leases, rows and failing keys");

    store.settle(&Route::default(), &[read[0].row()]).await.unwrap();
    assert_eq!(messages(fetch(&store, relay).await).len(), 1);
    assert_eq!(assert_reads_wait(&noted, "a settlement"), 3);

    let epoch = leases.iter().find(|lease| lease.bucket == read[1].bucket).unwrap().epoch;
    store.transition(&[fails(&request, epoch, &read[1])]).await.unwrap();
    // Reads of the step itself belong to it.
    noted.lock().unwrap().retain(|said| matches!(said, Said::Wrote(name, _) if name == "commitTransaction"));
    let mut due = DueRequest::new(Route::default(), relay, BucketSet::ALL);
    due.keys = 10;
    due.messages = 10;
    due.bytes = 1_000_000;
    assert!(store.fetch(&everything(relay)).await.unwrap().rows.is_empty());
    store.due(&due).await.unwrap();
    store.backlog(&Route::default()).await.unwrap();
    store.is_handled(&Consumer::new("shop").unwrap(), read[1].message.id).await.unwrap();
    assert!(assert_reads_wait(&noted, "a transition") >= 6);
}
