//! Settling: exactly the delivered rows are removed, by position and id, by any relay, any number
//! of times.

use std::sync::Arc;

use outbox_contract::admin::Filter;
use outbox_contract::backend::{FetchedRow, Position, RowId, Step, Stored};
use outbox_contract::{AdminExt, MessageId, Store, Transactional};

use super::support::{
    LATER, OVER, Relay, bury_step, fail_step, ids, message, messages, prepared, stored_ids, write,
};
use super::{Capability, StoreHarness, has};

/// Of several rows, those named are removed.
pub async fn settled_rows_are_gone_and_no_others<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all = messages("orders", "a", 5);
    write(&*store, all.iter().cloned()).await;
    let read = relay.read().await;
    relay.settle(&[Arc::clone(&read[3]), Arc::clone(&read[0])]).await;
    assert_eq!(stored_ids(&relay.read().await), [all[1].id, all[2].id, all[4].id]);
}

/// A position with a wrong id, or an id with a wrong position, removes nothing (positions come back
/// after a restore).
pub async fn a_row_is_settled_by_position_and_id_together<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all = messages("orders", "a", 2);
    write(&*store, all.iter().cloned()).await;
    let read = relay.read().await;
    let wrong = [
        RowId { position: read[0].position, id: MessageId::new() },
        RowId { position: read[0].position, id: all[1].id },
        RowId { position: read[1].position, id: all[0].id },
        RowId { position: Position(read[1].position.0 + 1_000), id: all[1].id },
    ];
    store.settle(&relay.route, &wrong).await.expect("nothing to remove is no error");
    assert_eq!(stored_ids(&relay.read().await), ids(&all));
}

/// Positions come back after an import: a message that fails where a parked one stood is parked
/// beside it, and no step takes one for the other.
pub async fn a_message_at_the_position_of_a_parked_one_is_another<H: StoreHarness>(harness: &H) {
    if !has::<H>(Capability::LastPosition) {
        return;
    }
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (one, two) = (message("orders", "a"), message("orders", "b"));
    write(&*store, [one.clone()]).await;
    let first = relay.read().await;
    harness.set_last_position(first[0].position.before().0).await;
    let version = relay.fail(&first, LATER).await;
    write(&*store, [two.clone()]).await;
    let second = relay.read().await;
    assert_eq!(second[0].position, first[0].position, "it has come back");
    let both = [&*first[0], &*second[0]];
    let fenced = async || {
        let mut tx = store.begin().await.expect("a transaction begins");
        let wait = store.fence(&mut tx, &relay.route, &both).await.expect("the question is answered");
        store.rollback(tx).await.expect("the transaction is rolled back");
        wait
    };
    let parked = async || {
        let parked = store.parked(&Filter::all_routes()).await;
        stored_ids(&parked.expect("parked messages are listed"))
    };
    let other = relay.fail(&second, LATER).await;
    assert_eq!(parked().await, [one.id, two.id]);
    assert_eq!(fenced().await, [true, true]);
    let delivered = Step::Resume { delivered: vec![first[0].row()] };
    assert_eq!(relay.step(&one.key_id(), Some(version), delivered).await, None);
    assert_eq!(parked().await, [two.id]);
    assert_eq!(fenced().await, [false, true]);

    harness.set_last_position(first[0].position.before().0).await;
    write(&*store, [one.clone()]).await;
    let again = relay.read().await;
    let again = relay.fail(&again, LATER).await;
    relay.step(&two.key_id(), Some(other), bury_step(&second[0], "exhausted")).await;
    assert_eq!((parked().await, fenced().await), (vec![one.id], vec![true, false]));
    assert_eq!(store.discard(&relay.route, &one.key_id()).await.expect("it is discarded"), 1, "{again}");
    assert!(parked().await.is_empty());
}

