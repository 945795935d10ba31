//! Typed handlers: by event type, with old versions of it, as functions.

use outbox_contract::admin::Filter;
use outbox_contract::{
    Admin as _, Bytes, Codec, CodecError, DomainEvent, EventType, Json, Message, Outbox, Timestamp,
};
use outbox_engine::{HandlerContext, HandlerError, HandlerOptions, Mode, StartError};
use outbox_testkit::TestClock;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::inbox::support::{S, Store, World, within};

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Placed {
    order_id: u32,
    cents: u32,
    currency: String,
}

impl DomainEvent for Placed {
    const TYPES: &'static [EventType] = &[EventType::new("orders", "order.placed", 3)];

    fn event_type(&self) -> &'static EventType {
        &Self::TYPES[0]
    }

    fn key(&self) -> Option<Cow<'_, str>> {
        Some(self.order_id.to_string().into())
    }
}

#[derive(Serialize, Deserialize)]
struct PlacedV1 {
    order_id: u32,
    euros: u32,
}

#[derive(Serialize, Deserialize)]
struct PlacedV2 {
    order_id: u32,
    cents: u32,
}

static SEEN: Mutex<Vec<Placed>> = Mutex::new(Vec::new());

async fn note(event: Placed, context: &mut HandlerContext<'_, Store>) -> Result<(), HandlerError> {
    assert_eq!(context.consumer().as_str(), "inventory");
    context.publish(&Placed { order_id: event.order_id, cents: 1, currency: "EUR".to_owned() })?;
    context.tx().on_commit(move || SEEN.lock().unwrap().push(event));
    Ok(())
}

fn of_version(version: u32, payload: &str) -> Message {
    Message::new("orders", "order.placed")
        .unwrap()
        .with_key("7")
        .unwrap()
        .with_schema_version(version)
        .with_payload(payload.to_owned())
}

