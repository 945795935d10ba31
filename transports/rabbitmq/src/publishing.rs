//! One batch on its way over one channel.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use outbox_contract::backend::flow::Reports;
use outbox_contract::backend::{Outcome, Outcomes, PublishBatch, Unavailable};
use outbox_contract::{Rejection, Topic, TransportErrorKind};

use crate::channel::{Channel, Word};
use crate::channel_state::Wants;
use crate::config::Config;
use crate::error::Fault;
use crate::frames::Publish;
use crate::gates::Pass;
use crate::publication::{Answer, Publication};
use crate::record;
use crate::refusals::{Fullness, Refusals, look, refusal};

/// One batch on its way over one channel.
///
/// Dropped half-way, it starts nothing more; what it has started goes on, one message per key.
pub(crate) struct Publishing<'c> {
    config: &'c Config,
    refusals: &'c Refusals,
    channel: Channel,
    batch: &'c PublishBatch,
    outcomes: &'c Outcomes,
    /// The last refusal before it began.
    since: u64,
    /// Messages under way of topics of which something was refused.
    counted: HashSet<usize>,
    has_missed: bool,
}

/// So many bytes are written at once, and one message.
const PIECE_BYTES: usize = 64 * 1024;

impl<'c> Publishing<'c> {
    pub(crate) fn new(
        config: &'c Config,
        refusals: &'c Refusals,
        channel: Channel,
        batch: &'c PublishBatch,
        outcomes: &'c Outcomes,
    ) -> Self {
        let since = refusals.last();
        Self { config, refusals, channel, batch, outcomes, since, counted: HashSet::new(), has_missed: false }
    }

    /// Says whether something was missing: an exchange, a queue, or a binding.
    pub(crate) async fn run(mut self) -> bool {
        let mut publication = Publication::new(&self.batch.messages);
        let mut changes = self.refusals.changes();
        self.look_before(&mut publication).await;
        // What was sent before an alarm goes through once it is over, so it is waited for.
        let mut is_blocked = false;
        loop {
            while publication.ready() > 0 && self.channel.has_room() {
                self.send(&mut publication);
            }
            if publication.is_complete() {
                return self.has_missed;
            }
            let wants = Wants { room: publication.ready() > 0, end_of_block: is_blocked };
            let word = tokio::select! {
                biased;
                word = self.channel.news(wants) => word,
                // The sender lives as long as the transport.
                _ = changes.changed(), if publication.holds_up() => {
                    publication.let_go();
                    continue;
                }
            };
            let reports = match word {
                Word::Answers(answers) => {
                    self.take(&answers).await;
                    let topic_of = |index| self.topic(index).to_string();
                    publication.answered(answers, topic_of, |index| self.refusals.why(self.topic(index)))
                }
                Word::Blocked(reason) => {
                    is_blocked = reason.is_some();
                    self.outcomes.stopped(reason.map(|reason| Fault::blocked(&reason).to_failure()));
                    continue;
                }
                Word::Room => continue,
            };
            self.report(reports);
        }
    }

    /// Looks how full the queues are of topics that are to be tried again: what is known to be
    /// refused is not sent, as other queues would store it once more.
    async fn look_before(&self, publication: &mut Publication) {
        let mut topics = BTreeMap::<&Topic, BTreeSet<u32>>::new();
        for stored in &self.batch.messages {
            let partition = self.config.partitions.of(stored.bucket);
            topics.entry(&stored.message.topic).or_default().insert(partition);
        }
        topics.retain(|topic, _| self.refusals.wants_probe(topic));
        for (topic, partitions) in topics {
            match look(self.channel.wire(), self.config, topic, &partitions).await {
                Fullness::Room => self.refusals.has_room(topic),
                Fullness::Full(why) => {
                    self.refusals.explained(topic, why.clone());
                    let outcome = Outcome::Unavailable(Unavailable::Topic, why);
                    self.report(publication.shut_out(|index| self.topic(index) == topic, &outcome));
                }
                Fullness::Unknown(_) => {}
            }
        }
    }

