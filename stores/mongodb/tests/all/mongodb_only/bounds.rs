//! Bounds on the reads and writes of one call, and of one transaction of the store's.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use outbox_contract::admin::Filter;
use outbox_contract::backend::{
    BucketSet, Due, DueRequest, FetchedRow, KeyTransition, RelayId, Step, Then, Transitioned,
};
use outbox_contract::{
    Admin, AdminExt, Failure, KeyId, Message, MessageId, Outgoing, Route, Store, Transactional,
};
use outbox_store_mongodb::MongoDbStore;

use super::commands::{name, noting, of_transactions};
use super::support::{Fixture, append, epoch, fetch, message, relay};

/// Appends messages of a key, and parks all of them: the first has failed, and is due at once.
/// Gives their ids.
async fn park(store: &MongoDbStore, relay: RelayId, appended: Vec<Message>) -> Vec<MessageId> {
    let key = appended[0].key_id();
    let ids: Vec<MessageId> = appended.iter().map(|message| message.id).collect();
    let many = appended.len();
    append(store, appended).await;
    let mut parked = 0;
    let epoch = epoch(store, relay, &key).await;
    while parked < many {
        let read = fetch(store, relay).await;
        parked += read.len();
        let is_failing = matches!(read[0], FetchedRow::Failing(_));
        let row = |row: &FetchedRow| match row {
            FetchedRow::Message(stored) => stored.row(),
            FetchedRow::Failing(waiting) => waiting.at,
            other => panic!("neither a message nor one of a failing key: {other:?}"),
        };
        let mut rows: Vec<_> = read.iter().map(row).collect();
        let step = if is_failing {
            Step::Park { rows }
        } else {
            let failure = || Failure::new("test", "no");
            let row = rows.remove(0);
            let then = Then::RetryAfter(Duration::ZERO);
            Step::Fail { row, attempts: 3, first: failure(), last: failure(), then, behind: rows }
        };
        let (route, bucket, key) = (Route::default(), key.bucket(), key.clone());
        let step = KeyTransition::new(route, relay, (bucket, epoch), key, None, step);
        let answer = store.transition(&[step]).await.unwrap().remove(0);
        assert!(matches!(answer, Transitioned::Done(Some(_))), "{answer:?}");
    }
    ids
}

/// Returns the number of documents that a command inserts, or removes by their names.
fn rows(command: &Document) -> usize {
    match name(command).as_str() {
        "insert outbox_dead" => command.get_array("documents").unwrap().len(),
        "delete outbox_parked" => {
            let names = |delete: &Document| {
                delete.get_document("q").unwrap().get_document("_id").unwrap().get_array("$in").unwrap().len()
            };
            let deletes = command.get_array("deletes").unwrap();
            deletes.iter().map(|delete| names(delete.as_document().unwrap())).sum()
        }
        _ => 0,
    }
}

#[tokio::test]
async fn much_that_is_parked_is_discarded_in_several_transactions() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, noted) = noting(&fixture).await;
    let relay = relay(&store).await;
    let parked = (0..2_000).map(|_| message("a")).collect();
    let ids = park(&store, relay, parked).await;
    noted.lock().unwrap().clear();

    let key = message("a").key_id();
    assert_eq!(store.discard(&Route::default(), &key).await.unwrap(), 2_000);
    let transactions = of_transactions(&std::mem::take(&mut *noted.lock().unwrap()));
    let (last, before) = transactions.split_last().unwrap();
    assert!(before.len() >= 3, "{}", before.len());
    for transaction in &transactions {
        assert!(transaction.iter().all(|command| rows(command) <= 500));
        assert_eq!(transaction.iter().map(rows).sum::<usize>() % 1_000, 0, "500 go, and the same 500 come");
    }
    // Until all is gone the key is held: else the next of it would go out in between.
    for transaction in before {
        let change = transaction.iter().find(|command| name(command) == "update outbox_key").unwrap();
        let set = change.get_array("updates").unwrap()[0].as_document().unwrap().get_document("u").unwrap();
        assert!(set.get_document("$set").unwrap().get_bool("held").unwrap());
    }
    assert!(last.iter().any(|command| name(command) == "delete outbox_key"));

    assert!(store.failing_keys(&Filter::all_routes()).await.unwrap().is_empty());
    let mut dead = Vec::new();
    let mut filter = Filter::all_routes();
    while dead.len() < ids.len() {
        let page = store.dead_letters(&filter).await.unwrap();
        assert!(!page.is_empty(), "{} are missing", ids.len() - dead.len());
        dead.extend(page);
        filter.offset = dead.len();
    }
    assert_eq!(dead.iter().map(|dead| dead.stored.message.id).collect::<Vec<_>>(), ids, "in their order");
    assert!(dead.iter().all(|dead| dead.reason == "discarded"));
    assert_eq!(
        dead.iter().map(|dead| dead.attempts).collect::<Vec<_>>()[..3],
        [3, 0, 0],
        "of the one that failed"
    );
}

#[tokio::test]
async fn large_messages_are_discarded_a_few_at_a_time() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, noted) = noting(&fixture).await;
    let relay = relay(&store).await;
    for at in 0..3 {
        let large = message("a").with_payload(vec![at; 7 * 1024 * 1024]);
        park(&store, relay, vec![large]).await;
    }
    noted.lock().unwrap().clear();
    assert_eq!(store.discard(&Route::default(), &message("a").key_id()).await.unwrap(), 3);
    let transactions = of_transactions(&std::mem::take(&mut *noted.lock().unwrap()));
    let deleted = transactions.iter().map(|transaction| transaction.iter().map(rows).sum::<usize>() / 2);
    assert_eq!(deleted.collect::<Vec<_>>(), [2, 1]);
}

