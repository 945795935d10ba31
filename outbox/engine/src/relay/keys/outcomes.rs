//! What becomes of the messages of a chunk.

use std::time::Duration;

use outbox_contract::divert::{Step, Then};
use outbox_contract::outcome::Unavailable;
use outbox_contract::{Exhausted, Failure, KeyId, Outcome, Topic};

use super::super::effects::Effects;
use super::super::key::{Busy, StepKind, Verdict, Work};
use super::silence::{BREAKS, SILENT};
use super::steps::{ask, fail_again, reason};
use super::{Failing, Keys, STRIKES, Sent};

/// How a chunk came back.
struct Back {
    /// There was one message in it.
    alone: bool,
    /// The publisher died over it.
    broke: bool,
    /// How many messages the lane has delivered by now, those of this chunk included.
    delivered: u64,
    now: Duration,
}

impl Keys {
    /// Takes the outcomes of a chunk. `broke`: the publisher died over it.
    pub(crate) fn outcomes(
        &mut self,
        number: u64,
        outcomes: Vec<Option<Outcome>>,
        broke: bool,
        now: Duration,
        effects: &mut Effects,
    ) {
        let Some(sent) = self.chunks.remove(&number) else { return };
        self.turns.is_back(number);
        let alone = sent.len() == 1;
        // What was taken as delivered before is counted already.
        let mut rest: Vec<(Sent, Option<Outcome>)> = Vec::with_capacity(sent.len());
        let mut outcomes = outcomes.into_iter();
        for sent in sent {
            let outcome = outcomes.next().flatten();
            rest.extend(sent.map(|sent| (sent, outcome)));
        }
        let delivered =
            rest.iter().filter(|(_, outcome)| *outcome == Some(Outcome::Delivered)).count() as u64;
        let back = Back { alone, broke, delivered: self.delivered + delivered, now };
        self.take_runs(rest, &back, effects);
        self.delivered = back.delivered;
        // Now that the keys of this chunk have their messages back: what is forgotten is all that they have.
        let broken: Vec<Topic> = effects.broken.iter().map(|(topic, _)| topic.clone()).collect();
        for topic in broken {
            self.forget_topic(&topic, effects);
            self.dropping_topics.insert(topic);
        }
    }

    /// Takes what was delivered of a chunk that is out, of those keys that have nothing else in it. They go on; the others wait for the rest.
    pub(crate) fn heard(&mut self, number: u64, delivered: &[bool], now: Duration, effects: &mut Effects) {
        let Some(chunk) = self.chunks.get_mut(&number) else { return };
        let alone = chunk.len() == 1;
        let mut through: Vec<(Sent, Option<Outcome>)> = Vec::new();
        let mut start = 0;
        while start < chunk.len() {
            let key = chunk[start].as_ref().map(|sent| &sent.key);
            let others = |sent: &Option<Sent>| sent.as_ref().map(|sent| &sent.key) != key;
            let end = chunk[start..].iter().position(others).map_or(chunk.len(), |length| start + length);
            if delivered.get(start..end).is_some_and(|delivered| delivered.iter().all(|delivered| *delivered))
            {
                let taken = chunk[start..end].iter_mut().filter_map(Option::take);
                through.extend(taken.map(|sent| (sent, Some(Outcome::Delivered))));
            }
            start = end;
        }
        let back = Back { alone, broke: false, delivered: self.delivered + through.len() as u64, now };
        self.take_runs(through, &back, effects);
        self.delivered = back.delivered;
    }

    fn take_runs(&mut self, outcomes: Vec<(Sent, Option<Outcome>)>, back: &Back, effects: &mut Effects) {
        let mut run: Vec<(Sent, Option<Outcome>)> = Vec::new();
        // A key's messages stand together in a chunk.
        for (sent, outcome) in outcomes {
            if run.last().is_some_and(|(last, _)| last.key != sent.key) {
                self.key_outcomes(&mut run, back, effects);
            }
            run.push((sent, outcome));
        }
        self.key_outcomes(&mut run, back, effects);
    }

