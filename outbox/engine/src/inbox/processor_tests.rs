//! The processor on the memory store: single batches, as the store may have them.

use outbox_contract::Json;
use outbox_store_memory::MemoryStore;

use super::*;
use crate::inbox::config::HandlerOptions;
use crate::mediator::HandlerError;

async fn nothing<Tx>(_: &mut Tx, _: Message, _: HandlerContext<'_>) -> Result<(), HandlerError> {
    Ok(())
}

fn message(key: &str) -> Message {
    Message::new("orders".parse().unwrap(), "order.placed").with_key(key).unwrap()
}

fn processor(store: &MemoryStore) -> Processor<MemoryStore, Json> {
    let (store, consumer) = (Arc::new(store.clone()), Consumer::new("inventory").unwrap());
    let mut handlers = Handlers::new();
    handlers.any(HandlerOptions::default(), nothing);
    let second = Duration::from_secs(1);
    Processor::new(
        Arc::clone(&store),
        Outbox::new(store),
        consumer.clone(),
        Arc::new(handlers),
        Arc::new(Counters::new(consumer)),
        Steps::default(),
        second,
        (second, second),
        1,
    )
}

/// What became of these, all of one batch.
async fn process(processor: &Processor<MemoryStore, Json>, messages: &[&Message]) -> Vec<Verdict> {
    let works: Vec<_> = messages.iter().map(|message| Work { message, attempt: 1 }).collect();
    let mut verdicts = vec![Verdict::NotTried; works.len()];
    let until = Instant::now() + Duration::from_secs(600);
    let mut said = |index: usize, verdict| verdicts[index] = verdict;
    processor.process(Place::Store { until }, &works, &mut said).await.unwrap();
    verdicts
}

#[tokio::test(start_paused = true)]
async fn one_of_a_batch_that_is_behind_others_takes_none_of_them_back() {
    let store = MemoryStore::new();
    let processor = processor(&store);
    let (a, first, second, b) = (message("a"), message("held"), message("held"), message("b"));
    processor.store(&[&a, &first, &second, &b]).await.unwrap();
    let handled = Verdict::Done(Done::Handled);
    let verdicts = process(&processor, &[&a, &second, &b]).await;
    assert_eq!(verdicts, [handled.clone(), Verdict::NotTried, handled.clone()]);
    let stats = processor.counters.snapshot((0, 0), 0);
    assert_eq!((stats.handled, stats.duplicates), (2, 0));
    assert_eq!(process(&processor, &[&first, &second]).await, [handled.clone(), handled]);
}
