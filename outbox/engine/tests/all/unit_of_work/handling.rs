//! Handlers: what they receive and do, what is appended, and what rolls back.

use std::time::Duration;

use futures_util::FutureExt;
use outbox_contract::backend::{Committed, Wakeup};
use outbox_contract::{AppendError, Json, Outbox, Store, Transactional};
use outbox_engine::{Aggregate, EventLog, HandlerError, Mediator, UnitOfWork, WorkError};
use outbox_store_memory::MemoryStore;

use crate::unit_of_work::support::{
    Book, Notes, OrderEvent, PurchaseWanted, StockRanLow, appended, mediator, pair, placed, refuses, runs_low,
};

#[tokio::test]
async fn handlers_run_in_the_order_of_events_and_of_registration_and_commit_together() {
    let book = Book::default();
    let first = Notes("first", book.clone());
    let mediator = mediator().on::<OrderEvent, _>(first).on::<OrderEvent, _>(Notes("second", book.clone()));
    let mut work = mediator.begin().await.unwrap();
    for order in ["b", "a"] {
        work.publish(placed(order)).unwrap();
    }
    assert_eq!(book.lines(), [""; 0], "handlers wait for the commit");
    work.commit().await.unwrap();
    assert_eq!(book.lines(), ["first b", "second b", "first a", "second a"]);
    assert_eq!(book.committed(), 4);
}

#[tokio::test]
async fn what_handlers_record_is_handled_and_appended_too_and_local_events_stay_here() {
    let book = Book::default();
    let mediator = mediator().on(runs_low).on::<StockRanLow, _>(Notes("low", book.clone()));
    let mut work = mediator.begin().await.unwrap();
    work.publish(placed("a")).unwrap();
    work.commit().await.unwrap();
    assert_eq!(book.lines(), ["low 7"]);
    let expected = [pair("order.placed", "a"), pair("purchase.wanted", "7")];
    assert_eq!(appended(mediator.outbox().store()), expected);
}

#[tokio::test]
async fn a_local_event_can_not_be_appended_past_the_unit_of_work() {
    let outbox = Outbox::new(MemoryStore::new());
    let mut tx = outbox.store().begin().await.unwrap();
    let error = outbox.append(&mut tx, &StockRanLow { item: 7 }).await.unwrap_err();
    assert!(matches!(error, AppendError::Message(_)), "{error}");
    assert!(error.to_string().contains("stock.ran.low is local"), "{error}");
}

#[tokio::test]
async fn an_error_of_a_handler_rolls_everything_back_and_says_which_it_was() {
    let book = Book::default();
    let mediator = mediator().on::<OrderEvent, _>(Notes("before", book.clone())).on(refuses);
    let mut work = mediator.begin().await.unwrap();
    book.write(work.tx());
    work.publish(placed("a")).unwrap();
    work.publish(OrderEvent::Paid { order: "a".to_owned(), step: 1 }).unwrap();
    let error = work.commit().await.unwrap_err();
    let words = error.to_string();
    assert!(words.contains("refuses of order.paid failed: a is closed"), "{words}");
    assert!(matches!(error, WorkError::Handler { event: "order.paid", .. }) && !error.is_retryable());
    assert_eq!(book.committed(), 0);
    assert_eq!(appended(mediator.outbox().store()), []);
}

#[tokio::test]
async fn a_panic_in_a_handler_rolls_everything_back() {
    async fn panics(_: &OrderEvent, _: &mut UnitOfWork<MemoryStore>) -> Result<(), HandlerError> {
        panic!("on purpose");
    }
    let (book, mediator) = (Book::default(), mediator().on(panics));
    let mut work = mediator.begin().await.unwrap();
    book.write(work.tx());
    work.publish(placed("a")).unwrap();
    assert!(tokio::spawn(work.commit()).await.unwrap_err().is_panic());
    assert_eq!(book.committed(), 0);
    // Nothing stays locked, so the next unit of work succeeds.
    let mut work = mediator.begin().await.unwrap();
    work.publish(StockRanLow { item: 1 }).unwrap();
    work.commit().await.unwrap();
}

