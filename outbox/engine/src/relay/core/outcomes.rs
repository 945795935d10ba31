//! Outcomes: what becomes of the messages of a batch.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_contract::backend::{Outcome, RowId, Unavailable};
use outbox_contract::{Failure, KeyId, Topic};

use super::batches::Sent;
use super::breaker::Word;
use super::event::Report;
use super::key::{Doing, Verdict};
use super::lines::Line;
use super::table::KeyRef;
use super::{Core, sabotaged};

/// How a batch came back.
struct Back {
    number: u64,
    /// There was one message in it.
    alone: bool,
    /// The publisher died over it.
    broke: bool,
    /// The route as a whole can't be used.
    unavailable: Option<Failure>,
    /// Number of messages that the core has delivered by now, those of this batch included.
    delivered: u64,
}

/// What is remembered of a key of which nothing was heard. It outlives the key's stays in memory, since such a key is set aside in between.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silence {
    /// Number of times that it broke things alone.
    pub(super) strikes: u32,
    /// Number of messages that the core had delivered when nothing was heard of it the last time.
    pub(super) delivered: u64,
}

/// Number of times that a message may break things alone before that counts as a failure of its own.
const STRIKES: u32 = 5;
/// Maximum number of keys of which silence is remembered. Beyond it all are forgotten, and count from the beginning.
const MAX_SILENT: usize = 10_000;