/// After a restore of the hot table alone, messages stand there that are parked as well. Each step
/// that parks one finds it there, and none fails: that would stop all keys of the route.
pub async fn a_message_that_is_hot_and_parked_is_one<H: StoreHarness>(harness: &H) {
    if !has::<H>(Capability::RestoredParked) {
        return;
    }
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all = messages("orders", "a", 3);
    write(&*store, all.iter().cloned()).await;
    let read = relay.read().await;
    let version = Some(relay.fail(&read, LATER).await);
    harness.restore_parked().await;
    let rows = relay.fetch().await;
    assert!(rows.len() == 3 && rows.iter().all(|row| matches!(row, FetchedRow::Failing(_))), "{rows:?}");
    let key = all[0].key_id();
    let park = |rows: &[Arc<Stored>]| Step::Park { rows: rows.iter().map(|stored| stored.row()).collect() };
    assert_eq!(relay.step(&key, version, park(&read[1..])).await, version);
    let again = relay.step(&key, version, fail_step(&read, 2, LATER)).await;
    assert!(again.is_some() && again != version, "{again:?}");
    assert!(relay.fetch().await.is_empty(), "each is parked");
    let parked = store.parked(&Filter::all_routes()).await.expect("parked messages are listed");
    assert_eq!(stored_ids(&parked), ids(&all), "once");
    let delivered = Step::Resume { delivered: read.iter().map(|stored| stored.row()).collect() };
    assert_eq!(relay.step(&key, again, delivered).await, None, "and none is left behind");
}

/// A message that the broker confirmed may be removed by any relay that knows it, lease or not
/// (promise P7).
pub async fn a_relay_that_lost_its_lease_may_still_settle<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut slept = Relay::start(&store).await;
    let all = messages("orders", "a", 2);
    write(&*store, all.iter().cloned()).await;
    let read = slept.read().await;
    slept.shorten().await;
    harness.advance(OVER).await;
    let next = Relay::start(&store).await;
    slept.settle(&read[..1]).await;
    assert_eq!(stored_ids(&next.read().await), [all[1].id]);
}

/// Settling twice, with missing rows among others, and with none at all does nothing.
pub async fn settling_again_does_nothing<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all = messages("orders", "a", 3);
    write(&*store, all.iter().cloned()).await;
    let read = relay.read().await;
    relay.settle(&read[..1]).await;
    relay.settle(&read[..2]).await;
    relay.settle(&read[..2]).await;
    relay.settle(&[]).await;
    assert_eq!(stored_ids(&relay.read().await), [all[2].id]);
    if has::<H>(Capability::History) {
        let past = store.history(&Filter::all_routes()).await.expect("the history is listed");
        assert_eq!(past.len(), 2, "and nothing is in the history twice");
    }
}

/// More rows than a statement has parameters are settled at once.
pub async fn thousands_of_rows_are_settled_at_once<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let kept = message("orders", "kept");
    write(&*store, messages("orders", "a", 3_000).into_iter().chain([kept.clone()])).await;
    let read = relay.read().await;
    let delivered: Vec<_> = read.into_iter().filter(|stored| stored.message.id != kept.id).collect();
    relay.settle(&delivered).await;
    assert_eq!(stored_ids(&relay.read().await), [kept.id]);
}

/// Where a history is kept, delivered messages are in it, unchanged.
pub async fn delivered_messages_go_to_the_history<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    write(&*store, messages("orders", "a", 3)).await;
    let read = relay.read().await;
    relay.settle(&read[..2]).await;
    let past = store.history(&Filter::all_routes()).await.expect("the history is listed");
    if !has::<H>(Capability::History) {
        assert!(past.is_empty(), "this store keeps no history, or should say so");
        return;
    }
    let kept: Vec<_> = past.iter().map(|past| Arc::clone(&past.message)).collect();
    assert_eq!(kept, read[..2], "the delivered ones, the oldest first, in every field");
    assert!(past.iter().all(|past| past.route == relay.route));
    assert!(past.iter().all(|past| past.delivered_at >= past.message.appended_at));
}
