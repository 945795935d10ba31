//! One batch on its way: what can be sent, and what is said of it.
//!
//! Promises: of the messages of a key, what arrives is a prefix; a message is reported delivered
//! when the broker acknowledged it with an offset, at once where other partitions are slower;
//! nothing of a batch is handed over after its future was dropped or it was given up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;
use outbox_contract::backend::flow::CutKeys;
use outbox_contract::backend::{Outcome, Outcomes, PublishBatch, Unavailable};
use outbox_contract::{Failure, Key, KeyId, Topic, TransportError};
use tokio::time::Instant;

use crate::attempt::{Attempt, Entry, PartitionMessages, Quiet};
use crate::config::Config;
use crate::flight::Heard;
use crate::pool::Pool;
use crate::produce_error::{ProduceError, behind_silence, first_of, is_silence, refused};
use crate::publish_timeout::PublishTimeout;
use crate::record::Record;
use crate::topics::Absent;
use crate::transport::SharedTransport;

/// Publishes a batch.
pub(crate) async fn publish(shared: &SharedTransport, batch: PublishBatch, outcomes: &Outcomes) {
    let began = Instant::now();
    let publish_timeout = PublishTimeout::new(began, batch.deadline);
    let entries = prepare(shared, &batch, outcomes, publish_timeout.given_up(began)).await;
    if entries.is_empty() {
        return;
    }
    let parts = match parts(shared, entries, batch.messages.len()) {
        Ok(parts) => parts,
        Err(error) => return route(outcomes, "broker-unavailable", &error.to_string()),
    };
    let whole = parts.len() == 1;
    let parts = parts.into_iter().map(|(pool, entries)| Part {
        shared,
        pool,
        entries,
        len: batch.messages.len(),
        whole,
        outcomes,
        publish_timeout: PublishTimeout::new(began, batch.deadline),
    });
    join_all(parts.map(Part::publish)).await;
}

fn route(outcomes: &Outcomes, class: &'static str, words: &str) {
    outcomes.report_rest(&Outcome::Unavailable(Unavailable::Route, Failure::new(class, words)));
}

/// Messages that go by one pool.
type Share = (Arc<Pool>, Vec<Entry>);

/// Shares out messages by the pools that their topics go by: mostly all by one.
fn parts(
    shared: &SharedTransport,
    entries: Vec<Entry>,
    messages: usize,
) -> Result<Vec<Share>, TransportError> {
    let mut pools: BTreeMap<Topic, (usize, bool)> = BTreeMap::new();
    let mut parts: Vec<Share> = Vec::new();
    for mut entry in entries {
        let topic = entry.record.topic();
        let (at, alone) = match pools.get(topic) {
            Some(known) => *known,
            None => {
                let batch_bytes = shared.limits().of(topic).map(|limits| limits.batch_bytes);
                let pool = shared.pools().of(topic, batch_bytes, messages)?;
                let known = parts.iter().position(|(other, _)| Arc::ptr_eq(other, &pool));
                let at = known.unwrap_or_else(|| {
                    parts.push((pool, Vec::new()));
                    parts.len() - 1
                });
                let of = (at, shared.pools().sends_alone(topic));
                pools.insert(topic.clone(), of);
                of
            }
        };
        entry.alone = alone;
        if let Some((_, part)) = parts.get_mut(at) {
            part.push(entry);
        }
    }
    Ok(parts)
}

/// Part of a batch that goes out by one pool of producers. Another part has no message of the same
/// topic.
struct Part<'a> {
    shared: &'a SharedTransport,
    pool: Arc<Pool>,
    entries: Vec<Entry>,
    /// Number of messages of the batch.
    len: usize,
    /// True if this is all that can be sent of the batch.
    whole: bool,
    outcomes: &'a Outcomes,
    publish_timeout: PublishTimeout<'static>,
}

impl Part<'_> {
    async fn publish(self) {
        let Self { shared, pool, entries, len, whole, outcomes, publish_timeout } = self;
        let (class, words) = match pool.current() {
            Ok(Some(producer)) => {
                let lines = PartitionMessages::of(&entries);
                let (quiet, heard) = {
                    let attempt = Attempt::new(&pool, &producer, outcomes);
                    let quiet = attempt.run(&lines, publish_timeout).await;
                    (quiet, attempt.end(len).await)
                };
                let refused = producer.refused().map(|trouble| refused(&trouble.words));
                let judge =
                    Judge { shared, entries: &entries, whole, heard: &heard, quiet, refused, outcomes };
                return judge.judge().await;
            }
            Ok(None) => ("closed", "the transport is closed".to_owned()),
            Err(error) => ("broker-unavailable", error.to_string()),
        };
        for entry in &entries {
            let failure = Failure::new(class, words.clone());
            outcomes.report(entry.index, Outcome::Unavailable(Unavailable::Route, failure));
        }
    }
}