impl Core {
    /// Takes the outcomes of a batch.
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
        let word = Word::of(&outcomes, refused);
        // What was taken as delivered before is counted already.
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
        if !broke {
            self.heard_of_transport(word, back.unavailable, line);
        }
    }

    /// Takes what was delivered of a batch that is out, of those keys that have nothing else in it. They go on; the others wait for the rest.
    pub(super) fn heard(&mut self, number: u64, delivered: &[bool]) {
        let Some((size, through)) = self.batches.take_confirmed(number, delivered) else { return };
        if through.is_empty() {
            return;
        }
        let delivered = self.delivered + through.len() as u64;
        let mut back = Back { number, alone: size == 1, broke: false, unavailable: None, delivered };
        self.take_runs(through.into_iter().map(|sent| (sent, Some(Outcome::Delivered))).collect(), &mut back);
        self.delivered = back.delivered;
        self.heard_of_transport(Word::Heard, None, None);
    }

    fn heard_of_transport(&mut self, word: Word, unavailable: Option<Failure>, line: Option<Line>) {
        let draw = self.draws.f64();
        if let Some(failure) = unavailable {
            if self.breaker.unavailable(self.now, draw) {
                self.report(Report::TransportAway(failure));
            }
            return;
        }
        match word {
            Word::Heard => {
                if self.breaker.heard() {
                    self.report(Report::TransportBack);
                }
            }
            Word::Silence if line == Some(Line::Silent) => self.breaker.silent_again(self.now, draw),
            Word::Silence => {
                if self.breaker.silent(self.now, draw) {
                    self.report(Report::TransportSilent);
                }
            }
            Word::NotAsked => self.breaker.not_asked(self.now),
        }
    }

    /// Takes outcomes key by key: a key's messages stand together in a batch.
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

    /// Takes the outcomes of a key's messages, and leaves none.
    fn take_run(&mut self, run: &mut Vec<(Sent, Option<Outcome>)>, back: &mut Back) {
        let Some((first, _)) = run.first() else { return };
        let (key, parked) = (first.key, first.parked);
        let state = self.table.get_mut(key).filter(|state| state.doing == Doing::Batch(back.number));
        let Some(state) = state else { return self.take_ghosts(run) };
        state.doing = Doing::Nothing;
        let mut stopped = None;
        let mut rest = run.drain(..);
        for (sent, outcome) in rest.by_ref() {
            let is_through = outcome == Some(Outcome::Delivered)
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
        // Back to the head, in order: nothing of this key passes what was not delivered.
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

    /// Messages of an earlier stay of their key: what was delivered may be removed, nothing else.
    fn take_ghosts(&mut self, run: &mut Vec<(Sent, Option<Outcome>)>) {
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
        state.unknown = 0;
        if !self.silent.is_empty() {
            self.silent.remove(&state.name);
        }
        if !self.topics.is_empty() && self.topics.published(&state.name.topic) {
            let topic = state.name.topic.clone();
            self.commands.push(super::Command::Report(Report::TopicBack(topic)));
            // Whether it is still apart shows in the next look.
            self.look_soon();
        }
        let Some(state) = self.table.get_mut(sent.key) else { return };
        match &mut state.retry {
            Some(retry) if sent.parked => {
                retry.delivered.push(sent.held.stored.row());
                // The attempts that were counted belong to the message that went through.
                retry.failing = None;
                self.drop_held(&sent.held);
            }
            _ => self.remove(sent.key, &sent.held),
        }
    }

    /// All that a key had in a batch went through.
    fn come_back(&mut self, key: KeyRef) {
        if self.table.get_mut(key).is_some_and(|state| std::mem::take(&mut state.forget)) {
            self.forget_key(key);
        }
        self.place(key);
    }

    /// A key stopped at a message that was not delivered. It has all its messages back.
    fn stopped_at(
        &mut self,
        key: KeyRef,
        row: RowId,
        parked: bool,
        outcome: Option<Outcome>,
        back: &mut Back,
    ) {
        let Some(state) = self.table.get_mut(key) else { return };
        let topic = state.name.topic.clone();
        if let Some(Outcome::Unavailable(Unavailable::Topic, failure)) = outcome {
            state.forget = false;
            return self.topic_is_broken(key, &topic, failure);
        }
        if std::mem::take(&mut state.forget) {
            return self.forget_key(key);
        }
        match outcome {
            Some(Outcome::Rejected(failure)) => self.failed(key, row, parked, failure, Verdict::Rejected),
            Some(Outcome::Failed(failure)) => self.failed(key, row, parked, failure, Verdict::Failed),
            Some(Outcome::Unavailable(_, failure)) if sabotaged!(self, OutageCounts) => {
                self.failed(key, row, parked, failure, Verdict::Failed);
            }
            Some(Outcome::Unavailable(_, failure)) => {
                back.unavailable.get_or_insert(failure);
                self.place(key);
            }
            Some(Outcome::Blocked) => {
                // Not tried at all: no fault of its own.
                let rest = self.limits.first_delay.mul_f64(self.draws.f64());
                self.rest(key, rest);
            }
            Some(Outcome::Unknown(_) | Outcome::Delivered) | None => self.unknown(key, row, parked, back),
        }
    }

    /// A topic can't be published now. It is closed, and tried again after a while.
    fn topic_is_broken(&mut self, key: KeyRef, topic: &Topic, failure: Failure) {
        self.forget_key(key);
        let warns = self.topics.broken(topic, self.now);
        self.report(Report::TopicBroken(topic.clone(), failure, warns));
        self.close_topic(topic);
        self.report_topics();
    }

    /// Nobody knows whether the first message of a key arrived: it is sent again, after a pause, before anything behind it.
    fn unknown(&mut self, key: KeyRef, row: RowId, parked: bool, back: &Back) {
        let Some(state) = self.table.get_mut(key) else { return };
        self.counts.unknown += 1;
        // It breaks things if things work without it: a broker that is away answers nobody, and that is not this message's fault.
        let others_went = state.is_suspect() && back.delivered > state.delivered_by_then;
        state.delivered_by_then = back.delivered;
        state.unknown = state.unknown.saturating_add(1);
        let (unknown, name) = (state.unknown, state.name.clone());
        let is_struck = back.alone && (back.broke || others_went);
        let strikes = self.strikes(&name) + u32::from(is_struck);
        if strikes >= STRIKES {
            self.silent.remove(&name);
            let message = format!(
                "sent alone {STRIKES} times, and each time nothing was heard of it while others went through"
            );
            return self.failed(key, row, parked, Failure::new("breaks", message), Verdict::Failed);
        }
        if strikes > 0 || back.broke || others_went || parked {
            self.remember_silence(name, Silence { strikes, delivered: back.delivered });
        }
        let rest = self.rest_of_silence(unknown.max(strikes));
        if others_went || parked {
            // What comes behind it must not fill the memory while nobody answers: it is set aside as a failing key is, and nothing is counted.
            let words = if others_went {
                "nothing was heard of it while others went through; not counted"
            } else {
                "nothing was heard of it; not counted"
            };
            return self.failed(key, row, parked, Failure::new("silent", words), Verdict::Silent(rest));
        }
        self.rest(key, rest);
        if self.looking.starved {
            // Others may have to show whether it is the broker.
            self.look_soon();
        }
    }

    pub(super) fn remember_silence(&mut self, name: KeyId, silence: Silence) {
        if self.silent.len() >= MAX_SILENT {
            self.silent.clear();
        }
        self.silent.insert(name, silence);
    }

    /// Number of times that a key broke things alone.
    pub(super) fn strikes(&self, name: &KeyId) -> u32 {
        self.silent.get(name).map_or(0, |silence| silence.strikes)
    }

    /// Rest of a key of which nothing was heard so often.
    pub(super) fn rest_of_silence(&mut self, times: u32) -> Duration {
        let doublings = times.saturating_sub(1).min(16);
        let bound = self.limits.first_delay.saturating_mul(1 << doublings).min(self.limits.max_delay);
        bound.mul_f64(self.draws.f64())
    }
}