#[tokio::test(start_paused = true)]
async fn an_event_of_any_known_version_comes_as_the_type_of_today() {
    let world = World::new();
    let inbox = world
        .bare()
        .on_with(HandlerOptions::default(), note)
        .upcast::<PlacedV1, PlacedV2>("order.placed", 1, 2, |old| PlacedV2 {
            order_id: old.order_id,
            cents: old.euros * 100,
        })
        .upcast::<PlacedV2, Placed>("order.placed", 2, 3, |old| Placed {
            order_id: old.order_id,
            cents: old.cents,
            currency: "EUR".to_owned(),
        });
    let today = Outbox::new(world.tables.clone());
    let today = today.encode(&Placed { order_id: 7, cents: 9, currency: "CHF".to_owned() }).unwrap();
    world.feed.send(of_version(1, r#"{"order_id":7,"euros":3}"#));
    world.feed.send(of_version(2, r#"{"order_id":7,"cents":4}"#));
    world.feed.send(today);
    // A dead letter, and its key goes on; then one that waits for a program that knows it, and
    // holds up its key.
    world.feed.send(of_version(3, "nonsense"));
    world.feed.send(of_version(4, "{}"));
    let inbox = inbox.start().await.unwrap();
    within(S * 10, || world.feed.unacknowledged() == 0).await;
    within(S * 10, || world.tables.snapshot().dead == 1 && inbox.stats().postponed >= 1).await;
    let seen: Vec<_> =
        SEEN.lock().unwrap().iter().map(|placed| (placed.cents, placed.currency.clone())).collect();
    assert_eq!(seen, [(300, "EUR".to_owned()), (4, "EUR".to_owned()), (9, "CHF".to_owned())]);
    let dead = world.dead().await;
    assert_eq!(dead[0].last_failure.as_ref().map(|failure| &*failure.class), Some("unreadable"));
    within(S * 10, || world.tables.snapshot().failing_keys == 1).await;
}

/// A schema version that is newer than the program counts no attempt, and is a dead letter when its
/// time is over.
#[tokio::test(start_paused = true)]
async fn what_is_newer_than_the_program_waits_for_a_newer_one_and_not_for_ever() {
    let world = World::new();
    let inbox = world.bare().on(note).start().await.unwrap();
    let newer = of_version(4, "{}");
    world.feed.send(newer.clone());
    within(S * 10, || world.tables.snapshot().failing_keys == 1).await;
    tokio::time::sleep(S * 3_000).await;
    let waiting = world.tables.failing_keys(&Filter::all_routes()).await.unwrap().remove(0);
    assert_eq!((waiting.attempts, waiting.held), (0, false), "{waiting:?}");
    assert_eq!(waiting.last_failure.unwrap().class, "schema");
    assert!(inbox.stop(S * 30).await);

    let impatient = world.bare().on(note).wait_for_upgrade(Duration::ZERO).start().await.unwrap();
    within(S * 60, || world.tables.snapshot().dead == 1).await;
    let dead = world.dead().await.remove(0);
    assert_eq!((dead.stored.message.id, dead.reason.as_str()), (newer.id, "rejected"));
    assert_eq!(dead.last_failure.unwrap().class, "schema");
    assert!(impatient.stop(S * 30).await);
}

/// The database's clock alone says how long a message has waited: the wall clock of a program may
/// be an hour ahead of it, or behind.
#[tokio::test(start_paused = true)]
async fn what_is_newer_than_the_program_waits_by_the_clock_of_the_database() {
    let hour = S * 3_600;
    for ahead in [Duration::ZERO, hour * 2] {
        let start = Timestamp::from_micros(1_700_000_000_000_000);
        // An hour behind, or an hour ahead.
        let world = World::starting_at(start.plus(hour));
        let clock = Arc::new(TestClock::starting_at(start.plus(ahead)));
        let inbox = world.bare().clock(clock).on(note).wait_for_upgrade(hour / 2).start().await.unwrap();
        world.feed.send(of_version(4, "{}"));
        within(S * 10, || world.tables.snapshot().failing_keys == 1).await;
        tokio::time::sleep(hour / 2 - S * 60).await;
        let tables = world.tables.snapshot();
        assert_eq!((tables.failing_keys, tables.dead), (1, 0), "{ahead:?}: it is not its time yet");
        within(S * 120, || world.tables.snapshot().dead == 1).await;
        assert!(inbox.stop(S * 30).await);
    }
}

/// A backlog says nothing of newer programs: this one has only just met the message.
#[tokio::test(start_paused = true)]
async fn what_is_newer_than_the_program_waits_from_its_first_attempt_on() {
    let world = World::new();
    let receiver = world.bare().topic("orders").mode(Mode::Receive).start().await.unwrap();
    world.feed.send(of_version(4, "{}"));
    within(S * 10, || world.stored() == 1).await;
    assert!(receiver.stop(S * 30).await);
    tokio::time::sleep(S * 7_200).await;

    let hour = S * 3_600;
    let older = world.bare().on(note).mode(Mode::Handle).wait_for_upgrade(hour).start().await.unwrap();
    within(S * 10, || world.tables.snapshot().failing_keys == 1).await;
    tokio::time::sleep(S * 3_000).await;
    let tables = world.tables.snapshot();
    assert_eq!((tables.failing_keys, tables.dead), (1, 0), "it was met less than an hour ago");
    within(S * 700, || world.tables.snapshot().dead == 1).await;
    assert!(older.stop(S * 30).await);
}

/// JSON from its end to its beginning.
#[derive(Clone, Copy)]
struct Backwards;

impl Codec for Backwards {
    fn content_type(&self) -> &'static str {
        "application/backwards"
    }

    fn encode<E: Serialize + ?Sized>(&self, event: &E) -> Result<Bytes, CodecError> {
        Ok(Json.encode(event)?.iter().rev().copied().collect())
    }

    fn decode<E: DeserializeOwned>(&self, payload: &[u8]) -> Result<E, CodecError> {
        Json.decode(&payload.iter().rev().copied().collect::<Vec<_>>())
    }
}

async fn answer(
    event: Placed,
    context: &mut HandlerContext<'_, Store, (), Backwards>,
) -> Result<(), HandlerError> {
    context.publish(&Placed { cents: event.cents + 1, ..event })?;
    Ok(())
}

/// The service's own outbox: what it appends itself and what its handlers emit is the same to
/// everybody.
#[tokio::test(start_paused = true)]
async fn an_inbox_reads_and_emits_as_the_outbox_does_that_it_is_given() {
    let world = World::new();
    let outbox = Outbox::new(world.tables.clone()).with_codec(Backwards);
    let outbox = outbox.with_route("orders", "first").unwrap();
    let event = Placed { order_id: 7, cents: 100, currency: "EUR".to_owned() };
    world.feed.send(outbox.encode(&event).unwrap());
    let old = Backwards.encode(&PlacedV1 { order_id: 8, euros: 2 }).unwrap();
    world.feed.send(of_version(1, "").with_payload(old));
    let inbox = world
        .bare()
        .outbox(outbox)
        .upcast("order.placed", 1, 3, |old: PlacedV1| Placed {
            order_id: old.order_id,
            cents: old.euros * 100,
            currency: "EUR".to_owned(),
        })
        .on(answer)
        .route_for("orders", "second");
    let inbox = inbox.start().await.unwrap();
    within(S * 10, || world.feed.unacknowledged() == 0).await;
    assert_eq!((inbox.stats().handled, inbox.stats().failed), (2, 0));
    let tables = world.tables.snapshot();
    let mut found: Vec<(String, u32)> = Vec::new();
    for (route, row) in &tables.hot {
        assert_eq!(&*row.message.content_type, "application/backwards");
        let placed: Placed = Backwards.decode(&row.message.payload).unwrap();
        found.push((route.to_string(), placed.cents));
    }
    found.sort_unstable();
    let expected = [("first", 101), ("first", 201), ("second", 101), ("second", 201)];
    assert_eq!(found, expected.map(|(route, cents)| (route.to_owned(), cents)));
}

#[tokio::test(start_paused = true)]
async fn an_upcaster_without_a_handler_of_its_type_is_refused() {
    let world = World::new();
    let inbox = world.bare().on(note).upcast("order.moved", 1, 2, |old: PlacedV1| old.order_id);
    let Err(StartError::Config(problems)) = inbox.start().await else { panic!("it was started") };
    assert!(problems.len() == 1 && problems[0].contains("order.moved"), "{problems:#?}");
}

#[tokio::test(start_paused = true)]
async fn an_outbox_comes_before_what_reads_by_its_codec() {
    let world = World::new();
    let outbox = Outbox::new(world.tables.clone()).with_codec(Backwards);
    let inbox = world.bare().on(note).outbox(outbox).on(answer);
    let Err(StartError::Config(problems)) = inbox.start().await else { panic!("it was started") };
    assert!(problems.len() == 1 && problems[0].contains("call it first"), "{problems:#?}");
}