/// Handler that runs in a circle, and hides the error of that.
async fn circles(event: &OrderEvent, work: &mut UnitOfWork<MemoryStore>) -> Result<(), HandlerError> {
    let next = match event.clone() {
        OrderEvent::Placed { order, step } => OrderEvent::Paid { order, step: step + 1 },
        OrderEvent::Paid { order, step } => OrderEvent::Placed { order, step: step + 1 },
    };
    let _swallowed = work.publish(next);
    Ok(())
}

#[tokio::test]
async fn handlers_that_go_in_a_circle_are_stopped_with_the_chain_even_if_they_hide_it() {
    let mediator = mediator().on(circles).max_depth(3);
    let mut work = mediator.begin().await.unwrap();
    work.publish(placed("a")).unwrap();
    let error = work.commit().await.unwrap_err();
    let words = error.to_string();
    assert!(words.contains("order.placed -> order.paid -> order.placed -> order.paid; break"), "{words}");
    assert!(matches!(&error, WorkError::TooDeep { chain } if chain.len() == 4));
    assert_eq!(appended(mediator.outbox().store()), []);
}

#[tokio::test]
async fn a_unit_of_work_has_a_most_of_events() {
    let mediator = mediator().max_events(2);
    let mut work = mediator.begin().await.unwrap();
    for order in ["a", "b"] {
        work.publish(placed(order)).unwrap();
    }
    assert!(matches!(work.publish(placed("c")), Err(WorkError::TooMany { most: 2 })));
    let error = work.commit().await.unwrap_err();
    assert!(matches!(error, WorkError::TooMany { most: 2 }), "{error}");
    assert_eq!(appended(mediator.outbox().store()), []);
}

#[tokio::test]
async fn events_are_appended_in_the_order_of_keys_and_within_a_key_as_they_were_recorded() {
    let mediator = mediator().on(runs_low);
    let mut work = mediator.begin().await.unwrap();
    let order = |order: &str, step| OrderEvent::Placed { order: order.to_owned(), step };
    for (key, step) in [("b", 1), ("a", 2), ("c", 3), ("a", 4), ("b", 5)] {
        work.publish(order(key, step)).unwrap();
    }
    work.publish(PurchaseWanted { item: 1 }).unwrap();
    work.commit().await.unwrap();
    let snapshot = mediator.outbox().store().snapshot();
    let messages: Vec<_> = snapshot.hot.iter().map(|(_, stored)| &stored.message).collect();
    let steps: Vec<u32> = messages
        .iter()
        .filter(|message| message.topic == "orders")
        .map(|message| match outbox_contract::Codec::decode(&Json, &message.payload).unwrap() {
            OrderEvent::Placed { step, .. } | OrderEvent::Paid { step, .. } => step,
        })
        .collect();
    assert_eq!(steps, [2, 4, 1, 5, 3]);
    assert_eq!(messages.last().unwrap().topic, "purchases");
}

/// Handler that writes to the other keys. Units take keys in opposite orders unless they are sorted
/// across the whole unit.
async fn touches_all(event: &StockRanLow, work: &mut UnitOfWork<MemoryStore>) -> Result<(), HandlerError> {
    let keys = ["a", "b", "c", "d"];
    for step in 0..keys.len() {
        tokio::task::yield_now().await;
        let at = (event.item as usize + step * if event.item.is_multiple_of(2) { 1 } else { 3 }) % keys.len();
        work.publish(placed(keys[at]))?;
    }
    Ok(())
}

#[tokio::test]
async fn units_that_raise_events_of_the_same_keys_in_different_orders_never_deadlock() {
    let store = MemoryStore::builder().concurrent_writers().build();
    let mediator = Mediator::new(Outbox::new(store.clone())).on(touches_all);
    let units = (0..64).map(|item| {
        let mediator = mediator.clone();
        async move {
            let mut work = mediator.begin().await.unwrap();
            work.publish(StockRanLow { item }).unwrap();
            work.commit().await
        }
    });
    for done in futures_util::future::join_all(units).await {
        done.unwrap();
    }
    assert_eq!(appended(&store).len(), 256);
}

#[tokio::test]
async fn relays_are_woken_at_the_commit_and_not_before() {
    let mediator = mediator().on(runs_low);
    let mut heard = mediator.outbox().store().wakeup_signal().listen();
    let mut work = mediator.begin().await.unwrap();
    work.publish(placed("a")).unwrap();
    assert_eq!(heard.next().now_or_never(), None);
    work.commit().await.unwrap();
    assert_eq!(heard.next().now_or_never(), Some(Wakeup::Now));

    let work = mediator.begin().await.unwrap();
    work.rollback().await;
    assert_eq!(heard.next().now_or_never(), None);
}