    /// Takes the outcomes of a key's messages, and leaves none.
    fn key_outcomes(&mut self, run: &mut Vec<(Sent, Option<Outcome>)>, back: &Back, effects: &mut Effects) {
        let Some((first, _)) = run.first() else { return };
        let key = first.key.clone();
        let state = self.keys.get_mut(&key).filter(|state| state.generation == first.generation);
        let Some(state) = state else {
            // An earlier stay of the key: what was delivered may be deleted, nothing else.
            for (sent, outcome) in run.drain(..) {
                if !sent.parked && outcome == Some(Outcome::Delivered) {
                    effects.counts.delivered += 1;
                    effects.delivered.push(sent.held.into());
                }
            }
            return;
        };
        state.busy = Busy::No;
        let mut rest = run.drain(..);
        let mut stopped = None;
        for (sent, outcome) in rest.by_ref() {
            if outcome != Some(Outcome::Delivered) {
                stopped = Some((sent, outcome));
                break;
            }
            effects.counts.delivered += 1;
            state.absolve();
            self.strikes.remove(&key);
            if !self.doubted_topics.is_empty() && self.doubted_topics.remove(&key.topic) {
                effects.topics_published.push(key.topic.clone());
            }
            match &mut state.retry {
                Some(retry) if sent.parked => {
                    retry.delivered.push(sent.held.stored.row());
                    // The attempts that were counted belong to the message that went through.
                    (retry.failing, retry.silent) = (None, false);
                }
                _ => effects.delivered.push(sent.held.into()),
            }
        }
        let Some((first, outcome)) = stopped else {
            if state.is_over() {
                self.keys.remove(&key);
            } else {
                self.lines.stand(&key, state);
            }
            return;
        };
        let row = first.held.stored.row();
        // Back to the head, in order: nothing of this key passes what was not delivered.
        let mut returned = vec![first.held];
        returned.extend(rest.map(|(sent, _)| sent.held));
        match &mut state.retry {
            Some(retry) if first.parked => {
                returned.into_iter().rev().for_each(|held| retry.parked.push_front(held))
            }
            _ => returned.into_iter().rev().for_each(|held| state.queue.push_front(Work::Message(held))),
        }
        if state.retry.as_ref().is_some_and(|retry| retry.refused) {
            // Its state in the store is another one: what it says there now is read again.
            if let Some(rows) = self.drop_key(&key, effects) {
                self.report_forgotten(&key, rows, effects);
            }
            return;
        }
        let failing = Failing { row, parked: first.parked };
        match outcome {
            Some(Outcome::Rejected(failure)) => {
                self.failed(&key, failing, failure, Verdict::Rejected, effects)
            }
            Some(Outcome::Failed(failure)) => self.failed(&key, failing, failure, Verdict::Failed, effects),
            Some(Outcome::Unavailable(Unavailable::Topic, failure)) => {
                if !effects.broken.iter().any(|(topic, _)| *topic == key.topic) {
                    effects.broken.push((key.topic, failure));
                }
            }
            Some(Outcome::Unavailable(Unavailable::Route, failure)) => {
                effects.unavailable.get_or_insert(failure);
                self.lines.stand(&key, state);
            }
            Some(Outcome::Blocked) => {
                // Not tried at all: no fault of its own.
                let rest = self.limits.first_delay.mul_f64(self.random.f64());
                self.rest_until(&key, back.now + rest);
            }
            Some(Outcome::Unknown(_) | Outcome::Delivered) | None => {
                self.unknown(&key, failing, back, effects);
            }
        }
    }

    /// Nobody knows whether the first message of a key arrived: it is sent again, after a pause, before anything behind it.
    fn unknown(&mut self, key: &KeyId, failing: Failing, back: &Back, effects: &mut Effects) {
        let Some(state) = self.keys.get_mut(key) else { return };
        effects.counts.unknown += 1;
        // It breaks things if things work without it: a broker that is away answers nobody, and that is not this message's fault.
        let others_went = state.is_suspect() && back.delivered > state.delivered_by_then;
        state.delivered_by_then = back.delivered;
        state.unknown = state.unknown.saturating_add(1);
        let is_set_aside = failing.parked;
        let is_struck = back.alone && (back.broke || others_went);
        let is_doubted = is_struck || back.broke || others_went || is_set_aside;
        let strikes = if is_doubted { self.strike(key, is_struck, back.delivered) } else { 0 };
        if strikes >= STRIKES {
            // It is counted anew from here on, and goes alone still.
            self.strikes.entry(key.clone()).or_default().count = 0;
            let failure = Failure::new(
                BREAKS,
                format!(
                    "sent alone {STRIKES} times, and each time nothing was heard of it while others went through"
                ),
            );
            self.failed(key, failing, failure, Verdict::Failed, effects);
            return;
        }
        let rest = self.rest(key);
        if others_went || is_set_aside {
            // What comes behind it must not fill the memory while nobody answers: it is set aside as a failing key is, and nothing is counted.
            let words = if others_went {
                "nothing was heard of it while others went through; not counted"
            } else {
                "nothing was heard of it; not counted"
            };
            self.failed(key, failing, Failure::new(SILENT, words), Verdict::Silent(rest), effects);
            return;
        }
        self.rest_until(key, back.now + rest);
    }

    /// Lets a key stand in no line for a while.
    fn rest_until(&mut self, key: &KeyId, until: Duration) {
        if let Some(state) = self.keys.get_mut(key) {
            state.resting = true;
            self.waiting.insert((until, key.clone()));
            self.lines.stand(key, state);
        }
    }

    /// The first message of a key failed, for a reason of its own.
    pub(super) fn failed(
        &mut self,
        key: &KeyId,
        failing: Failing,
        failure: Failure,
        verdict: Verdict,
        effects: &mut Effects,
    ) {
        let Some(state) = self.keys.get_mut(key) else { return };
        let attempts = verdict.counts();
        effects.counts.failed += u64::from(attempts);
        let row = failing.row;
        if let Some(retry) = &mut state.retry
            && failing.parked
        {
            if !retry.delivered.is_empty() || state.parking.is_some() {
                // First remove what went through: then the failing message is the first of the key. And one step at a time.
                retry.failed = Some((row, failure, verdict));
                self.lines.stand(key, state);
                return;
            }
            let draw = self.random.f64();
            effects.asks.push(fail_again(key, state, (row, failure, verdict), &self.policies, draw));
            return;
        }
        let policy = self.policies.of(&key.topic);
        let exhausted = verdict.is_exhausted(policy, attempts, &failure);
        let first = failure.clone();
        let (step, kind) = if exhausted && policy.exhausted == Exhausted::DeadLetter {
            let step = Step::Bury { row, reason: reason(verdict), attempts, first, last: failure };
            (step, StepKind::Bury(row))
        } else {
            let due_in = (!exhausted).then(|| verdict.delay(policy, attempts, self.random.f64()));
            let then = due_in.map_or(Then::Hold, Then::RetryAfter);
            let rows = state.first_run();
            let behind = rows[1..].to_vec();
            let step = Step::Fail { row, attempts, first, last: failure, then, behind };
            (step, StepKind::Fail { rows, due_in })
        };
        effects.asks.push(ask(key, state, None, step, kind));
    }
}
