//! The relays: they come, stop politely, are killed, stand still and go on.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use outbox_contract::Transport;
use outbox_engine::{ReasonKind, Relay, RelayHandle, Status};
use outbox_store_memory::MemoryStore;
use outbox_testkit::{ChaosStore, ChaosTransport, Ids, TestClock};

use super::broker::Broker;
use super::deaths::Deaths;
use super::held::Held;
use super::line::{Gate, Late, Line, Luck, Witness};
use super::link::Link;
use super::plan::Plan;
use super::tally::Tally;
use super::trace::Trace;
use super::writers::topic;

pub(crate) struct Fleet {
    pub(crate) plan: Plan,
    pub(crate) store: MemoryStore,
    pub(crate) broker: Arc<Broker>,
    pub(crate) ids: Arc<Ids>,
    pub(crate) trace: Arc<Trace>,
    pub(crate) deaths: Arc<Deaths>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) rng: Rng,
    pub(crate) relays: Vec<Running>,
    /// Faults of relays that may be stopping, so that these can be ended too.
    pub(crate) faults: Vec<Faults>,
    pub(crate) started: usize,
    pub(crate) calm: bool,
}

/// Maximum bytes of topic, key and type of a message here: a fetch does not count them.
const NAMES: usize = 40;
/// The largest message here.
const LARGEST: usize = 3_400;

pub(crate) struct Running {
    pub(crate) number: usize,
    pub(crate) handle: RelayHandle,
    clock: Arc<TestClock>,
}

pub(crate) struct Faults {
    store: Arc<ChaosStore<Link>>,
    transport: Arc<ChaosTransport>,
    gate: Arc<Gate>,
    luck: Arc<Luck>,
    held: Arc<Held>,
}

impl Faults {
    fn count_into(&self, tally: &Tally) {
        tally.of_store(self.store.counts());
        tally.of_transport(self.transport.counts());
    }

    fn calm(&self) {
        self.store.calm();
        self.transport.calm();
        self.gate.set_open(true);
        self.luck.set(Late::default());
    }
}

impl Fleet {
    /// One more relay. It may fail to start.
    pub(crate) async fn start(&mut self) {
        let number = self.started;
        self.started += 1;
        let seed = self.plan.seed ^ (number as u64 + 1) << 32;
        let (gate, luck) = (Gate::new(), Luck::new(seed, self.plan.late));
        let held = Arc::new(Held::default());
        let link = Link {
            store: self.store.clone(),
            relay: number,
            gate: Arc::clone(&gate),
            luck: Arc::clone(&luck),
            trace: Arc::clone(&self.trace),
            deaths: Arc::clone(&self.deaths),
            held: Arc::clone(&held),
            tally: Arc::clone(&self.tally),
            migrated: true,
        };
        let store = ChaosStore::new(Arc::new(link), seed ^ 1).with_rates(self.plan.store.clone());
        let store = Arc::new(store);
        let line = Line {
            broker: Arc::clone(&self.broker) as Arc<dyn Transport>,
            gate: Arc::clone(&gate),
            luck: Arc::clone(&luck),
            tally: Arc::clone(&self.tally),
        };
        let transport = ChaosTransport::new(Arc::new(line), seed ^ 2).with_rates(self.plan.transport.clone());
        let transport = Arc::new(transport);
        let faults =
            Faults { store: Arc::clone(&store), transport: Arc::clone(&transport), gate, luck, held };
        if self.calm {
            faults.calm();
        }
        self.faults.push(faults);
        let witness = Witness { inner: transport, relay: number, trace: Arc::clone(&self.trace) };
        let clock = Arc::new(TestClock::new(seed));
        let starting = Relay::builder(store, witness)
            .config(self.plan.config.clone())
            .clock(Arc::clone(&clock) as _)
            .seed(seed)
            .id(self.ids.relay())
            .start();
        // A task of its own, for the store may panic.
        let starting = tokio::spawn(starting);
        // A check that hangs: whoever starts it gives up.
        match tokio::time::timeout(Duration::from_secs(1), starting).await {
            Ok(Ok(Ok(handle))) => {
                self.trace.say(format!("relay {number} starts"));
                self.relays.push(Running { number, handle, clock });
            }
            _ => self.trace.say(format!("relay {number} fails to start")),
        }
    }

