//! The story of every pair: writers write, a relay dies and another takes over, an inbox hands over
//! to the next, messages are redelivered, and some can't be sent or handled.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use outbox_contract::admin::Filter;
use outbox_contract::{AdminExt, Message, Outgoing, Route, Transport, inbox_route};
use outbox_engine::{InboxHandle, RelayHandle};
use outbox_testkit::{ChaosTransport, Fault, FaultRates};
use outbox_tests::fresh::Fresh;
use outbox_tests::kind::{StoreKind, TransportKind};
use outbox_tests::ledger::{self, Ledger};
use outbox_tests::life::{Knows, Life};
use outbox_tests::pair::Pair;
use outbox_tests::record::{Now, PATIENCE, Record, until};

use crate::matrix::repeats::Repeats;

/// Number of concurrent writers, and of their keys.
const WRITERS: u64 = 4;
const KEYS: u64 = 20;
/// Number of messages between two events.
const MEANWHILE: u64 = 50;

/// A pair, and everything between its two ends.
struct Story {
    pair: Pair,
    ledger: Arc<dyn Ledger>,
    record: Arc<Record>,
    /// The relay's connection to the broker, with injected faults.
    out: Arc<ChaosTransport>,
    /// The inbox's connection from it.
    back: Arc<Repeats>,
}

pub(crate) async fn tell(store: StoreKind, transport: TransportKind) {
    let Some(fresh) = Fresh::new(store, transport).await else { return };
    let story = Story::new(fresh.pair.clone()).await;
    let first = story.inbox(1).await;
    let writers = {
        let topic = story.pair.topic.clone();
        let message =
            move |key: &str| Message::new(topic.clone(), "order.placed").unwrap().with_key(key).unwrap();
        story.record.writers(&story.ledger, WRITERS, KEYS, message)
    };
    let relay = story.relay().await;
    story.record.more(MEANWHILE).await;

    let unsent = story.one_that_can_not_be_sent().await;
    let unhandled = story.one_that_can_not_be_handled().await;
    story.one_that_is_sent_at_the_third_try().await;
    story.a_key_that_is_handled_after_some_tries().await;
    story.record.more(MEANWHILE).await;

    // As a crash: the next one resends its in-flight messages, when its leases have expired.
    drop(relay);
    let relay = story.relay().await;
    story.record.more(MEANWHILE).await;

    let second = story.inbox(2).await;
    assert!(first.stop(PATIENCE).await, "the first inbox stops in order");
    story.record.more(MEANWHILE).await;

    story.record.stop_writing(writers).await;
    story.died(&Route::default(), &unsent.1).await;
    story.record.never_sent(&unsent.1, unsent.0);
    story.died(&inbox_route(&story.pair.consumer().unwrap()), &unhandled.1).await;
    story.record.never_handled(&unhandled.1, unhandled.0);
    story.done().await;
    assert!(second.stop(PATIENCE).await, "the second inbox stops in order");
    assert!(relay.stop(PATIENCE).await, "the relay stops in order");
    story.judge().await;
}

impl Story {
    async fn new(pair: Pair) -> Self {
        let ledger = ledger::open(&pair.database).await.unwrap();
        ledger.prepare().await.unwrap();
        let record = Arc::new(Record::new(60));
        let out = pair.transport().unwrap();
        // Within the process both ends are one; a broker has a connection of each.
        let back = match TransportKind::of_url(&pair.broker).unwrap() {
            TransportKind::Memory => Arc::clone(&out),
            _ => pair.transport().unwrap(),
        };
        // Some confirmations get lost: their messages are resent.
        let rates = FaultRates { unknown_with_effect: 0.03, ..FaultRates::default() };
        let out = Arc::new(ChaosTransport::new(out, 1).with_rates(rates));
        let back = Arc::new(Repeats::new(back, Arc::clone(&record)));
        Self { pair, ledger, record, out, back }
    }

    async fn relay(&self) -> RelayHandle {
        let out: Arc<dyn Transport> = Arc::<ChaosTransport>::clone(&self.out);
        // Nothing is disconnected here, and a machine that is busy with every pair at once may need
        // more than the default of five seconds.
        Pair::relay(self.ledger.store(), out).store_timeout(PATIENCE).start().await.unwrap()
    }

