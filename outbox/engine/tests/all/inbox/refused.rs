//! Messages that the store refuses to keep.

use futures_util::FutureExt;
use outbox_contract::Bytes;
use outbox_engine::{HandlerFailure, Mode};

use crate::inbox::support::{S, World, message, within};

#[tokio::test(start_paused = true)]
async fn what_the_store_can_not_keep_becomes_a_dead_letter_that_says_so() {
    for mode in [Mode::Direct, Mode::Stored] {
        let world = World::concurrent(1);
        world.store.refuse(|message| message.payload.len() > 100);
        let mut good = world.send("bad", 1);
        let mut large = message("bad").with_header("tenant", "acme").unwrap();
        large.payload = Bytes::from(vec![b'x'; 101]);
        world.feed.send(large.clone());
        for key in ["bad", "a", "b"] {
            good.extend(world.send(key, 3));
        }
        // In direct mode it is stored because its handler fails.
        let failing = large.id;
        let inbox = world.inbox_that(move |message, _| {
            let fails = message.id == failing;
            async move { if fails { Err(HandlerFailure::failed("tested", "never").into()) } else { Ok(()) } }
                .boxed()
        });
        let inbox = inbox.mode(mode).start().await.unwrap();
        within(S * 60, || world.feed.unacknowledged() == 0 && world.ledger.len() == good.len()).await;
        world.ledger.assert_once_and_in_order(&good);
        within(S * 60, || world.tables.snapshot().dead == 1).await;
        let dead = world.dead().await.remove(0);
        assert_eq!((dead.stored.message.id, dead.stored.message.key_id()), (large.id, large.key_id()));
        assert!(dead.stored.message.payload.is_empty());
        let why = dead.last_failure.unwrap().message;
        assert!(why.contains("order.placed") && why.contains("101 bytes"), "{why}");
        assert_eq!(inbox.stats().resets, 0);
    }
}

/// Then it is no message's fault, and none may lose its payload for it.
#[tokio::test(start_paused = true)]
async fn a_store_that_keeps_nothing_at_all_is_waited_for() {
    let world = World::concurrent(1);
    world.store.refuse(|_| true);
    let payload = Bytes::from_static(b"{}");
    let sent = ["a", "b"].map(|key| message(key).with_payload(payload.clone()));
    sent.iter().for_each(|message| world.feed.send(message.clone()));
    let kept = payload.clone();
    let inbox = world.inbox_that(move |message, _| {
        assert_eq!(message.payload, kept);
        async { Ok(()) }.boxed()
    });
    let inbox = inbox.mode(Mode::Stored).start().await.unwrap();
    within(S * 120, || inbox.stats().resets > 1).await;
    assert_eq!((world.feed.unacknowledged(), world.stored()), (2, 0));
    world.store.calm();
    within(S * 60, || world.feed.unacknowledged() == 0 && world.ledger.len() == 2).await;
    world.ledger.assert_once_and_in_order(&sent);
}
