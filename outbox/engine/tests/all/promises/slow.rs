//! Slow broker: it confirms everything, in its own time. It processes everything it was given, even
//! after the relay has given up waiting. So anything given up and sent again makes it slower still.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_contract::backend::{Outcome, Outcomes, PublishBatch, Stored, TransportLayer, Unavailable};
use outbox_contract::{Failure, Message, MessageId};
use outbox_engine::{Relay, RelayBuilder};
use outbox_testkit::{Fault, NullTransport, TestClock};
use tokio::sync::Notify;

use crate::promises::support::{MS, Rig, S, World, message, within};

/// Order in which the broker processes what it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turns {
    /// One batch after the other.
    Batches,
    /// One message of each batch in turn, as with connections that are served fairly.
    Messages,
}

fn alarm() -> Failure {
    Failure::new("blocked", "low on memory")
}

/// Batch on the broker's side of the wire.
struct Given {
    messages: VecDeque<(usize, Arc<Stored>)>,
    outcomes: Outcomes,
}

#[derive(Clone)]
struct Slow {
    given: Arc<Mutex<VecDeque<Given>>>,
    arrived: Arc<Mutex<Vec<MessageId>>>,
    confirmed: Arc<Notify>,
    /// It takes nothing until then, and says so.
    stopped_until: Arc<Mutex<Option<tokio::time::Instant>>>,
    inner: Arc<NullTransport>,
}

impl Slow {
    /// Creates a broker that processes one message in so much time.
    fn new(turns: Turns, each: Duration) -> Self {
        let slow = Self {
            given: Arc::default(),
            arrived: Arc::default(),
            confirmed: Arc::default(),
            stopped_until: Arc::default(),
            inner: Arc::default(),
        };
        let broker = slow.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(each).await;
                let until = *broker.stopped_until.lock().unwrap();
                if let Some(until) = until {
                    broker.tell(Some(&alarm()));
                    tokio::time::sleep_until(until).await;
                    broker.tell(None);
                    *broker.stopped_until.lock().unwrap() = None;
                }
                broker.carry(turns);
            }
        });
        slow
    }

    /// Takes nothing for so long.
    fn stop(&self, time: Duration) {
        *self.stopped_until.lock().unwrap() = Some(tokio::time::Instant::now() + time);
    }

    fn tell(&self, reason: Option<&Failure>) {
        for given in &*self.given.lock().unwrap() {
            given.outcomes.stopped(reason.cloned());
        }
    }

    fn carry(&self, turns: Turns) {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut batch) = given.pop_front() else { return };
        if let Some((slot, stored)) = batch.messages.pop_front() {
            self.arrived.lock().unwrap().push(stored.message.id);
            batch.outcomes.report(slot, Outcome::Delivered);
        }
        match turns {
            _ if batch.messages.is_empty() => {}
            Turns::Batches => given.push_front(batch),
            Turns::Messages => given.push_back(batch),
        }
        self.confirmed.notify_waiters();
    }

    fn arrived(&self) -> usize {
        self.arrived.lock().unwrap().len()
    }

    fn relay(&self, rig: &Rig) -> RelayBuilder {
        Relay::builder(Arc::clone(&rig.store), self.clone())
            .clock(Arc::<TestClock>::clone(&rig.clock))
            .seed(1)
    }
}

impl TransportLayer for Slow {
    type Inner = NullTransport;

    fn inner(&self) -> &NullTransport {
        &self.inner
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        if self.stopped_until.lock().unwrap().is_some() {
            return outcomes.report_rest(&Outcome::Unavailable(Unavailable::Route, alarm()));
        }
        let messages = batch.messages.into_iter().enumerate().collect();
        self.given.lock().unwrap().push_back(Given { messages, outcomes: outcomes.clone() });
        loop {
            let confirmed = self.confirmed.notified();
            if outcomes.is_complete() {
                return;
            }
            confirmed.await;
        }
    }
}

const MESSAGES: usize = 4_000;

fn messages() -> impl Iterator<Item = Message> {
    (0..MESSAGES).map(|n| message(&format!("key-{}", n % 1_000)))
}

/// With the default configuration, a slow broker has 2,000 messages in flight: 20 s of work at a
/// hundred a second, 80 s at 25. The publish timeout is 5 s.
#[tokio::test(start_paused = true)]
async fn a_slow_broker_gets_nothing_twice() {
    for (turns, each) in [(Turns::Batches, 10), (Turns::Messages, 10), (Turns::Batches, 40)] {
        let world = World::new();
        let broker = Slow::new(turns, MS * each);
        world.append(messages()).await;
        let relay = broker.relay(&world.rig()).start().await.unwrap();
        while broker.arrived() < MESSAGES {
            tokio::time::sleep(S).await;
        }
        world.drained(S * 200).await;
        assert_eq!(broker.arrived(), MESSAGES, "{turns:?}, a message each {each} ms");
        relay.stop(S * 20).await;
    }
}

