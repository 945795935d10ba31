//! Outcomes: decides what follows for the messages of a finished batch.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_contract::backend::{Outcome, RowId, Unavailable};
use outbox_contract::{Failure, KeyId, Topic};

use super::batches::Sent;
use super::breaker::Evidence;
use super::event::Report;
use super::key::{Doing, Verdict};
use super::lines::Line;
use super::table::KeyRef;
use super::{Core, in_model, sabotaged};

/// Summary of a finished batch.
struct Back {
    number: u64,
    /// True if the batch had one message.
    alone: bool,
    /// True if the publisher died.
    broke: bool,
    /// Error of a route that is unavailable as a whole.
    unavailable: Option<Failure>,
    /// Number of messages delivered by the core so far, including those of this batch.
    delivered: u64,
}

/// Record of a silent key (one whose attempts get no answer). It outlives the key's stay in memory,
/// because such a key is parked in between.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silence {
    /// Number of times that its message got no answer, sent alone, while other messages were
    /// delivered or its publisher died.
    pub(super) strikes: u32,
    /// Number of messages delivered by the core at its last attempt.
    pub(super) delivered: u64,
}

/// Share of the publish timeout within which a fast broker answers a batch, and share that only a
/// slow one takes: 250 ms and 2.5 s by default.
const FAST: u32 = 20;
const SLOW: u32 = 2;

/// Number of such attempts after which the missing answer counts as a failure of the message.
const STRIKES: u32 = 5;
/// Maximum number of silent keys that are remembered. Beyond it all are forgotten, and counted
/// anew.
pub(super) const MAX_SILENT: usize = 10_000;

impl Core {
    /// Handles the outcomes of a batch.
    pub(super) fn published(
        &mut self,
        number: u64,
        outcomes: Vec<Option<Outcome>>,
        refused: &BTreeSet<usize>,
        broke: bool,
    ) {
        let Some(batch) = self.batches.take(number) else { return };
        let line = self.lines.is_back(number);
        let alone = batch.sent.len() == 1;
        let evidence = Evidence::of(&outcomes, refused);
        let took = self.now.saturating_sub(batch.began);
        // Messages that were confirmed early are counted already.
        let mut rest: Vec<(Sent, Option<Outcome>)> = Vec::with_capacity(batch.sent.len());
        let mut outcomes = outcomes.into_iter();
        for sent in batch.sent {
            let outcome = outcomes.next().flatten();
            rest.extend(sent.map(|sent| (sent, outcome)));
        }
        let is_delivered = |(_, outcome): &&(Sent, Option<Outcome>)| *outcome == Some(Outcome::Delivered);
        let delivered = self.delivered + rest.iter().filter(is_delivered).count() as u64;
        let mut back = Back { number, alone, broke, unavailable: None, delivered };
        self.take_runs(rest, &mut back);
        self.delivered = back.delivered;
        if line != Some(Line::Silent) {
            let evidence = if back.unavailable.is_some() { Evidence::NoAnswer } else { evidence };
            self.tune(evidence, took);
        }
        if !broke {
            self.heard_of_transport(evidence, back.unavailable, line);
        }
    }

    /// Returns a maximum size of fetches or batches as the pace of the transport allows it.
    pub(super) fn paced(&self, most: usize) -> usize {
        if self.table.credit.is_wide() { most } else { most.div_ceil(2) }
    }

    /// Adjusts the credit to the pace of the transport: how long a batch took to be answered. A key
    /// that hangs says nothing about it.
    fn tune(&mut self, evidence: Evidence, took: Duration) {
        match evidence {
            Evidence::Answered if took <= self.limits.publish_timeout / FAST => self.table.credit.widen(),
            Evidence::Answered if took >= self.limits.publish_timeout / SLOW => self.table.credit.narrow(),
            Evidence::NoAnswer => self.table.credit.narrow(),
            Evidence::Answered | Evidence::NotSent => {}
        }
    }

    /// Handles early confirmations of an unconfirmed batch, for keys whose messages in it are all
    /// confirmed. Those keys continue; the others wait for the rest.
    pub(super) fn heard(&mut self, number: u64, delivered: &[bool]) {
        let delivered = &in_model!(self.sabotage_heard(number, delivered), delivered);
        let Some((size, through)) = self.batches.take_confirmed(number, delivered) else { return };
        if through.is_empty() {
            return;
        }
        let delivered = self.delivered + through.len() as u64;
        let mut back = Back { number, alone: size == 1, broke: false, unavailable: None, delivered };
        self.take_runs(through.into_iter().map(|sent| (sent, Some(Outcome::Delivered))).collect(), &mut back);
        self.delivered = back.delivered;
        self.heard_of_transport(Evidence::Answered, None, None);
    }

