//! Records that are no messages: one dead letter for each record, no more than there may be, none
//! where they are ignored.

use futures_util::FutureExt;
use outbox_contract::admin::Filter;
use outbox_contract::backend::Undecodable;
use outbox_contract::{Admin, Bytes};
use outbox_engine::{HandlerFailure, InboxHandle, Mode, Status, UnknownType};

use crate::inbox::support::{S, World, within};

const MODES: [Mode; 2] = [Mode::Direct, Mode::Stored];

fn send_record(world: &World, number: u32) {
    let junk = Undecodable::new("no id", Bytes::from_static(b"\xff"), Vec::new());
    let junk = junk.with_key(&b"a"[..]).at(format!("orders/0@{number}"));
    world.feed.send_junk("orders".parse().unwrap(), junk);
}

fn says(inbox: &InboxHandle, words: &str) -> bool {
    inbox.health().reasons.iter().any(|reason| reason.text.contains(words))
}

#[tokio::test(start_paused = true)]
async fn a_record_that_comes_again_is_the_same_dead_letter() {
    for mode in MODES {
        let world = World::new();
        let mut sent = world.send("a", 2);
        for _ in 0..4 {
            send_record(&world, 7);
        }
        send_record(&world, 8);
        sent.extend(world.send("a", 2));
        let inbox = world.inbox().mode(mode).start().await.unwrap();
        within(S * 60, || world.feed.unacknowledged() == 0 && world.tables.snapshot().dead == 2).await;
        world.ledger.assert_once_and_in_order(&sent);
        drop(inbox);
        // Acknowledged nowhere: all of it is delivered once more.
        let again = World { feed: outbox_testkit::Feed::new(), ..world.clone() };
        send_record(&again, 8);
        send_record(&again, 7);
        let _inbox = again.inbox().mode(mode).start().await.unwrap();
        within(S * 60, || again.feed.unacknowledged() == 0 && again.stored() == 0).await;
        tokio::time::sleep(S * 10).await;
        let dead = world.dead().await;
        assert_eq!(dead.len(), 2, "{mode:?}: {dead:#?}");
        let message = &dead[0].stored.message;
        assert_eq!(message.key.as_ref().unwrap().as_str(), "a");
        assert_eq!(message.headers.get("outbox-undecodable-place"), Some("orders/0@7"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_ignores_what_it_does_not_know_ignores_records_too() {
    for mode in MODES {
        let world = World::new();
        send_record(&world, 1);
        let sent = world.send("a", 2);
        send_record(&world, 2);
        let inbox = world.inbox().mode(mode).unknown_types(UnknownType::Ignore).start().await.unwrap();
        within(S * 60, || world.feed.unacknowledged() == 0 && world.stored() == 0).await;
        world.ledger.assert_once_and_in_order(&sent);
        assert_eq!((inbox.stats().ignored, world.tables.snapshot().dead), (2, 0), "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_records_are_kept_than_there_may_be_and_that_is_said() {
    for mode in MODES {
        let world = World::new();
        let whim = |message: &outbox_contract::Message, _: u32| {
            let fails = message.order_key().as_str() == "bad";
            async move { if fails { Err(HandlerFailure::rejected("test", "bad").into()) } else { Ok(()) } }
                .boxed()
        };
        let inbox = world.inbox_that(whim).mode(mode).prefetch(5).max_undecodable(10);
        let inbox = inbox.start().await.unwrap();
        (0..200).for_each(|number| send_record(&world, number));
        let sent = world.send("a", 2);
        within(S * 60, || world.feed.unacknowledged() == 0 && world.stored() == 0).await;
        world.ledger.assert_once_and_in_order(&sent);
        let dead = world.tables.snapshot().dead as u64;
        assert!((10..=20).contains(&dead), "{mode:?}: {dead}");
        assert_eq!(inbox.stats().dropped, 200 - dead);
        assert!(says(&inbox, "undecodable records were dropped") && says(&inbox, "orders/0@199"));
        assert_eq!(inbox.health().status, Status::Degraded, "{:?}", inbox.health());
        world.send("bad", 1);
        within(S * 60, || world.tables.snapshot().dead as u64 == dead + 1).await;
        // An operator makes room.
        world.tables.purge(&Filter::all_routes()).await.unwrap();
        tokio::time::sleep(S * 61).await;
        assert!(!says(&inbox, "were dropped"), "{mode:?}: {:?}", inbox.health());
        send_record(&world, 1_000);
        within(S * 60, || world.tables.snapshot().dead == 1).await;
    }
}