/// Finds out which messages can be sent, and to which partition. What is said of the others is
/// reported.
async fn prepare(
    shared: &SharedTransport,
    batch: &PublishBatch,
    outcomes: &Outcomes,
    deadline: Instant,
) -> Vec<Entry> {
    let mut counts: BTreeMap<Topic, Result<i32, Absent>> = BTreeMap::new();
    for stored in &batch.messages {
        let topic = &stored.message.topic;
        if counts.contains_key(topic) {
            continue;
        }
        // No name that Kafka forbids is asked for: the client waits for an answer that does not
        // come.
        let unanswered =
            counts.values().find_map(|count| count.as_ref().err()).filter(|it| it.0 == Unavailable::Route);
        let count = match (Config::validate_topic(topic), shared.topics().known(topic), unanswered) {
            (Err(_), _, _) => Ok(1),
            (_, Some(count), _) => Ok(count),
            // Once is enough to find out that no broker answers.
            (_, None, Some(absent)) => Err(absent.clone()),
            (_, None, None) => {
                let limit = deadline.saturating_duration_since(Instant::now());
                shared.topics().partitions(topic, limit).await
            }
        };
        counts.insert(topic.clone(), count);
    }
    let there = counts.iter().filter(|(topic, count)| count.is_ok() && Config::validate_topic(topic).is_ok());
    shared.limits().learn(there.map(|(topic, _)| topic)).await;
    let mut cut = CutKeys::default();
    let mut entries = Vec::with_capacity(batch.messages.len());
    for (index, stored) in batch.messages.iter().enumerate() {
        if cut.blocks(&stored.message) {
            outcomes.report(index, Outcome::Blocked);
            continue;
        }
        let rejection = match shared.config().validate(&stored.message) {
            Err(rejection) => Some(rejection.0),
            Ok(()) => shared.limits().refusal(&stored.message, &batch.source).await,
        };
        let outcome = match (rejection, counts.get(&stored.message.topic)) {
            (Some(rejection), _) => Outcome::Rejected(rejection),
            (None, Some(Ok(count))) => {
                let partition_of = |key: &Key| crate::murmur2::partition_of(key.as_str().as_bytes(), *count);
                let key = stored.message.key.as_ref();
                let partition = key.map_or_else(|| partition_of(&stored.message.order_key()), partition_of);
                let record = Record::new(Arc::clone(stored), Arc::clone(&batch.source), partition);
                entries.push(Entry { index, record, alone: false });
                continue;
            }
            (None, Some(Err((what, failure)))) => Outcome::Unavailable(*what, failure.clone()),
            (None, None) => Outcome::Blocked,
        };
        cut.cut(&stored.message);
        outcomes.report(index, outcome);
    }
    entries
}

/// Says of each message what became of it.
struct Judge<'a> {
    shared: &'a SharedTransport,
    entries: &'a [Entry],
    /// True if nothing else of the batch is under way.
    whole: bool,
    heard: &'a [Heard],
    quiet: Quiet<'a>,
    /// Why the broker let the producer do nothing: then nothing else is the matter with what it did
    /// not deliver.
    refused: Option<Failure>,
    outcomes: &'a Outcomes,
}

