//! What becomes of the messages of a chunk.

use std::time::Duration;

use outbox_contract::divert::{Step, Then};
use outbox_contract::outcome::Unavailable;
use outbox_contract::{Exhausted, Failure, KeyId, Outcome, Topic};

use super::super::effects::Effects;
use super::super::key::{Busy, StepKind, Verdict, Work};
use super::steps::{ask, fail_again, reason};
use super::{Failing, Keys, STRIKES, Sent, stand_in_line};

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
        let alone = sent.len() == 1;
        let mut outcomes = outcomes.into_iter();
        let mut run: Vec<(Sent, Option<Outcome>)> = Vec::new();
        // A key's messages stand together in a chunk.
        for sent in sent {
            let outcome = outcomes.next().flatten();
            if run.last().is_some_and(|(last, _)| last.key != sent.key) {
                self.key_outcomes(std::mem::take(&mut run), alone, broke, now, effects);
            }
            run.push((sent, outcome));
        }
        self.key_outcomes(run, alone, broke, now, effects);
        // Now that the keys of this chunk have their messages back: what is forgotten is all that they have.
        let broken: Vec<Topic> = effects.broken.iter().map(|(topic, _)| topic.clone()).collect();
        for topic in broken {
            self.forget_topic(&topic, effects);
            self.dropping_topics.insert(topic);
        }
    }

    pub(super) fn key_outcomes(
        &mut self,
        run: Vec<(Sent, Option<Outcome>)>,
        alone: bool,
        broke: bool,
        now: Duration,
        effects: &mut Effects,
    ) {
        let Some((first, _)) = run.first() else { return };
        let key = first.key.clone();
        let state = self.keys.get_mut(&key).filter(|state| state.generation == first.generation);
        let Some(state) = state else {
            // An earlier stay of the key: what was delivered may be deleted, nothing else.
            for (sent, outcome) in run {
                if !sent.parked && outcome == Some(Outcome::Delivered) {
                    effects.counts.delivered += 1;
                    effects.delivered.push(sent.held.into());
                }
            }
            return;
        };
        state.busy = Busy::No;
        let mut rest = run.into_iter();
        let mut stopped = None;
        for (sent, outcome) in rest.by_ref() {
            if outcome != Some(Outcome::Delivered) {
                stopped = Some((sent, outcome));
                break;
            }
            self.delivered += 1;
            effects.counts.delivered += 1;
            state.absolve();
            match &mut state.retry {
                Some(retry) if sent.parked => {
                    retry.delivered.push(sent.held.stored.row());
                    // The attempts that were counted belong to the message that went through.
                    retry.failing = None;
                }
                _ => effects.delivered.push(sent.held.into()),
            }
        }
        let Some((first, outcome)) = stopped else {
            stand_in_line(&mut self.line, &mut self.steps, &key, state);
            return;
        };
        let row = first.held.stored.row();
        // Back to the head, in order: nothing of this key passes what was not delivered.
        let mut back = vec![first.held];
        back.extend(rest.map(|(sent, _)| sent.held));
        match &mut state.retry {
            Some(retry) if first.parked => {
                back.into_iter().rev().for_each(|held| retry.parked.push_front(held))
            }
            _ => back.into_iter().rev().for_each(|held| state.queue.push_front(Work::Message(held))),
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
                stand_in_line(&mut self.line, &mut self.steps, &key, state);
            }
            Some(Outcome::Blocked) => {
                // Not tried at all: no fault of its own.
                state.resting = true;
                let rest = self.limits.first_delay.mul_f64(self.random.f64());
                self.waiting.insert((now + rest, key));
            }
            Some(Outcome::Unknown(_) | Outcome::Delivered) | None => {
                self.unknown(&key, failing, alone, broke, now, effects);
            }
        }
    }

    /// Nobody knows whether the first message of a key arrived: it is sent again, after a pause, before anything behind it.
    pub(super) fn unknown(
        &mut self,
        key: &KeyId,
        failing: Failing,
        alone: bool,
        broke: bool,
        now: Duration,
        effects: &mut Effects,
    ) {
        let Some(state) = self.keys.get_mut(key) else { return };
        effects.counts.unknown += 1;
        state.unknown = state.unknown.saturating_add(1);
        // It breaks things if things work without it: a broker that is away answers nobody, and that is not this message's fault.
        if alone && (broke || self.delivered > state.delivered_at_strike) {
            state.strikes += 1;
            state.delivered_at_strike = self.delivered;
        }
        state.alone = true;
        if state.strikes >= STRIKES {
            state.strikes = 0;
            let failure = Failure::new(
                "breaks",
                format!(
                    "sent alone {STRIKES} times, and each time nothing was heard of it while others went through"
                ),
            );
            self.failed(key, failing, failure, Verdict::Failed, effects);
            return;
        }
        let doublings = state.unknown.saturating_sub(1).min(16);
        let bound = self.limits.first_delay.saturating_mul(1 << doublings).min(self.limits.most_delay);
        state.resting = true;
        self.waiting.insert((now + bound.mul_f64(self.random.f64()), key.clone()));
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
        effects.counts.failed += 1;
        let row = failing.row;
        if let Some(retry) = &mut state.retry
            && failing.parked
        {
            if !retry.delivered.is_empty() {
                // First remove what went through: then the failing message is the first of the key.
                retry.failed = Some((row, failure, verdict));
                stand_in_line(&mut self.line, &mut self.steps, key, state);
                return;
            }
            let draw = self.random.f64();
            effects.asks.push(fail_again(key, state, (row, failure, verdict), &self.policies, draw));
            return;
        }
        let policy = self.policies.of(&key.topic);
        let exhausted = verdict == Verdict::Rejected || policy.is_exhausted(1, &failure.class);
        let first = failure.clone();
        let (step, kind) = if exhausted && policy.exhausted == Exhausted::DeadLetter {
            let step = Step::Bury { row, reason: reason(verdict), attempts: 1, first, last: failure };
            (step, StepKind::Bury(row))
        } else {
            let due_in = (!exhausted).then(|| policy.delay(1, self.random.f64()));
            let then = due_in.map_or(Then::Hold, Then::RetryAfter);
            let rows = state.parkable_run(usize::MAX);
            let behind = rows[1..].to_vec();
            let step = Step::Fail { row, attempts: 1, first, last: failure, then, behind };
            (step, StepKind::Fail { rows, due_in })
        };
        effects.asks.push(ask(key, state, None, step, kind));
    }
}
