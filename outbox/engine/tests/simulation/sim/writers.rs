//! Writers: transactions of a few messages, held open for a while, committed, rolled back or
//! abandoned.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use outbox_contract::backend::{Clock, Committed};
use outbox_contract::{Key, Message, Outgoing, Timestamp, Topic, Transactional};
use outbox_store_memory::MemoryStore;
use outbox_testkit::{ChaosStore, History, Ids, TestClock};

use super::plan::Plan;
use super::trace::Trace;

pub(crate) struct Writer {
    pub(crate) plan: Plan,
    pub(crate) store: Arc<ChaosStore<MemoryStore>>,
    pub(crate) history: Arc<History>,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) ids: Arc<Ids>,
    pub(crate) trace: Arc<Trace>,
    pub(crate) rng: Rng,
}

/// The topic of this number.
pub(crate) fn topic(number: usize) -> Topic {
    Topic::new(format!("topic-{number}")).unwrap()
}

/// The key of this number.
pub(crate) fn key(number: usize) -> Key {
    Key::new(format!("key-{number}")).unwrap()
}

impl Writer {
    pub(crate) async fn run(mut self) {
        let pause = self.plan.chaos / u32::try_from(self.plan.transactions).unwrap();
        for _ in 0..self.plan.transactions {
            tokio::time::sleep(pause.mul_f64(self.rng.f64() * 1.5)).await;
            // A call that hangs ends with its transaction.
            let limit = Duration::from_secs(1);
            let _ = tokio::time::timeout(limit, self.transaction()).await;
        }
    }

    async fn transaction(&mut self) {
        let history = Arc::clone(&self.history);
        let Ok(mut tx) = self.store.begin().await else { return };
        let mut writing = history.begin();
        for _ in 0..self.rng.usize(1..=3) {
            let batch: Vec<Outgoing> = (0..self.rng.usize(1..=3)).map(|_| self.message()).collect();
            for outgoing in &batch {
                match outgoing.due {
                    Some(_) => writing.schedule(&outgoing.message),
                    None => writing.append(&outgoing.message),
                }
            }
            if self.store.append(&mut tx, &batch).await.is_err() {
                // Whatever it was, this transaction is not committed.
                return writing.rolled_back();
            }
            if self.rng.u8(..4) == 0 {
                tokio::time::sleep(Duration::from_millis(self.rng.u64(1..=400))).await;
            }
        }
        match self.rng.u8(..10) {
            0 => {
                let _ = self.store.rollback(tx).await;
                writing.rolled_back();
            }
            1 => {
                drop(tx);
                writing.rolled_back();
            }
            _ => {
                writing.committing();
                match self.store.commit(tx).await {
                    Committed::Yes => {
                        self.trace.say("committed");
                        writing.committed();
                    }
                    Committed::No(_) => writing.rolled_back(),
                    Committed::Unknown(_) => writing.unknown(),
                }
            }
        }
    }

    fn message(&mut self) -> Outgoing {
        let topic = topic(self.rng.usize(..self.plan.topics));
        let size = if self.rng.u8(..20) == 0 { 3_000 } else { self.rng.usize(..60) };
        let mut message = Message::new(topic, "simulated")
            .expect("valid names")
            .with_id(self.ids.message())
            .with_occurred_at(Timestamp::from_micros(0))
            .with_payload(vec![b'x'; size]);
        if self.rng.u8(..20) > 0 {
            // The first keys are hot.
            let spread = self.rng.f64() * self.rng.f64();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "below the number of keys"
            )]
            let number = (spread * self.plan.keys as f64) as usize;
            message.key = Some(key(number));
        }
        let outgoing = Outgoing::from(message);
        if self.rng.f64() < self.plan.scheduled {
            let wait = Duration::from_millis(self.rng.u64(..5_000));
            return outgoing.due_at(self.clock.now().plus(wait));
        }
        outgoing
    }
}
