//! One chunk on its way: what can be sent, and what is said of it.
//!
//! Promises: of the messages of a key, what arrives is a prefix; a message is reported delivered when the broker acknowledged it with an
//! offset, at once where other partitions are slower; nothing of a chunk is handed over after its future was dropped or it was given up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outbox_contract::outcome::Unavailable;
use outbox_contract::{Chunk, Failure, Key, KeyId, Outcome, Outcomes, Topic};
use tokio::time::Instant;

use crate::attempt::{Attempt, Entry, Line, Quiet};
use crate::config::Config;
use crate::flight::Heard;
use crate::patience::Patience;
use crate::record::Record;
use crate::topics::Absent;
use crate::transport::Shared;
use crate::verdict::{Cuts, Meaning, behind_silence, first_of, is_silence, refused};

/// Publishes a chunk.
pub(crate) async fn publish(shared: &Shared, chunk: Chunk, outcomes: &Outcomes) {
    let began = Instant::now();
    let patience = Patience::new(began, chunk.deadline);
    let entries = prepare(shared, &chunk, outcomes, patience.given_up(began)).await;
    if entries.is_empty() {
        return;
    }
    let producer = match shared.pool().current() {
        Ok(Some(producer)) => producer,
        Ok(None) => return route(outcomes, "closed", "the transport is closed"),
        Err(error) => return route(outcomes, "broker-unavailable", &error.to_string()),
    };
    let lines = Line::of(&entries);
    let (quiet, heard) = {
        let attempt = Attempt::new(shared.pool(), &producer, outcomes);
        let quiet = attempt.run(&lines, patience).await;
        (quiet, attempt.end(chunk.messages.len()).await)
    };
    let refused = producer.refused().map(|trouble| refused(&trouble.words));
    let judge = Judge { shared, entries: &entries, heard: &heard, quiet, refused, outcomes };
    judge.judge().await;
}

fn route(outcomes: &Outcomes, class: &'static str, words: &str) {
    outcomes.report_rest(&Outcome::Unavailable(Unavailable::Route, Failure::new(class, words)));
}

/// Finds out which messages can be sent, and to which partition. What is said of the others is reported.
async fn prepare(shared: &Shared, chunk: &Chunk, outcomes: &Outcomes, deadline: Instant) -> Vec<Entry> {
    let mut counts: BTreeMap<Topic, Result<i32, Absent>> = BTreeMap::new();
    for stored in &chunk.messages {
        let topic = &stored.message.topic;
        if counts.contains_key(topic) {
            continue;
        }
        // No name that Kafka forbids is asked for: the client waits for an answer that does not come.
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
    let mut cuts = Cuts::default();
    let mut entries = Vec::with_capacity(chunk.messages.len());
    for (index, stored) in chunk.messages.iter().enumerate() {
        if !cuts.is_empty() && cuts.has(&stored.message.key_id()) {
            outcomes.report(index, Outcome::Blocked);
            continue;
        }
        let outcome = match (shared.config().validate(&stored.message), counts.get(&stored.message.topic)) {
            (Err(rejection), _) => Outcome::Rejected(rejection.0),
            (Ok(()), Some(Ok(count))) => {
                let partition_of = |key: &Key| crate::murmur2::partition_of(key.as_str().as_bytes(), *count);
                let key = stored.message.key.as_ref();
                let partition = key.map_or_else(|| partition_of(&stored.message.order_key()), partition_of);
                let record = Record::new(Arc::clone(stored), Arc::clone(&chunk.source), partition);
                entries.push(Entry { index, record });
                continue;
            }
            (Ok(()), Some(Err((what, failure)))) => Outcome::Unavailable(*what, failure.clone()),
            (Ok(()), None) => Outcome::Blocked,
        };
        cuts.cut(&stored.message.key_id());
        outcomes.report(index, outcome);
    }
    entries
}

/// Says of each message what became of it.
struct Judge<'a> {
    shared: &'a Shared,
    entries: &'a [Entry],
    heard: &'a [Heard],
    quiet: Quiet<'a>,
    /// Why the broker let the producer do nothing: then nothing else is the matter with what it did not deliver.
    refused: Option<Failure>,
    outcomes: &'a Outcomes,
}

