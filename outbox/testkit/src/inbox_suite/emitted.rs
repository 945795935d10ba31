//! Messages that handlers emit are appended to the outbox in their transactions, or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outbox_contract::Message;
use outbox_engine::{HandlerContext, HandlerError, HandlerFailure, Relay};

use super::InboxHarness;
use super::harness::{Effect, Effects, Faulty};
use super::world::{PATIENCE, start, worlds};
use crate::{NullTransport, RecordingTransport, StoreCall, StoreFault, TestClock};

/// A handler fails at first for one key, some commits behind others fail, and messages arrive
/// twice: each emitted message is sent once for each handled message, in order.
pub async fn what_a_handler_emits_is_committed_with_its_effect_or_not_at_all<H: InboxHarness>(harness: &H) {
    let worlds = worlds(harness).await;
    for world in worlds {
        let effects = world.effects.clone();
        let consumer = world.consumer.clone();
        let (faulty, lost) = (Arc::clone(&world.faulty), Arc::new(AtomicU32::new(3)));
        let inbox = world.bare().route_for("stock", format!("of-{consumer}"));
        let inbox =
            inbox.on_any(async move |message: Message, context: &mut HandlerContext<'_, Faulty<H>>| {
                if lost.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |lost| lost.checked_sub(1)).is_ok() {
                    faulty.inject(StoreCall::Commit, StoreFault::Before, 1);
                }
                let key = message.order_key().as_str().to_owned();
                let published = Message::new("stock", "stock.reserved")?.with_key(&key)?;
                // The same id in every attempt, so that the test sees messages of more than one
                // attempt.
                context.publish_message(published.with_id(message.id))?;
                let fails = key.ends_with("/bad") && context.attempt() == 1;
                effects.write(context.tx(), Effect { key, message: message.id }).await?;
                if fails {
                    return Err(HandlerError::from(HandlerFailure::failed("suite", "not yet")));
                }
                Ok(())
            });
        let sent = world.send_in_turn(&["a", "bad"], 4);
        sent.iter().rev().for_each(|stale| world.feed.send(stale.clone()));
        let inbox = start(inbox).await;
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        let transport = Arc::new(RecordingTransport::new());
        let relay = Relay::builder(Arc::clone(&world.store), NullTransport::new());
        let relay = relay.route(format!("of-{consumer}"), Arc::clone(&transport));
        let relay = relay.clock(Arc::new(TestClock::new(1))).start().await.expect("the relay starts");
        world.until("all sent that was emitted", async || transport.len() >= sent.len()).await;
        assert!(relay.stop(PATIENCE).await, "the relay stops in time");
        let mut emitted: BTreeMap<_, Vec<_>> = BTreeMap::new();
        // One position is one row, however often the relay has sent it.
        let mut rows = std::collections::BTreeSet::new();
        for published in transport.published() {
            if rows.insert(published.position) {
                emitted.entry(published.key.key.as_str().to_owned()).or_default().push(published.id);
            }
        }
        assert_eq!(emitted, world.handled().await, "what was emitted, by key");
        world.stop(inbox).await;
    }
}