    /// Sends as many of the messages that may go as one piece holds.
    fn send(&mut self, publication: &mut Publication) {
        // About as much as small messages take: what waits to be written has no empty space in it.
        let expected = PIECE_BYTES.min(publication.ready() * 1_024);
        let (mut bytes, mut sent) = (Vec::with_capacity(expected), Vec::new());
        while bytes.len() < PIECE_BYTES
            && let Some(index) = publication.start()
        {
            match self.refusals.pass(self.topic(index), self.since) {
                Pass::Free => {}
                Pass::Counted => _ = self.counted.insert(index),
                Pass::Wait => {
                    publication.hold_up(index);
                    continue;
                }
                Pass::No(why) => {
                    let outcome = Outcome::Unavailable(Unavailable::Topic, why);
                    self.report(publication.unsendable(index, outcome));
                    continue;
                }
            }
            match self.write(&mut bytes, index) {
                Ok(()) => sent.push(index),
                Err(Rejection(failure)) => {
                    self.leave(index);
                    self.report(publication.unsendable(index, Outcome::Rejected(failure)));
                }
            }
        }
        if !sent.is_empty() {
            self.channel.send(bytes, sent);
        }
    }

    fn write(&self, bytes: &mut Vec<u8>, index: usize) -> Result<(), Rejection> {
        let stored = &self.batch.messages[index];
        self.config.validate(&stored.message)?;
        let partitions = self.config.partitions;
        let publish = Publish {
            channel: self.channel.id(),
            exchange: self.config.exchange.as_str(),
            routing_key: &partitions.routing_key(&stored.message.topic, partitions.of(stored.bucket)),
            payload: &stored.message.payload,
        };
        publish.write(bytes, self.channel.max_frame_bytes(), |bytes| {
            record::encode(bytes, stored, &self.batch.source)
        })
    }

    /// Takes in for all batches what the broker said of messages, and finds out which queue is
    /// full.
    async fn take(&mut self, answers: &[Answer]) {
        let mut closed = BTreeMap::<Topic, BTreeSet<u32>>::new();
        for answer in answers {
            match *answer {
                Answer::Confirmed(index) if self.counted.remove(&index) => {
                    self.refusals.confirmed(self.topic(index));
                }
                Answer::Refused(index) => {
                    let was_counted = self.counted.remove(&index);
                    let (topic, partition) = (self.topic(index), self.batch.messages[index].bucket);
                    if self.refusals.refused(topic, was_counted) {
                        closed.insert(topic.clone(), BTreeSet::from([self.config.partitions.of(partition)]));
                    }
                }
                Answer::Returned(_) => self.has_missed = true,
                Answer::Broken(ref fault) if fault.kind == TransportErrorKind::Missing => {
                    self.has_missed = true
                }
                Answer::Confirmed(_) | Answer::Broken(_) => {}
            }
        }
        for (topic, partitions) in closed {
            let why = match look(self.channel.wire(), self.config, &topic, &partitions).await {
                Fullness::Full(why) => why,
                Fullness::Unknown(Some(waiting)) => refusal(&topic, Some(&waiting)),
                Fullness::Unknown(None) | Fullness::Room => continue,
            };
            self.refusals.explained(&topic, why);
        }
    }

    fn topic(&self, index: usize) -> &'c Topic {
        &self.batch.messages[index].message.topic
    }

    fn leave(&mut self, index: usize) {
        if self.counted.remove(&index) {
            self.refusals.left(self.topic(index));
        }
    }

    fn report(&self, reports: Reports) {
        for (index, outcome) in reports {
            self.outcomes.report(index, outcome);
        }
    }
}

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        for index in &self.counted {
            self.refusals.left(self.topic(*index));
        }
    }
}
