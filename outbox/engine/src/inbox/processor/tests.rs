//! The processor on the memory store: single batches, as the store may have them.

use std::time::Duration;

use outbox_contract::backend::{
    BucketSet, FetchRequest, FetchedRow, KeyTransition, LeaseRequest, RelayId, Step, Stored, Transitioned,
};
use outbox_contract::{Failure, Json, Store};
use outbox_store_memory::MemoryStore;
use tokio::time::Instant;

use super::*;
use crate::inbox::config::HandlerOptions;
use crate::inbox::handler_context::HandlerContext;
use crate::mediator::HandlerError;

async fn nothing(_: Message, _: &mut HandlerContext<'_, MemoryStore>) -> Result<(), HandlerError> {
    Ok(())
}

fn message(key: &str) -> Message {
    Message::new("orders", "order.placed").unwrap().with_key(key).unwrap()
}

fn processor(store: &MemoryStore) -> Processor<MemoryStore, Json> {
    let (store, consumer) = (Arc::new(store.clone()), Consumer::new("inventory").unwrap());
    let mut handlers = Handlers::new();
    handlers.any(HandlerOptions::default(), nothing, Arc::new(()));
    let second = Duration::from_secs(1);
    let limits = PoolLimits { turns: 1, call: second, slowest: second, delays: (second, second), seed: 1 };
    Processor::new(
        Arc::clone(&store),
        Outbox::new(store),
        consumer.clone(),
        Arc::new(handlers),
        Arc::new(Counters::new(consumer)),
        Steps::default(),
        limits,
    )
}

fn errand() -> Errand<'static> {
    let until = Instant::now() + Duration::from_secs(600);
    Errand { origin: Origin::Store { until }, is_suspect: false, is_wanted: &|| true }
}

/// Processes these as one batch.
async fn process(processor: &Processor<MemoryStore, Json>, messages: &[&Message]) -> Vec<Verdict> {
    let works: Vec<_> = messages.iter().map(|message| Work { message, attempt: 1, stored: None }).collect();
    verdicts(processor, &works).await
}

async fn verdicts(processor: &Processor<MemoryStore, Json>, works: &[Work<'_>]) -> Vec<Verdict> {
    let mut verdicts = vec![Verdict::NotTried; works.len()];
    let mut said = |index: usize, verdict| verdicts[index] = verdict;
    processor.process(&errand(), works, &mut said).await.unwrap();
    verdicts
}

#[tokio::test(start_paused = true)]
async fn one_of_a_batch_that_is_behind_others_takes_none_of_them_back() {
    let store = MemoryStore::new();
    let processor = processor(&store);
    let (a, first, second, b) = (message("a"), message("held"), message("held"), message("b"));
    assert!(processor.store(&errand(), &[&a, &first, &second, &b]).await.unwrap());
    let handled = Verdict::Done(Done::Handled);
    let verdicts = process(&processor, &[&a, &second, &b]).await;
    assert_eq!(verdicts, [handled.clone(), Verdict::NotTried, handled.clone()]);
    let stats = processor.counters.snapshot((0, 0), 0);
    assert_eq!((stats.handled, stats.duplicates), (2, 0));
    assert_eq!(process(&processor, &[&first, &second]).await, [handled.clone(), handled]);
}

/// A process slept behind its look at the lease. Meanwhile another one made a dead letter of what
/// it has in hand, and handled what comes behind it.
#[tokio::test(start_paused = true)]
async fn what_others_finished_while_this_process_slept_is_not_handled_behind_newer_ones() {
    for batch in [false, true] {
        let store = MemoryStore::new();
        let processor = processor(&store);
        let (first, second, other) = (message("a"), message("a"), message("b"));
        assert!(processor.store(&errand(), &[&first, &second, &other]).await.unwrap());
        let (relay, route) = (RelayId::new(), processor.route.clone());
        let mut request = LeaseRequest::new(relay, route.clone(), Duration::from_secs(60));
        request.label = "awake".to_owned();
        let leases = store.lease(&request).await.unwrap().leases;
        let read = store.fetch(&FetchRequest::new(route.clone(), relay, BucketSet::ALL)).await.unwrap().rows;
        let read: Vec<Arc<Stored>> = read
            .into_iter()
            .map(|row| if let FetchedRow::Message(stored) = row { stored } else { panic!("{row:?}") })
            .collect();
        let (key, failure) = (first.key_id(), Failure::new("tested", "tested"));
        let lease = leases.iter().find(|lease| lease.bucket == key.bucket()).unwrap();
        let step = Step::Bury {
            discard: false,
            row: read[0].row(),
            reason: "rejected",
            attempts: 1,
            first: failure.clone(),
            last: failure,
        };
        let bury = KeyTransition::new(route, relay, (lease.bucket, lease.epoch), key, None, step);
        assert!(matches!(*store.transition(&[bury]).await.unwrap(), [Transitioned::Done(_)]));
        let expected = [Verdict::Done(Done::Gone), Verdict::Done(Done::Handled)];
        assert_eq!(process(&processor, &[&second]).await, expected[1..]);

        let works: Vec<_> = read
            .iter()
            .filter(|stored| stored.message.id == first.id || batch && stored.message.id == other.id)
            .map(|stored| Work { message: &stored.message, attempt: 1, stored: Some(stored) })
            .collect();
        assert_eq!(verdicts(&processor, &works).await, expected[..works.len()], "{batch}");
        let gone = Consumer::new("inventory").unwrap();
        assert!(!store.is_handled(&gone, first.id).await.unwrap(), "a dead letter is not handled");
    }
}