impl Judge<'_> {
    async fn judge(&self) {
        // Mostly so: then it is said at once of all of which nothing was said yet, and those are the ones that were sent.
        if self.entries.iter().all(|entry| self.heard.get(entry.index) == Some(&Heard::Acknowledged)) {
            return self.outcomes.report_rest(&Outcome::Delivered);
        }
        let silent = self.silent();
        let keys: Vec<KeyId> = self.entries.iter().map(|entry| entry.record.key_id()).collect();
        // Nothing to do with what was cut before: of such a key only messages in front of the cut were sent.
        let mut cuts = Cuts::default();
        // Keys whose first undelivered message is judged alone, with the messages that follow it.
        let mut alone: BTreeMap<&KeyId, Vec<(&Entry, Heard)>> = BTreeMap::new();
        let mut unknown: Vec<(&Entry, Failure)> = Vec::new();
        for (entry, key) in self.entries.iter().zip(&keys) {
            let heard = self.heard.get(entry.index).copied().unwrap_or(Heard::NotSent);
            if let Some(waiting) = alone.get_mut(key) {
                waiting.push((entry, heard));
            } else if cuts.has(key) {
                self.outcomes.report(entry.index, Outcome::Blocked);
            } else {
                let place = (entry.record.partition, entry.record.topic());
                let said = match first_of(heard, place.1.as_str()) {
                    // Named at once, and not one key in each round: so the sooner none of them slows a chunk.
                    Ok(Outcome::Blocked) if silent.contains(&place) => {
                        Err(Meaning::Unknown(behind_silence(place.0, place.1.as_str())))
                    }
                    said => said,
                };
                match (said, &self.refused) {
                    (Ok(Outcome::Delivered), _) => self.outcomes.report(entry.index, Outcome::Delivered),
                    (Ok(_) | Err(Meaning::Unknown(_)), Some(why)) => {
                        cuts.cut(key);
                        self.absent(entry, Unavailable::Route, why.clone());
                    }
                    (Ok(outcome), None) => {
                        cuts.cut(key);
                        self.outcomes.report(entry.index, outcome);
                    }
                    (Err(Meaning::MayBeRejected(_)), _) => drop(alone.insert(key, vec![(entry, heard)])),
                    (Err(Meaning::Unavailable(what, failure)), _) => {
                        cuts.cut(key);
                        self.absent(entry, what, failure);
                    }
                    (Err(Meaning::Unknown(failure)), None) => {
                        cuts.cut(key);
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

    /// The partitions that had something of this chunk and did not answer in time.
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

    /// Sends messages of a key alone, each after the last was delivered: only so can the broker's no be put to one of them, as it
    /// rejects a record batch as a whole.
    async fn one_by_one(&self, entries: &[(&Entry, Heard)]) {
        let mut stopped = false;
        for (entry, _) in entries {
            if stopped {
                self.outcomes.report(entry.index, Outcome::Blocked);
                continue;
            }
            let heard = self.shared.send_alone(&entry.record, self.quiet.deadline).await;
            let outcome = match first_of(heard, entry.record.topic().as_str()) {
                Ok(outcome) => outcome,
                Err(Meaning::MayBeRejected(failure)) => Outcome::Rejected(failure),
                Err(Meaning::Unavailable(what, failure)) => Outcome::Unavailable(what, failure),
                Err(Meaning::Unknown(failure)) => Outcome::Unknown(failure),
            };
            stopped = outcome != Outcome::Delivered;
            self.outcomes.report(entry.index, outcome);
        }
    }

    /// Asks why nothing was heard, once for each topic: a topic without enough replicas, or a broker that is away, says nothing by itself.
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