/// A broker that is short of memory takes nothing for a while, says so, and then processes what it
/// was given. The publish timeout is 5 s.
#[tokio::test(start_paused = true)]
async fn a_broker_that_says_that_it_takes_nothing_for_now_gets_nothing_twice() {
    for (turns, stopped) in [(Turns::Batches, 7), (Turns::Messages, 7), (Turns::Messages, 40)] {
        let world = World::new();
        let broker = Slow::new(turns, MS);
        world.append(messages()).await;
        let relay = broker.relay(&world.rig()).start().await.unwrap();
        while broker.arrived() < 1_500 {
            tokio::time::sleep(MS).await;
        }
        broker.stop(S * stopped);
        within(S * 2, || relay.health().reasons.iter().any(|reason| reason.text.contains("low on memory")))
            .await;
        while broker.arrived() < MESSAGES {
            tokio::time::sleep(MS * 100).await;
        }
        world.drained(S * 20).await;
        assert_eq!((broker.arrived(), relay.stats().unknown), (MESSAGES, 0), "{turns:?}, {stopped} s");
        assert!(!relay.health().reasons.iter().any(|reason| reason.text.contains("low on memory")));
        relay.stop(S * 20).await;
    }
}

/// A relay that stops or gives buckets to another waits for no broker longer than the publish
/// timeout.
#[tokio::test(start_paused = true)]
async fn a_slow_broker_holds_up_no_stop() {
    let world = World::new();
    let broker = Slow::new(Turns::Messages, MS * 10);
    world.append(messages()).await;
    let relay = broker.relay(&world.rig()).start().await.unwrap();
    while broker.arrived() < 1_000 {
        tokio::time::sleep(MS * 100).await;
    }
    let began = tokio::time::Instant::now();
    relay.stop(S * 60).await;
    assert!(began.elapsed() < S * 6, "it took {:?}", began.elapsed());
}

/// Transport that sends one message after the other, ten a second, until the future is dropped.
#[derive(Clone, Default)]
struct OneByOne(Arc<Mutex<Vec<MessageId>>>, Arc<NullTransport>);

impl TransportLayer for OneByOne {
    type Inner = NullTransport;

    fn inner(&self) -> &NullTransport {
        &self.1
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        for (slot, stored) in batch.messages.iter().enumerate() {
            tokio::time::sleep(MS * 100).await;
            self.0.lock().unwrap().push(stored.message.id);
            outcomes.report(slot, Outcome::Delivered);
        }
    }
}

/// The relay sleeps past its lease in the middle of a batch. The rest of the batch belongs to other
/// relays then.
#[tokio::test(start_paused = true)]
async fn a_relay_that_slept_past_its_lease_lets_go_of_what_it_was_sending() {
    let world = World::new();
    let rig = world.rig();
    let transport = OneByOne::default();
    let sent = || transport.0.lock().unwrap().len();
    world.append((0..100).map(|n| message(&format!("key-{n}")))).await;
    let relay = Relay::builder(Arc::clone(&rig.store), transport.clone());
    let relay = relay.clock(Arc::<TestClock>::clone(&rig.clock)).seed(1).max_unconfirmed_batches(1);
    let _relay = relay.start().await.unwrap();
    within(S * 5, || sent() == 10).await;
    rig.gate.set_open(false);
    rig.clock.suspend(S * 16);
    tokio::time::sleep(S * 10).await;
    assert!(sent() <= 17, "{} were sent: it looks at its leases eight times in five seconds", sent());
}

/// A hanging message delays only itself. The other messages of its batch are removed, and their
/// keys continue, before the batch times out.
#[tokio::test(start_paused = true)]
async fn what_was_delivered_is_removed_while_the_rest_of_its_batch_is_waited_for() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append((0..100).map(|n| message(&format!("key-{n}")))).await;
    rig.transport.inject(ids[50], Fault::Hang);
    let relay = rig.relay().max_unconfirmed_batches(1).publish_batch(1_000).start().await.unwrap();
    within(S, || world.broker.len() == 99).await;
    within(S, || world.waiting() == 1).await;
    assert_eq!(relay.stats().unknown, 0, "the batch is still unconfirmed");
    rig.transport.calm();
    world.drained(S * 10).await;
}

/// Transport that confirms each batch after so much time.
struct Answers(Duration, NullTransport);

impl TransportLayer for Answers {
    type Inner = NullTransport;

    fn inner(&self) -> &NullTransport {
        &self.1
    }

    async fn publish(&self, _batch: PublishBatch, outcomes: &Outcomes) {
        tokio::time::sleep(self.0).await;
        outcomes.report_rest(&Outcome::Delivered);
    }
}

/// With the default configuration, 2,000 messages, and 4,000 while the broker answers fast: within
/// a twentieth of the publish timeout, 250 ms.
#[tokio::test(start_paused = true)]
async fn a_broker_that_answers_fast_gets_twice_as_much_at_once() {
    for (answers, allowed) in [(MS * 100, 2_001..=4_000), (MS * 1_000, 1_000..=2_000)] {
        let world = World::new();
        world.append((0..12_000).map(|n| message(&format!("key-{}", n % 3_000)))).await;
        let rig = world.rig();
        let relay = Relay::builder(Arc::clone(&rig.store), Answers(answers, NullTransport::new()));
        let relay = relay.clock(Arc::<TestClock>::clone(&rig.clock)).seed(1).start().await.unwrap();
        let mut most = 0;
        while world.waiting() > 0 {
            most = most.max(relay.stats().in_flight);
            tokio::time::sleep(MS).await;
        }
        relay.stop(S * 20).await;
        assert!(allowed.contains(&most), "answers within {answers:?}: {most} in memory");
    }
}