    async fn inbox(&self, number: u32) -> InboxHandle {
        let life = Life { stored: false, batch: 8, crash: None, number, knows: Knows::Everything };
        let back: Arc<dyn Transport> = Arc::<Repeats>::clone(&self.back);
        // As for the relay: a busy machine may take longer to answer than a default allows.
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            match self.ledger.inbox(life, &self.pair, Arc::clone(&back)).await {
                Ok(inbox) => return inbox,
                Err(error) => eprintln!("the inbox does not start yet: {error}"),
            }
        }
        panic!("the inbox does not start")
    }

    /// Writes three messages of a key, in one transaction. Returns the one in the middle, and a
    /// moment before it was written.
    async fn three(&self, key: &str, middle: impl FnOnce(Message) -> Message) -> (Now, Message) {
        let message =
            || Message::new(self.pair.topic.clone(), "order.placed").unwrap().with_key(key).unwrap();
        let middle = middle(message());
        let (before, copy) = (self.record.now(), middle.clone());
        let three: [Outgoing; 3] = [message(), middle, message()].map(Outgoing::from);
        self.record.write_for_certain(&*self.ledger, &three).await;
        (before, copy)
    }

    /// Writes a message that the broker always rejects; the one behind it arrives.
    async fn one_that_can_not_be_sent(&self) -> (Now, Message) {
        self.three("key-1", |message| {
            self.out.inject(message.id, Fault::Rejected);
            message
        })
        .await
    }

    /// Writes a message that the handler always rejects; the one behind it is handled.
    async fn one_that_can_not_be_handled(&self) -> (Now, Message) {
        self.three("key-2", |message| message.with_payload(Life::POISON)).await
    }

    /// The message and those behind it wait in the store meanwhile.
    async fn one_that_is_sent_at_the_third_try(&self) {
        self.three("key-3", |message| {
            self.out.inject_times(message.id, Fault::Failed, 2);
            message
        })
        .await;
    }

    /// Its messages wait in the store of the inbox meanwhile.
    async fn a_key_that_is_handled_after_some_tries(&self) {
        self.three(Life::FAILING, |message| message).await;
        self.three(Life::FAILING, |message| message).await;
    }

    /// Waits until a message is a dead letter of a route, and checks that no other is. It may be
    /// several, one for each time that it arrived.
    async fn died(&self, route: &Route, message: &Message) {
        let filter = Filter { route: Some(route.clone()), ..Filter::all_routes() };
        let store = self.ledger.store();
        let dead = async || -> BTreeSet<String> {
            // A busy database is queried again.
            let letters = store.dead_letters(&filter).await.unwrap_or_default();
            letters.iter().map(|letter| letter.stored.message.event_id().into_owned()).collect()
        };
        until("a dead letter", async || !dead().await.is_empty()).await;
        assert_eq!(
            dead().await,
            BTreeSet::from([message.id.to_string()]),
            "route {route}: the one that can't be, and no other"
        );
    }

    /// Waits until every committed message has arrived and has had its effect.
    async fn done(&self) {
        let all = self.record.close_every_key(&*self.ledger).await;
        assert!(all, "not everything has come\n{}", self.record.deliveries());
        until("every effect", async || {
            self.ledger.effects().await.is_ok_and(|effects| self.record.all_handled(&effects))
        })
        .await;
    }

    /// Compares the history with the promises: nothing lost, no phantom, every key in the order of
    /// its commits; and each effect once, in that order, though many messages arrived repeatedly.
    async fn judge(&self) {
        let deliveries = self.record.deliveries();
        println!("{deliveries}{:>10} repeats were made up", self.back.made_up());
        deliveries.assert_at_least_once_in_order();
        let effects = self.record.effects(&self.ledger.effects().await.unwrap()).unwrap();
        println!("{effects}");
        effects.assert_exactly_once();
        assert!(self.back.made_up() > 0, "some deliveries came again");
        assert!(self.record.rolled_back() > 0, "some transactions were rolled back");
    }
}