#[tokio::test]
async fn what_is_dropped_or_rolled_back_never_was() {
    let (book, mediator) = (Book::default(), mediator());
    for drops in [true, false] {
        let mut work = mediator.begin().await.unwrap();
        book.write(work.tx());
        work.publish(placed("a")).unwrap();
        if drops { drop(work) } else { work.rollback().await }
    }
    let finished = mediator.begin().await.unwrap().finish().await.unwrap();
    drop(finished);
    assert_eq!((book.committed(), appended(mediator.outbox().store()).len()), (0, 0));
}

#[tokio::test]
async fn a_transaction_of_the_users_own_is_lent_and_given_back() {
    let (book, mediator) = (Book::default(), mediator().on(runs_low));
    let store = mediator.outbox().store();
    let mut tx = store.begin().await.unwrap();
    book.write(&mut tx);
    let mut work = mediator.adopt(tx);
    work.publish(placed("a")).unwrap();
    let tx = work.finish().await.unwrap();
    assert_eq!((book.committed(), appended(store).len()), (0, 0), "the commit is the user's");
    store.commit(tx).await.into_result().unwrap();
    assert_eq!((book.committed(), appended(store).len()), (1, 1));
}

#[derive(Debug)]
struct Contact {
    version: i64,
    events: EventLog<OrderEvent>,
}

impl Aggregate for Contact {
    type Event = OrderEvent;

    fn events(&mut self) -> &mut EventLog<OrderEvent> {
        &mut self.events
    }
}

#[tokio::test]
async fn an_aggregate_is_collected_once_and_in_its_order() {
    let mediator = mediator();
    let mut contact = Contact { version: 1, events: EventLog::new() };
    contact.events.append(placed("a"));
    contact.events.append(OrderEvent::Paid { order: "a".to_owned(), step: 1 });
    let mut work = mediator.begin().await.unwrap();
    work.collect(&mut contact).unwrap();
    work.collect(&mut contact).unwrap();
    work.commit().await.unwrap();
    assert_eq!(appended(mediator.outbox().store()), [pair("order.placed", "a"), pair("order.paid", "a")]);
    assert_eq!(contact.version, 1);
}

#[tokio::test]
async fn an_event_that_can_not_be_a_message_is_refused_at_once_and_the_unit_goes_on() {
    let mediator = mediator();
    let mut work = mediator.begin().await.unwrap();
    let error = work.publish(placed("")).unwrap_err();
    assert!(matches!(error, WorkError::Append(AppendError::Message(_))), "{error}");
    work.publish(placed("a")).unwrap();
    work.commit().await.unwrap();
    assert_eq!(appended(mediator.outbox().store()).len(), 1);
}

/// As in a task of a server: all parts can move between threads.
#[tokio::test]
async fn units_of_work_run_on_tasks_of_their_own() {
    let mediator = mediator().on(runs_low);
    let tasks = (0..4).map(|number: u32| {
        let mediator = mediator.clone();
        tokio::spawn(async move {
            let name = number.to_string();
            mediator
                .run(async move |work| {
                    work.publish(placed(&name))?;
                    tokio::task::yield_now().await;
                    Ok(number)
                })
                .await
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        tokio::time::timeout(Duration::from_secs(60), task).await.unwrap().unwrap().unwrap();
    }
    assert_eq!(appended(mediator.outbox().store()).len(), 4);
}

/// A clone of a mediator can get further handlers, and the original keeps its own.
#[tokio::test]
async fn a_clone_does_not_get_the_handlers_that_are_registered_later() {
    let book = Book::default();
    let before = mediator();
    let after = before.clone().on::<OrderEvent, _>(Notes("after", book.clone()));
    for mediator in [before, after] {
        let mut work = mediator.begin().await.unwrap();
        work.publish(placed("a")).unwrap();
        let tx = work.finish().await.unwrap();
        assert!(matches!(mediator.outbox().store().commit(tx).await, Committed::Yes));
    }
    assert_eq!(book.lines(), ["after a"]);
}