    pub(super) fn heard_of_transport(
        &mut self,
        evidence: Evidence,
        unavailable: Option<Failure>,
        line: Option<Line>,
    ) {
        let draw = self.draws.f64();
        if let Some(failure) = unavailable {
            let is_news = self.breaker.unavailable(self.now, draw);
            self.report(Report::TransportAway(failure, is_news));
            return;
        }
        match evidence {
            Evidence::Answered => {
                if self.breaker.heard() {
                    self.report(Report::TransportBack);
                }
            }
            Evidence::NoAnswer if line == Some(Line::Silent) => self.breaker.silent_again(self.now, draw),
            Evidence::NoAnswer => {
                if self.breaker.silent(self.now, draw) {
                    self.report(Report::TransportSilent);
                }
            }
            Evidence::NotSent => self.breaker.not_asked(self.now),
        }
    }

    /// Handles outcomes key by key: the messages of a key are adjacent in a batch.
    fn take_runs(&mut self, outcomes: Vec<(Sent, Option<Outcome>)>, back: &mut Back) {
        let mut run: Vec<(Sent, Option<Outcome>)> = Vec::new();
        for (sent, outcome) in outcomes {
            if run.last().is_some_and(|(last, _)| last.key != sent.key) {
                self.take_run(&mut run, back);
            }
            run.push((sent, outcome));
        }
        self.take_run(&mut run, back);
    }

    /// Handles the outcomes of one key's messages, and empties `run`.
    fn take_run(&mut self, run: &mut Vec<(Sent, Option<Outcome>)>, back: &mut Back) {
        let Some((first, _)) = run.first() else { return };
        let (key, parked) = (first.key, first.parked);
        let key = in_model!(self.sabotage_stay(key), key);
        let mixes = sabotaged!(self, StaysMixed);
        let state = self.table.get_mut(key).filter(|state| mixes || state.doing == Doing::Batch(back.number));
        let Some(state) = state else { return self.take_outdated(run) };
        state.doing = Doing::Nothing;
        let mut stopped = None;
        let mut rest = run.drain(..);
        for (sent, outcome) in rest.by_ref() {
            let is_through = outcome == Some(Outcome::Delivered)
                || (outcome == Some(Outcome::Blocked) && sabotaged!(self, BlockedIsDelivered))
                || (matches!(outcome, Some(Outcome::Unknown(_)) | None)
                    && sabotaged!(self, UnknownIsDelivered));
            if !is_through {
                stopped = Some((sent, outcome));
                break;
            }
            self.went_through(&sent);
        }
        let Some((first, outcome)) = stopped else { return self.come_back(key) };
        let row = first.held.stored.row();
        in_model!(self.sabotage_removal(row, parked));
        // Back to the head, in order, so that no message of this key overtakes an undelivered one.
        let mut returned = vec![first.held];
        returned.extend(rest.map(|(sent, _)| sent.held));
        if sabotaged!(self, FollowersGoOn) {
            returned.rotate_left(1);
        }
        if let Some(state) = self.table.get_mut(key) {
            state.give_back(returned);
        }
        self.stopped_at(key, row, parked, outcome, back);
    }

    /// Handles messages of an earlier stay of their key: delivered ones are removed, the others
    /// dropped.
    fn take_outdated(&mut self, run: &mut Vec<(Sent, Option<Outcome>)>) {
        for (sent, outcome) in run.drain(..) {
            if !sent.parked && outcome == Some(Outcome::Delivered) {
                self.counts.delivered += 1;
                self.remove(sent.key, &sent.held);
            } else {
                self.drop_held(&sent.held);
            }
        }
    }

    fn went_through(&mut self, sent: &Sent) {
        self.counts.delivered += 1;
        let Some(state) = self.table.get_mut(sent.key) else { return };
        (state.unknown, state.blocked) = (0, false);
        if !self.silent.is_empty() {
            self.silent.remove(&state.name);
        }
        if !self.topics.is_empty() && self.topics.published(&state.name.topic) {
            let topic = state.name.topic.clone();
            self.commands.push(super::Command::Report(Report::TopicBack(topic)));
            // The next look shows whether it is still read apart.
            self.look_soon();
        }
        let Some(state) = self.table.get_mut(sent.key) else { return };
        match &mut state.retry {
            Some(retry) if sent.parked => {
                retry.delivered.push(sent.held.stored.row());
                // The counted attempts belong to the message that was delivered.
                retry.failing = None;
                self.drop_held(&sent.held);
            }
            _ => self.remove(sent.key, &sent.held),
        }
    }

    /// Handles a key whose messages in the batch were all delivered.
    fn come_back(&mut self, key: KeyRef) {
        if self.table.get_mut(key).is_some_and(|state| std::mem::take(&mut state.forget)) {
            self.forget_key(key);
        }
        self.place(key);
    }