    /// Does something to some relay, or to what it stands on.
    pub(crate) async fn act(&mut self) {
        let deed = self.rng.u8(..16);
        if self.relays.is_empty() || (deed < 4 && self.relays.len() < self.plan.max_relays) {
            return self.start().await;
        }
        let at = self.rng.usize(..self.relays.len());
        let number = self.relays[at].number;
        let topic = topic(self.rng.usize(..self.plan.topics));
        let span = Duration::from_millis(self.rng.u64(100..10_000));
        match deed {
            0..=3 => {}
            4 => {
                let relay = self.relays.remove(at);
                let trace = Arc::clone(&self.trace);
                trace.say(format!("relay {number} is asked to stop"));
                tokio::spawn(async move {
                    let drained = relay.handle.stop(span).await;
                    trace.say(format!("relay {number} stopped, drained: {drained}"));
                });
            }
            5 => {
                self.trace.say(format!("relay {number} is killed"));
                drop(self.relays.remove(at));
            }
            6 | 7 => {
                self.trace.say(format!("relay {number} stands still for {span:?}"));
                self.tally.add("relays that stood still", 1);
                let gate = Arc::clone(&self.faults[number].gate);
                gate.set_open(false);
                tokio::spawn(async move {
                    tokio::time::sleep(span).await;
                    gate.set_open(true);
                });
            }
            8 => {
                self.trace.say(format!("the clock of relay {number} jumps by {span:?}"));
                self.relays[at].clock.suspend(span);
            }
            9 => {
                self.trace.say(format!("{topic} breaks"));
                self.faults.iter().for_each(|faults| faults.transport.break_topic(topic.clone()));
            }
            10 | 11 => {
                self.trace.say(format!("{topic} heals"));
                self.faults.iter().for_each(|faults| faults.transport.heal_topic(&topic));
            }
            12 => {
                self.trace.say(format!("the broker is away for {span:?}"));
                self.faults.iter().for_each(|faults| faults.transport.go_down_for(span));
            }
            13 => {
                self.trace.say(format!("relay {number} can't reach the broker for {span:?}"));
                self.faults[number].transport.go_down_for(span);
            }
            _ => self.trace.say("nothing"),
        }
    }

    /// Ends all faults, and sees to it that a relay runs.
    pub(crate) async fn settle_down(&mut self) {
        self.calm = true;
        self.faults.iter().for_each(Faults::calm);
        if self.relays.is_empty() {
            self.start().await;
        }
    }

    /// Returns the problems of the relays when no faults are injected any more.
    pub(crate) fn unwell(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let share = 256_usize.div_ceil(self.relays.len().max(1));
        let mut buckets = 0;
        for relay in &self.relays {
            let (health, stats) = (relay.handle.health(), relay.handle.stats());
            buckets += stats.buckets;
            // Dead letters wait for an operator, who is not here.
            let is_well = health.status == Status::Healthy
                || health.status == Status::Degraded
                    && health.reasons.iter().all(|reason| reason.kind == ReasonKind::DeadLetters);
            if !is_well || stats.buckets > share || stats.in_flight > 0 {
                problems.push(format!("relay {} is not well: {health:?} {stats:?}", relay.number));
            }
        }
        if buckets != 256 {
            problems.push(format!("{buckets} buckets are owned"));
        }
        problems
    }

    /// Counts what went wrong.
    pub(crate) fn count_faults(&self) {
        self.faults.iter().for_each(|faults| faults.count_into(&self.tally));
    }

    /// Returns a bound that a relay exceeds (promise P6): as it reports itself, and as its payloads
    /// are counted.
    pub(crate) fn over_its_bounds(&self) -> Option<String> {
        let config = &self.plan.config;
        // Besides the credit, what a fetch brings before it is counted, and its first message,
        // which comes whatever it has; so of due keys.
        let max_held = config.max_in_flight_bytes + config.fetch_batch_bytes + LARGEST * 2;
        let holds_too_much = self.faults.iter().position(|faults| faults.held.most() > max_held);
        if let Some(number) = holds_too_much {
            let held = self.faults[number].held.most();
            return Some(format!(
                "relay {number} held {held} bytes of payloads, more than {max_held}: {config:?}"
            ));
        }
        self.relays.iter().find_map(|relay| {
            let stats = relay.handle.stats();
            // The first message of a fetch, and of a failing key, comes whatever it has.
            let max_bytes = config.max_in_flight_bytes + stats.in_flight * NAMES + LARGEST * 2;
            let over = stats.in_flight > config.max_in_flight || stats.in_flight_bytes > max_bytes;
            over.then(|| {
                format!("relay {} exceeds {} or {max_bytes}: {stats:?}", relay.number, config.max_in_flight)
            })
        })
    }
}
