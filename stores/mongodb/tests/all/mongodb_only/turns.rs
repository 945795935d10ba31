//! Turns of an inbox: documents that a deduplication examines, whatever waits behind its messages.

use futures_util::TryStreamExt;
use mongodb::Collection;
use mongodb::bson::{Bson, Document, doc};
use outbox_contract::backend::{BucketSet, Dedup, FetchRequest, RelayId, Stored};
use outbox_contract::{Consumer, Message, Outgoing, Route, Store, Transactional, inbox_route};
use outbox_store_mongodb::MongoDbStore;

use super::commands::{name, noting};
use super::support::{Fixture, collection_of, lease_request, message, messages};

/// Messages of as many keys that wait.
const WAITING: usize = 10_000;

/// Appends messages to a route, and commits them by the thousand.
async fn append(store: &MongoDbStore, route: &Route, messages: &[Message]) {
    for some in messages.chunks(1_000) {
        let outgoing: Vec<Outgoing> =
            some.iter().map(|message| Outgoing::from(message.clone()).by(route.clone())).collect();
        let mut tx = store.begin().await.unwrap();
        store.append(&mut tx, &outgoing).await.unwrap();
        store.commit(tx).await.into_result().unwrap();
    }
}

/// Documents of the hot collection that the server examines for a find: along the names, up to the
/// one that fills its limit, or all of its range.
async fn examined(hot: &Collection<Document>, find: &Document) -> u64 {
    let filter = find.get_document("filter").unwrap();
    let mut range = filter.get_document("_id").unwrap().clone();
    let limit = match find.get("limit") {
        Some(Bson::Int64(limit)) => *limit,
        Some(Bson::Int32(limit)) => i64::from(*limit),
        _ => 0,
    };
    let names = hot.find(filter.clone()).sort(doc! { "_id": 1 }).limit(limit).projection(doc! { "_id": 1 });
    let names: Vec<Document> = names.await.unwrap().try_collect().await.unwrap();
    if limit > 0 && names.len() as i64 == limit {
        range.remove("$lt");
        range.insert("$lte", names.last().unwrap().get("_id").unwrap().clone());
    }
    hot.count_documents(doc! { "_id": range }).await.unwrap()
}

/// Commands that a deduplication sent, and documents of the hot collection examined for them.
struct Cost {
    commands: usize,
    examined: u64,
}

/// An inbox with a backlog.
struct Backlog {
    fixture: Fixture,
    consumer: Consumer,
    route: Route,
    relay: RelayId,
}

impl Backlog {
    async fn of(messages: &[Message]) -> Option<Self> {
        let fixture = Fixture::new().await?;
        let consumer = Consumer::new("inventory").unwrap();
        let (route, relay) = (inbox_route(&consumer), RelayId::new());
        append(&fixture.store, &route, messages).await;
        let mut request = lease_request(relay);
        request.route = route.clone();
        fixture.store.lease(&request).await.unwrap();
        Some(Self { fixture, consumer, route, relay })
    }

    /// The first messages that wait.
    async fn front(&self, many: usize) -> Vec<std::sync::Arc<Stored>> {
        let mut request = FetchRequest::new(self.route.clone(), self.relay, BucketSet::ALL);
        request.limit = many;
        messages(self.fixture.store.fetch(&request).await.unwrap().rows)
    }

    /// Handles messages in one transaction, behind a fence around those that are stored.
    async fn handle(&self, handled: &[&Message], stored: &[&Stored]) -> (Vec<Dedup>, Cost) {
        let (store, noted) = noting(&self.fixture).await;
        let mut tx = store.begin().await.unwrap();
        let wait = store.fence(&mut tx, &self.route, stored).await.unwrap();
        assert!(wait.iter().all(|waits| *waits));
        noted.lock().unwrap().clear();
        let answers = store.deduplicate(&mut tx, &self.consumer, handled).await.unwrap();
        let commands = std::mem::take(&mut *noted.lock().unwrap());
        store.commit(tx).await.into_result().unwrap();
        let hot = collection_of(&self.fixture.store, "outbox_message");
        let mut cost = Cost { commands: commands.len(), examined: 0 };
        for find in commands.iter().filter(|command| name(command) == "find outbox_message") {
            cost.examined += examined(&hot, find).await;
        }
        (answers, cost)
    }