    /// Handles a key that stopped at an undelivered message, after its messages were returned.
    fn stopped_at(
        &mut self,
        key: KeyRef,
        row: RowId,
        parked: bool,
        outcome: Option<Outcome>,
        back: &mut Back,
    ) {
        let Some(state) = self.table.get_mut(key) else { return };
        let (topic, bucket) = (state.name.topic.clone(), state.bucket);
        if outcome != Some(Outcome::Blocked) {
            state.blocked = false;
        }
        if let Some(Outcome::Unavailable(Unavailable::Topic, failure)) = outcome {
            state.forget = false;
            if failure.class == Failure::FENCED {
                self.leases.fenced(bucket, self.now);
            }
            return self.topic_is_broken(key, &topic, failure);
        }
        if std::mem::take(&mut state.forget) {
            return self.forget_key(key);
        }
        match outcome {
            Some(Outcome::Rejected(failure)) => self.failed(key, row, parked, failure, Verdict::Rejected),
            Some(Outcome::Failed(failure)) => self.failed(key, row, parked, failure, Verdict::Failed),
            Some(Outcome::Postponed(_, failure)) if sabotaged!(self, PostponedCounts) => {
                self.failed(key, row, parked, failure, Verdict::Failed);
            }
            Some(Outcome::Postponed(rest, failure)) => {
                self.failed(key, row, parked, failure, Verdict::Postponed(rest));
            }
            Some(Outcome::Unavailable(_, failure)) if sabotaged!(self, OutageCounts) => {
                self.failed(key, row, parked, failure, Verdict::Failed);
            }
            Some(Outcome::Unavailable(_, failure)) => {
                back.unavailable.get_or_insert(failure);
                self.place(key);
            }
            Some(Outcome::Blocked) if sabotaged!(self, BlockedCounts) => {
                let failure = Failure::new("blocked", "as the model has it");
                self.failed(key, row, parked, failure, Verdict::Failed);
            }
            Some(Outcome::Unknown(_)) | None if sabotaged!(self, SilenceCounts) => {
                let failure = Failure::new("silent", "as the model has it");
                self.failed(key, row, parked, failure, Verdict::Failed);
            }
            Some(Outcome::Blocked) => self.blocked(key),
            Some(Outcome::Unknown(_) | Outcome::Delivered) | None => self.unknown(key, row, parked, back),
        }
    }

    /// Closes a topic that can't be published now, to be retried after a delay.
    fn topic_is_broken(&mut self, key: KeyRef, topic: &Topic, failure: Failure) {
        self.forget_key(key);
        let warns = self.topics.broken(topic, self.now);
        self.report(Report::TopicBroken(topic.clone(), failure, warns));
        self.close_topic(topic);
        self.report_topics();
    }

    /// Handles an unknown outcome: the first message of a key may have arrived. It is sent again,
    /// after a delay, before anything behind it.
    fn unknown(&mut self, key: KeyRef, row: RowId, parked: bool, back: &Back) {
        let Some(state) = self.table.get_mut(key) else { return };
        self.counts.unknown += 1;
        // It is the message's fault only if other messages were delivered meanwhile: an unavailable
        // broker answers none.
        let others_went = state.is_suspect() && back.delivered > state.delivered_by_then;
        state.delivered_by_then = back.delivered;
        state.unknown = state.unknown.saturating_add(1);
        let (unknown, name) = (state.unknown, state.name.clone());
        let is_struck = back.alone && (back.broke || others_went);
        let strikes = self.strikes(&name) + u32::from(is_struck);
        if strikes >= STRIKES {
            self.silent.remove(&name);
            let message = format!(
                "sent alone {STRIKES} times without an answer, while other messages were delivered; \
                 check the size and content of the message"
            );
            return self.failed(key, row, parked, Failure::new("breaks", message), Verdict::Failed);
        }
        if strikes > 0 || back.broke || others_went || parked {
            self.remember_silence(name, Silence { strikes, delivered: back.delivered });
        }
        let rest = self.rest_of_silence(unknown.max(strikes));
        if others_went || parked {
            // The messages behind it must not fill the memory while there is no answer. So the key
            // is parked like a failing one, without counting an attempt.
            let words = if others_went {
                "no answer while other messages were delivered; not counted as an attempt"
            } else {
                "no answer; not counted as an attempt"
            };
            return self.failed(key, row, parked, Failure::new("silent", words), Verdict::Silent(rest));
        }
        self.rest(key, rest);
        if self.looking.starved {
            // Other keys may have to show whether the broker is the cause.
            self.look_soon();
        }
    }

    pub(super) fn remember_silence(&mut self, name: KeyId, silence: Silence) {
        if self.silent.len() >= MAX_SILENT {
            self.silent.clear();
        }
        self.silent.insert(name, silence);
    }

    /// Returns the number of unanswered attempts held against a key.
    pub(super) fn strikes(&self, name: &KeyId) -> u32 {
        self.silent.get(name).map_or(0, |silence| silence.strikes)
    }

    /// Returns the delay of a silent key after so many attempts.
    pub(super) fn rest_of_silence(&mut self, times: u32) -> Duration {
        let doublings = times.saturating_sub(1).min(16);
        let bound = self.limits.first_delay.saturating_mul(1 << doublings).min(self.limits.max_delay);
        bound.mul_f64(self.draws.f64())
    }
}
