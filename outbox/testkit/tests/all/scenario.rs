//! The scenario sees what a service sends, waits for it, and says what is wrong.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use outbox_contract::backend::{Received, Subscription};
use outbox_contract::{AppendOptions, Outbox, Timestamp, Transactional, Transport};
use outbox_derive::DomainEvent;
use outbox_engine::{Relay, RelayHandle};
use outbox_store_memory::MemoryStore;
use outbox_testkit::Scenario;
use outbox_transport_memory::MemoryTransport;
use serde::Serialize;

#[derive(Serialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct Placed {
    #[event(key)]
    order: &'static str,
    step: u32,
}

#[derive(Serialize, DomainEvent)]
#[event(topic = "reminders", type = "order.forgotten", keyless)]
struct Forgotten {
    order: &'static str,
}

fn placed(order: &'static str, step: u32) -> Placed {
    Placed { order, step }
}

struct Service {
    store: MemoryStore,
    transport: MemoryTransport,
    relay: RelayHandle,
}

impl Service {
    async fn start() -> (Self, Scenario) {
        let (store, transport) = (MemoryStore::new(), MemoryTransport::new());
        let scenario = Scenario::new(transport.clone(), ["orders", "reminders"]).await;
        let relay = Relay::builder(store.clone(), transport.clone()).start().await.unwrap();
        (Self { store, transport, relay }, scenario)
    }

    async fn place(&self, events: &[Placed]) {
        let mut tx = self.store.begin().await.unwrap();
        Outbox::new(self.store.clone()).append_all(&mut tx, events).await.unwrap();
        self.store.commit(tx).await.into_result().unwrap();
    }

    async fn stop(self) {
        assert!(self.relay.stop(Duration::from_secs(60)).await);
    }
}

/// Returns the message of a failed expectation.
async fn words(expectation: impl Future<Output = ()>) -> String {
    let panic = AssertUnwindSafe(expectation).catch_unwind().await.unwrap_err();
    *panic.downcast::<String>().unwrap()
}

#[tokio::test(start_paused = true)]
async fn expectations_are_met_in_any_order_of_keys_and_one_after_the_other() {
    let (service, mut scenario) = Service::start().await;
    scenario.given("an old order", service.place(&[placed("old", 1)])).await;
    scenario.when("two orders", service.place(&[placed("a", 1), placed("b", 1), placed("a", 2)])).await;
    scenario.expect(&[&placed("b", 1), &placed("a", 1), &placed("a", 2)]).await;
    scenario.when("one more", service.place(&[placed("a", 3)])).await;
    scenario.expect(&[&placed("a", 3)]).await;
    scenario.expect_nothing_else().await;
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_wrong_or_unexpected_fails_with_the_step_and_both_sides() {
    let (service, mut scenario) = Service::start().await;
    scenario.when("a is placed", service.place(&[placed("a", 1)])).await;
    let missing = words(scenario.expect(&[&placed("a", 1), &placed("a", 2)])).await;
    let expected = "after a is placed:\ntopic orders, key a:\n  as it is: order.placed {\"order\":\"a\",\"step\":1}\n  \
                    expected: order.placed {\"order\":\"a\",\"step\":2}\n  seen:     nothing\n";
    assert_eq!(missing, expected);
    scenario.when("the wrong one", service.place(&[placed("b", 1)])).await;
    assert!(words(scenario.expect(&[&placed("a", 1)])).await.contains("topic orders, key b"));
    scenario.when("one too many", service.place(&[placed("c", 1)])).await;
    let unexpected = words(scenario.expect_nothing_else()).await;
    assert!(
        unexpected.contains("after one too many:\ntopic orders, key c:\n  expected: nothing"),
        "{unexpected}"
    );
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn time_goes_by_at_once() {
    let (service, mut scenario) = Service::start().await;
    scenario
        .when("a reminder is set for in ten minutes", async {
            let mut tx = service.store.begin().await.unwrap();
            let later = Timestamp::now().plus(Duration::from_secs(600));
            let outbox = Outbox::new(service.store.clone());
            let options = AppendOptions::new().due_at(later);
            outbox.append_with(&mut tx, &Forgotten { order: "a" }, options).await.unwrap();
            service.store.commit(tx).await.into_result().unwrap();
        })
        .await;
    scenario.expect_nothing_else().await;
    scenario.after(Duration::from_secs(660)).await;
    scenario.expect(&[&Forgotten { order: "a" }]).await;
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn repeats_reach_every_consumer_and_are_no_new_events() {
    let (service, mut scenario) = Service::start().await;
    let subscription = Subscription::new("billing", ["orders"]).unwrap();
    let billing = service.transport.subscribe(subscription).await.unwrap();
    let billed = tokio::spawn(async move {
        let mut steps = Vec::new();
        while steps.len() < 5 {
            let Received::Deliveries(deliveries) = billing.next().await.unwrap() else { continue };
            for delivery in deliveries {
                let payload = delivery.message.unwrap().payload;
                steps.push(
                    serde_json::from_slice::<serde_json::Value>(&payload).unwrap()["step"].as_u64().unwrap(),
                );
                billing.acknowledge(&[delivery.tag]).await.unwrap();
            }
        }
        steps
    });
    scenario.when("an order", service.place(&[placed("a", 1), placed("a", 2)])).await;
    scenario.expect(&[&placed("a", 1), &placed("a", 2)]).await;
    scenario.repeat_last().await;
    scenario.repeat_all().await;
    scenario.expect_nothing_else().await;
    assert_eq!(billed.await.unwrap(), [1, 2, 2, 1, 2]);
    assert_eq!(scenario.repeats(), 3);
    service.stop().await;
}
