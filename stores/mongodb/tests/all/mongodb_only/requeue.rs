//! Requeues of which some could never be messages, or are refused by the server.

use mongodb::bson::{Document, doc};
use outbox_contract::admin::Filter;
use outbox_contract::{AdminExt, MessageId, Store, StoreErrorKind};

use super::support::{Fixture, fetch, messages, relay};

/// A dead letter at this position, with changes to the document. Says its id.
fn letter(at: i64, change: Document) -> (MessageId, Document) {
    let id = MessageId::new();
    let mut letter = doc! {
        "route": "default", "position": at, "id": mongodb::bson::Uuid::from_bytes(*id.as_uuid().as_bytes()),
        "order_key": "a", "topic": "orders", "key": "a", "event_type": "order.placed", "schema_version": 1,
        "content_type": "application/json", "payload": "{}", "occurred_at": at, "appended_at": at, "reason": "rejected",
        "attempts": 1_i64, "died_at": at, "step": at,
    };
    letter.extend(change);
    (id, letter)
}

async fn dead(fixture: &Fixture) -> Vec<i64> {
    let dead = fixture.store.dead_letters(&Filter::all_routes()).await.unwrap();
    dead.iter().map(|letter| letter.stored.position.0).collect()
}

#[tokio::test]
async fn a_requeue_leaves_what_is_refused_and_says_which() {
    let Some(fixture) = Fixture::new().await else { return };
    let wrong = [
        (2, doc! { "topic": "a\nb" }, "the topic"),
        (4, doc! { "schema_version": 0 }, "schema version is 0"),
        (5, doc! { "headers": { "tenant": 7 } }, "tenant is not a string"),
        (7, doc! { "payload": 7 }, "neither bytes nor a string"),
    ];
    let mut ids = Vec::new();
    let mut letters = Vec::new();
    for at in 1..=60 {
        let change = wrong.iter().find(|(position, ..)| *position == at);
        let (id, letter) = letter(at, change.map(|(_, change, _)| change.clone()).unwrap_or_default());
        letters.push(letter);
        ids.push(id);
    }
    fixture.collection("outbox_dead").insert_many(letters).await.unwrap();
    let refused = fixture.store.requeue(&Filter::all_routes()).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Invalid);
    let said = refused.to_string();
    assert!(said.contains("56 dead letters were requeued, and 4 refused"), "{said}");
    for (at, _, words) in &wrong {
        let id = ids[usize::try_from(*at).unwrap() - 1];
        assert!(said.contains(&format!("{id} (")) && said.contains(words), "{words}: {said}");
    }
    assert_eq!(dead(&fixture).await, [2, 4, 5, 7]);
    let relay = relay(&fixture.store).await;
    let read = messages(fetch(&fixture.store, relay).await);
    let read: Vec<MessageId> = read.iter().map(|stored| stored.message.id).collect();
    let right = ids.iter().enumerate().filter(|(at, _)| ![1, 3, 4, 6].contains(at));
    assert_eq!(read, right.map(|(_, id)| *id).collect::<Vec<_>>(), "in their old order");
    let again = fixture.store.requeue(&Filter::all_routes()).await.unwrap_err().to_string();
    assert!(again.contains("0 dead letters were requeued, and 4 refused"), "{again}");
    assert_eq!(fixture.store.backlog(&Default::default()).await.unwrap().dead, 4);
}