    async fn handle_stored(&self, stored: &[std::sync::Arc<Stored>]) -> (Vec<Dedup>, Cost) {
        let handled: Vec<&Message> = stored.iter().map(|stored| &stored.message).collect();
        let stored: Vec<&Stored> = stored.iter().map(|stored| &**stored).collect();
        self.handle(&handled, &stored).await
    }
}

/// A consumer that was down for a while reads its backlog once, not for each message of it.
#[tokio::test]
async fn a_message_at_the_front_is_found_without_reading_what_waits_behind_it() {
    let first = message("first");
    let second = message("first");
    let others = (0..WAITING).map(|at| message(&format!("key-{at}")));
    let all: Vec<Message> = [first, second].into_iter().chain(others).collect();
    let Some(backlog) = Backlog::of(&all).await else { return };

    let front = backlog.front(2).await;
    let (answers, cost) = backlog.handle_stored(&front[..1]).await;
    assert_eq!(answers, [Dedup::New]);
    assert!(cost.examined < 100, "{} of {WAITING}", cost.examined);
    // The one in front of it is handled, and not settled yet.
    let (answers, cost) = backlog.handle_stored(&front[1..]).await;
    assert_eq!(answers, [Dedup::New]);
    assert!(cost.examined < 100, "{} of {WAITING}", cost.examined);
    // A batch.
    let front = backlog.front(102).await;
    let (answers, cost) = backlog.handle_stored(&front[2..]).await;
    assert_eq!(answers, [Dedup::New; 100]);
    assert!(cost.examined < 1_000, "{} of {WAITING}", cost.examined);
    assert!(cost.commands < 10, "{} commands for 100 messages", cost.commands);
}

/// A message from the broker waits nowhere, so all that waits is read: once for a batch.
#[tokio::test]
async fn a_batch_from_the_broker_reads_what_waits_once() {
    let waiting: Vec<Message> = (0..WAITING).map(|at| message(&format!("key-{at}"))).collect();
    let Some(backlog) = Backlog::of(&waiting).await else { return };
    let behind = message("key-77");
    let new: Vec<Message> = (0..50).map(|at| message(&format!("new-{at}"))).chain([behind]).collect();
    let (answers, cost) = backlog.handle(&new.iter().collect::<Vec<_>>(), &[]).await;
    assert_eq!(answers[..50], [Dedup::New; 50]);
    assert_eq!(answers[50], Dedup::OutOfTurn);
    assert!(cost.examined < WAITING as u64 + 10, "{} of {WAITING}", cost.examined);
    assert!(cost.commands < 10, "{} commands for 51 messages", cost.commands);
}

/// Of a key, what is behind the first message that is not of the batch is not read.
#[tokio::test]
async fn a_batch_of_keys_that_wait_reads_no_further_than_to_the_first_of_each() {
    let waiting: Vec<Message> = (0..WAITING).map(|at| message(&format!("key-{}", at % 100))).collect();
    let Some(backlog) = Backlog::of(&waiting).await else { return };
    let new: Vec<Message> = (0..200).map(|at| message(&format!("key-{}", at % 100))).collect();
    let (answers, cost) = backlog.handle(&new.iter().collect::<Vec<_>>(), &[]).await;
    assert_eq!(answers, [Dedup::OutOfTurn; 200]);
    assert!(cost.examined < 1_000, "{} of {WAITING}", cost.examined);
}

/// Those in front of it are handled, and not settled yet: more than the short pages have room for.
#[tokio::test]
async fn a_message_behind_many_unsettled_ones_is_found_without_reading_what_waits_behind_it() {
    const UNSETTLED: usize = 20;
    let same = (0..=UNSETTLED).map(|_| message("first"));
    let all: Vec<Message> = same.chain((0..WAITING).map(|at| message(&format!("key-{at}")))).collect();
    let Some(backlog) = Backlog::of(&all).await else { return };
    let front = backlog.front(UNSETTLED + 1).await;
    let (answers, _) = backlog.handle_stored(&front[..UNSETTLED]).await;
    assert_eq!(answers, [Dedup::New; UNSETTLED]);
    let (answers, cost) = backlog.handle_stored(&front[UNSETTLED..]).await;
    assert_eq!(answers, [Dedup::New]);
    assert!(cost.examined < 100, "{} of {WAITING}", cost.examined);
}