/// Else many keys with a large message each would be read at once, whatever was asked for.
#[tokio::test]
async fn only_the_first_message_of_the_first_due_key_comes_whatever_it_weighs() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    let heavy = |key: &str| message(key).with_payload(vec![7; 10_000]);
    for key in ["a", "b", "c"] {
        park(store, relay, vec![heavy(key), heavy(key)]).await;
    }
    let due = async |bytes: usize, except: Vec<KeyId>| {
        let mut request = DueRequest::new(Route::default(), relay, BucketSet::ALL);
        (request.except, request.bytes) = (except, bytes);
        store.due(&request).await.unwrap()
    };
    let parked = |due: &Due| due.keys.iter().map(|key| key.parked.len()).collect::<Vec<_>>();
    let more = Some(Duration::ZERO);
    let mut seen = Vec::new();
    for next in [more, more, None] {
        let little = due(1, seen.clone()).await;
        assert_eq!((parked(&little), little.next), (vec![1], next), "the others are asked for next");
        seen.push(little.keys[0].key.clone());
    }
    let some = due(35_000, Vec::new()).await;
    assert_eq!((parked(&some), some.next), (vec![2, 1], more));
    let all = due(1_000_000, Vec::new()).await;
    assert_eq!((parked(&all), all.next), (vec![2, 2, 2], None));
}

/// A page ends behind 64 MiB, and what is taken away or appended again is such a page.
#[tokio::test]
async fn a_page_of_large_messages_is_short() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let dead = fixture.collection("outbox_dead");
    let payload = mongodb::bson::Binary {
        subtype: mongodb::bson::spec::BinarySubtype::Generic,
        bytes: vec![7; 14 * 1024 * 1024],
    };
    for at in 0..6_i64 {
        let id = mongodb::bson::Uuid::from_bytes(*MessageId::new().as_uuid().as_bytes());
        let letter = doc! {
            "route": "default", "position": at + 1, "id": id, "order_key": "a", "topic": "orders", "key": "a",
            "event_type": "order.placed", "schema_version": 1, "content_type": "application/json",
            "payload": payload.clone(), "occurred_at": at, "appended_at": at, "reason": "exhausted",
            "attempts": 1_i64, "died_at": at, "step": at,
        };
        dead.insert_one(letter).await.unwrap();
    }
    let positions = async |filter: &Filter| -> Vec<i64> {
        let page = store.dead_letters(filter).await.unwrap();
        page.iter().map(|dead| dead.stored.position.0).collect()
    };
    let mut filter = Filter::all_routes();
    assert_eq!(positions(&filter).await, [1, 2, 3, 4]);
    filter.offset = 4;
    assert_eq!(positions(&filter).await, [5, 6]);
    filter.offset = 6;
    assert!(positions(&filter).await.is_empty());
    assert_eq!(store.requeue(&Filter::all_routes()).await.unwrap(), 4);
    assert_eq!(positions(&Filter::all_routes()).await, [5, 6], "the oldest joined their key again");
    assert_eq!(store.purge(&Filter::all_routes()).await.unwrap(), 2, "names are no payload");
}

/// However much waits on served routes: the search for unserved ones walks over none of it.
#[tokio::test]
async fn routes_that_nobody_serves_are_found_without_walking_over_what_others_have() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, noted) = noting(&fixture).await;
    let by = |route: &str, rows: usize| {
        let route = Route::new(route).unwrap();
        (0..rows).map(move |_| Outgoing::from(message("a")).by(route.clone()))
    };
    let relay = relay(&store).await;
    park(&store, relay, (0..500).map(|_| message("failing")).collect()).await;
    let mut tx = store.begin().await.unwrap();
    let outgoing: Vec<Outgoing> = by("default", 2_000).chain(by("attic", 3)).chain(by("zz", 3)).collect();
    store.append(&mut tx, &outgoing).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
    noted.lock().unwrap().clear();
    let unserved = store.unserved(Duration::ZERO).await.unwrap();
    let mut routes: Vec<&str> = unserved.iter().map(|unserved| unserved.route.as_str()).collect();
    routes.sort_unstable();
    assert_eq!(routes, ["attic", "zz"]);

    let steps = std::mem::take(&mut *noted.lock().unwrap());
    let steps = steps.iter().filter(|command| command.contains_key("find"));
    let between = |command: &Document| {
        let (filter, limit) = (command.get_document("filter").unwrap(), command.get("limit").unwrap());
        assert_eq!(*limit, Bson::Int64(1), "{command:?}");
        let is_hot = name(command) == "find outbox_message";
        let range = filter.get_document(if is_hot { "_id" } else { "route" }).unwrap();
        let side = |side: &str| match range.get(side).unwrap() {
            Bson::Document(name) => name.get("route").unwrap().clone(),
            name => name.clone(),
        };
        (is_hot, side("$gt"), side("$lt"))
    };
    let route = |name: &str| Bson::String(name.to_owned());
    let (first, last) = (Bson::MinKey, Bson::MaxKey);
    let gaps = [
        (true, first.clone(), route("default")),
        (true, route("attic"), route("default")),
        (true, route("default"), last.clone()),
        (true, route("zz"), last.clone()),
        (false, first, route("default")),
        (false, route("default"), last),
    ];
    assert_eq!(steps.map(between).collect::<Vec<_>>(), gaps);
}