impl Judge<'_> {
    async fn judge(&self) {
        // Mostly so: then it is said at once of all of which nothing was said yet, and those are
        // the ones that were sent.
        if self.entries.iter().all(|entry| self.heard.get(entry.index) == Some(&Heard::Acknowledged)) {
            if self.whole {
                return self.outcomes.report_rest(&Outcome::Delivered);
            }
            return self
                .entries
                .iter()
                .for_each(|entry| self.outcomes.report(entry.index, Outcome::Delivered));
        }
        let silent = self.silent();
        // Nothing to do with what was cut before: of such a key only messages in front of the cut
        // were sent.
        let mut cut = CutKeys::default();
        // Keys whose first undelivered message is judged alone, with the messages that follow it.
        let mut alone: BTreeMap<KeyId, Vec<&Entry>> = BTreeMap::new();
        let mut unknown: Vec<(&Entry, Failure)> = Vec::new();
        for entry in self.entries {
            let message = entry.record.message();
            let heard = self.heard.get(entry.index).copied().unwrap_or(Heard::NotSent);
            if entry.alone || (!alone.is_empty() && alone.contains_key(&message.key_id())) {
                alone.entry(message.key_id()).or_default().push(entry);
            } else if cut.blocks(message) {
                self.outcomes.report(entry.index, Outcome::Blocked);
            } else {
                let place = (entry.record.partition, entry.record.topic());
                let said = match first_of(heard, place.1.as_str()) {
                    // Named at once, and not one key in each round: so the sooner none of them
                    // slows a batch.
                    Ok(Outcome::Blocked) if silent.contains(&place) => {
                        Err(ProduceError::Unknown(behind_silence(place.0, place.1.as_str())))
                    }
                    said => said,
                };
                match (said, &self.refused) {
                    (Ok(Outcome::Delivered), _) => self.outcomes.report(entry.index, Outcome::Delivered),
                    (Ok(_) | Err(ProduceError::Unknown(_)), Some(why)) => {
                        cut.cut(message);
                        self.absent(entry, Unavailable::Route, why.clone());
                    }
                    (Ok(outcome), None) => {
                        cut.cut(message);
                        self.outcomes.report(entry.index, outcome);
                    }
                    (Err(ProduceError::MayBeRejected(_)), _) => {
                        drop(alone.insert(message.key_id(), vec![entry]))
                    }
                    (Err(ProduceError::Unavailable(what, failure)), _) => {
                        cut.cut(message);
                        self.absent(entry, what, failure);
                    }
                    (Err(ProduceError::Unknown(failure)), None) => {
                        cut.cut(message);
                        unknown.push((entry, failure));
                    }
                }
            }
        }
        for entries in alone.values() {
            self.one_by_one(entries).await;
        }
        self.diagnose(unknown).await;
    }

    /// The partitions that had something of this batch and did not answer in time.
    fn silent(&self) -> BTreeSet<(i32, &Topic)> {
        if self.quiet.silent.is_empty() {
            return BTreeSet::new();
        }
        let unheard = |entry: &&Entry| self.heard.get(entry.index).copied().is_some_and(is_silence);
        let records = self.entries.iter().filter(unheard).map(|entry| &entry.record);
        let silent = records.filter(|record| self.quiet.silent.contains(&record.partition()));
        silent.map(|record| (record.partition, record.topic())).collect()
    }

    fn absent(&self, entry: &Entry, what: Unavailable, failure: Failure) {
        if what == Unavailable::Topic {
            self.shared.topics().forget(entry.record.topic());
        }
        self.outcomes.report(entry.index, Outcome::Unavailable(what, failure));
    }

    /// Sends messages of a key alone, each after the last was delivered: only so can the broker's
    /// no be put to one of them, as it rejects a record batch as a whole.
    async fn one_by_one(&self, entries: &[&Entry]) {
        let mut stopped = false;
        for entry in entries {
            if stopped {
                self.outcomes.report(entry.index, Outcome::Blocked);
                continue;
            }
            let heard = self.shared.send_alone(&entry.record, self.quiet.deadline).await;
            let outcome = match first_of(heard, entry.record.topic().as_str()) {
                Ok(outcome) => outcome,
                Err(ProduceError::MayBeRejected(failure)) => Outcome::Rejected(failure),
                Err(ProduceError::Unavailable(what, failure)) => Outcome::Unavailable(what, failure),
                Err(ProduceError::Unknown(failure)) => Outcome::Unknown(failure),
            };
            let topic = entry.record.topic();
            match outcome {
                Outcome::Delivered => self.shared.pools().took(topic),
                Outcome::Rejected(_) => {
                    self.shared.pools().rejected(topic);
                    self.shared.limits().forget(topic);
                }
                _ => {}
            }
            stopped = outcome != Outcome::Delivered;
            self.outcomes.report(entry.index, outcome);
        }
    }

    /// Asks why nothing was heard, once for each topic: a topic without enough replicas, or a
    /// broker that is away, says nothing by itself.
    async fn diagnose(&self, unknown: Vec<(&Entry, Failure)>) {
        let late = !self.quiet.silent.is_empty() || Instant::now() >= self.quiet.deadline;
        let mut found: BTreeMap<&Topic, Option<Absent>> = BTreeMap::new();
        for (entry, failure) in unknown {
            let topic = entry.record.topic();
            if late && !found.contains_key(topic) {
                let route = found.values().flatten().find(|it| it.0 == Unavailable::Route).cloned();
                let answer = match route {
                    Some(absent) => Some(absent),
                    None => {
                        let limit = self.quiet.end.saturating_duration_since(Instant::now()) / 2;
                        self.shared.topics().diagnose(topic, limit).await
                    }
                };
                found.insert(topic, answer);
            }
            match found.get(topic) {
                Some(Some((what, why))) => self.absent(entry, *what, why.clone()),
                _ => self.outcomes.report(entry.index, Outcome::Unknown(failure)),
            }
        }
    }
}
