//! Invalid messages are rejected where they enter: with the value, with the remedy, and without
//! harm to the transaction.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::error::Error as _;

use outbox::AppendError;
use outbox::error::MessageError;
use outbox::memory::MemoryTransport;
use outbox::prelude::*;
use serde::{Serialize, Serializer};

#[derive(Serialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order: String,
    note: String,
}

fn placed(order: &str) -> OrderPlaced {
    OrderPlaced { order: order.to_owned(), note: String::new() }
}

/// Serialises by failing: a type whose own code refuses.
struct Refuses;

impl Serialize for Refuses {
    fn serialize<S: Serializer>(&self, _serializer: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("amounts must not be negative"))
    }
}

#[derive(Serialize, DomainEvent)]
#[event(topic = "orders", type = "order.priced", keyless)]
struct OrderPriced {
    amount: Refuses,
}

/// Appends something bad between two good events, commits, and says what the error was and what is
/// in the store.
async fn refused<F>(bad: F) -> (AppendError, usize)
where
    F: AsyncFn(&Outbox<MemoryStore>, &mut <MemoryStore as Transactional>::Tx<'_>) -> Result<(), AppendError>,
{
    let store = MemoryStore::new();
    let outbox = Outbox::new(store.clone());
    let mut tx = store.begin().await.unwrap();
    outbox.append(&mut tx, &placed("o-1")).await.unwrap();
    let error = bad(&outbox, &mut tx).await.unwrap_err();
    // The transaction goes on as if nothing had been asked of it.
    outbox.append(&mut tx, &placed("o-1")).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
    let backlog = store.backlog(&Route::default()).await.unwrap();
    (error, usize::try_from(backlog.pending).unwrap())
}

#[tokio::test]
async fn a_key_that_can_not_be_one_is_named() {
    for (key, says) in [
        (String::new(), "not appended: the key is empty; give it at least one character".to_owned()),
        (
            "a\tb".to_owned(),
            "the key \"a\\tb\" has the control character U+0009 at byte 1; remove it".to_owned(),
        ),
        ("k".repeat(256), "has 256 bytes; shorten it to 255 bytes or fewer".to_owned()),
    ] {
        let (error, stored) =
            refused(async |outbox, tx| outbox.append(tx, &placed(&key)).await.map(drop)).await;
        assert!(error.to_string().contains(&says), "{error}");
        assert!(!error.is_retryable());
        assert_eq!(stored, 2);
    }
}

#[tokio::test]
async fn a_payload_over_the_limit_is_refused_with_both_sizes() {
    let event = OrderPlaced { note: "x".repeat(Message::MAX_PAYLOAD_BYTES), ..placed("o-1") };
    let (error, stored) = refused(async |outbox, tx| outbox.append(tx, &event).await.map(drop)).await;
    assert!(error.to_string().contains("over the limit of 15728640; store the data elsewhere"), "{error}");
    assert_eq!(stored, 2);
}

#[tokio::test]
async fn a_payload_over_the_brokers_limit_is_refused_at_append_where_the_writer_knows_the_transport() {
    let transport = MemoryTransport::builder().max_message_bytes(1_000).build();
    let event = OrderPlaced { note: "x".repeat(2_000), ..placed("o-1") };
    let (error, stored) = refused(async |outbox, tx| {
        let outbox = outbox.clone().with_limits_of(transport.clone());
        outbox.append(tx, &event).await.map(drop)
    })
    .await;
    assert!(matches!(error, AppendError::Message(MessageError::Rejected(_))), "{error:?}");
    assert!(error.to_string().contains("1000"), "it names the limit: {error}");
    assert_eq!(stored, 2);
}

#[tokio::test]
async fn an_event_that_does_not_encode_says_why() {
    let event = OrderPriced { amount: Refuses };
    let (error, stored) = refused(async |outbox, tx| outbox.append(tx, &event).await.map(drop)).await;
    let text = error.to_string();
    assert!(text.contains("could not write all::bad_input::OrderPriced as application/json"), "{text}");
    assert!(text.contains("amounts must not be negative"), "{text}");
    assert!(error.source().is_some());
    assert_eq!(stored, 2);
}

#[tokio::test]
async fn a_header_with_control_characters_is_refused_where_it_is_set_and_where_it_is_appended() {
    let message = Message::new("orders", "order.placed").unwrap();
    let error = message.clone().with_header("tenant", "a\r\nb").unwrap_err();
    // By its name: the value may be a secret.
    let text = error.to_string();
    assert!(text.contains("the header \"tenant\" has the control character U+000D"), "{text}");
    // Headers can be read from elsewhere without that check; append has the last word.
    let headers = outbox::Headers::from_bytes(br#"{"tenant":"a\u0000b"}"#).unwrap();
    let (error, stored) = refused(async |outbox, tx| {
        let mut message = message.clone();
        message.headers = headers.clone();
        outbox.append_message(tx, message).await.map(drop)
    })
    .await;
    assert!(error.to_string().contains("U+0000"), "{error}");
    assert_eq!(stored, 2);
}

#[tokio::test]
async fn an_event_that_can_not_be_appended_takes_none_of_its_batch_along() {
    let batch = [placed("o-1"), placed(""), placed("o-2")];
    let (error, stored) = refused(async |outbox, tx| outbox.append_all(tx, &batch).await.map(drop)).await;
    assert!(error.to_string().contains("the key is empty"), "{error}");
    assert_eq!(stored, 2, "only the good ones around it");
}
