//! The steps of failing keys: which one is needed, and what the store's answer means.

use std::time::Duration;

use outbox_contract::divert::{Diverted, Step, Then};
use outbox_contract::fetch::RowId;
use outbox_contract::{Exhausted, Failure, KeyId, RetryPolicy};

use super::super::effects::Effects;
use super::super::key::{Ask, Busy, KeyState, StepKind, Verdict, Work};
use super::super::policies::Policies;
use super::Keys;

impl Keys {
    /// Takes the store's answer to a step. `fetches`: how many fetches have begun by now.
    pub(crate) fn diverted(
        &mut self,
        key: &KeyId,
        generation: u64,
        answer: Diverted,
        fetches: u64,
        now: Duration,
        effects: &mut Effects,
    ) {
        if self.malformed_diverted(generation, answer, effects) {
            return;
        }
        let Some(state) = self.keys.get_mut(key).filter(|state| state.generation == generation) else {
            return;
        };
        let parking = state.parking.take();
        let version = match answer {
            Diverted::Done(version) => version,
            Diverted::LeaseLost => {
                effects.counts.refused += 1;
                effects.lost.push(state.bucket);
                return;
            }
            Diverted::Stale => {
                effects.counts.refused += 1;
                if let (Busy::Retry, Some(retry)) = (&state.busy, &mut state.retry) {
                    // Nothing of the key may be sent before what is out is back.
                    retry.refused = true;
                } else if let Some(rows) = self.drop_key(key, effects) {
                    self.report_forgotten(key, rows, effects);
                }
                return;
            }
        };
        if let Some(rows) = parking {
            // It may have flowed in between, with messages read, and fail again by an operator's word.
            self.failing_since.insert(key.clone(), fetches);
            parked(state, &rows, effects);
            self.stand_or_go(key);
            return;
        }
        if !matches!(state.busy, Busy::Step(_)) {
            return;
        }
        let Busy::Step(kind) = std::mem::replace(&mut state.busy, Busy::No) else { return };
        match kind {
            StepKind::Fail { rows, due_in } => {
                // What a fetch shows that began before now may not know yet that this key is failing.
                self.failing_since.insert(key.clone(), fetches);
                state.catching_up = None;
                parked(state, &rows, effects);
                effects.worked.push((key.clone(), due_in));
            }
            StepKind::Bury(row) => {
                effects.counts.buried += 1;
                effects.left.push(row.position);
                state.queue.pop_front();
                state.absolve();
                self.strikes.remove(key);
            }
            StepKind::Resume => {
                if let Some(failed) = resumed(key, state, version, effects) {
                    let draw = self.random.f64();
                    effects.asks.push(fail_again(key, state, failed, &self.policies, draw));
                    return;
                }
                self.resumed(key, version.is_some(), now, effects);
                return;
            }
            StepKind::FailAgain { due_in } => {
                (state.retry, state.catching_up) = (None, None);
                effects.worked.push((key.clone(), due_in));
            }
            StepKind::BuryParked => {
                effects.counts.buried += 1;
                state.absolve();
                self.strikes.remove(key);
                match (&mut state.retry, version) {
                    (Some(retry), Some(version)) => {
                        retry.version = version;
                        retry.parked.pop_front();
                        retry.failing = None;
                        retry.attempts = 0;
                    }
                    _ => {
                        state.retry = None;
                        effects.worked.push((key.clone(), None));
                    }
                }
            }
        }
        self.stand_or_go(key);
    }

    fn stand_or_go(&mut self, key: &KeyId) {
        let Some(state) = self.keys.get_mut(key) else { return };
        if state.is_over() {
            self.keys.remove(key);
        } else {
            self.lines.stand(key, state);
        }
    }

    /// What was parked and in memory is sent. `more`: there is more in the store, and it is due at once.
    fn resumed(&mut self, key: &KeyId, more: bool, now: Duration, effects: &mut Effects) {
        let Some(state) = self.keys.get_mut(key) else { return };
        if more {
            // It comes before long, unless somebody holds the key or many others are due. Until then nothing is parked.
            let until = now + self.limits.first_delay.saturating_mul(CATCH_UP);
            if state.catching_up.replace(until).is_none() {
                self.waiting.insert((until, key.clone()));
            }
        } else if state.queue.iter().any(|work| matches!(work, Work::Failing { .. })) {
            // It flows again: what has come meanwhile without content is read again, with it.
            if let Some(rows) = self.drop_key(key, effects) {
                self.report_forgotten(key, rows, effects);
            }
        } else {
            state.catching_up = None;
        }
        self.stand_or_go(key);
    }
}

/// For how many first waits after an unknown outcome the rest of a key that catches up is awaited.
const CATCH_UP: u32 = 4;

/// The step that a key needs, if any. First what became of what was sent: else what keeps coming would keep that from the store.
pub(super) fn next_step(key: &KeyId, state: &mut KeyState, policies: &Policies, draw: f64) -> Option<Ask> {
    if state.needs_word() {
        let retry = state.retry.as_mut()?;
        if retry.delivered.is_empty()
            && let Some(failed) = retry.failed.take()
        {
            return Some(fail_again(key, state, failed, policies, draw));
        }
        let (version, delivered) = (Some(retry.version), retry.delivered.clone());
        return Some(ask(key, state, version, Step::Resume { delivered }, StepKind::Resume));
    }
    if !state.needs_parking() {
        return None;
    }
    let rows = if state.retry.is_some() { state.first_run() } else { state.failing_run() };
    state.parking = Some(rows.clone());
    Some(ask_of(key, state, None, Step::Park { rows }))
}

/// The first rows of the queue were parked. What is behind them was read before now, and goes behind them there.
pub(super) fn parked(state: &mut KeyState, rows: &[RowId], effects: &mut Effects) {
    effects.counts.parked += rows.len() as u64;
    effects.left.extend(rows.iter().map(|row| row.position));
    state.queue.drain(..rows.len().min(state.queue.len()));
    state.queue.iter_mut().for_each(Work::set_aside);
}

/// A parked message failed: it is tried again later, held, or buried.
pub(super) fn fail_again(
    key: &KeyId,
    state: &mut KeyState,
    (row, failure, verdict): (RowId, Failure, Verdict),
    policies: &Policies,
    draw: f64,
) -> Ask {
    let policy = policies.of(&key.topic);
    let retry = state.retry.as_ref();
    let again = retry.filter(|retry| retry.failing == Some(row.id));
    let attempts = again.map_or(0, |retry| retry.attempts).saturating_add(verdict.counts());
    let first = again.and_then(|retry| retry.first_failure.clone()).unwrap_or_else(|| failure.clone());
    let version = retry.map(|retry| retry.version);
    let exhausted = verdict.is_exhausted(policy, attempts, &failure);
    let (step, kind) = if exhausted && policy.exhausted == Exhausted::DeadLetter {
        (Step::Bury { row, reason: reason(verdict), attempts, first, last: failure }, StepKind::BuryParked)
    } else {
        let due_in = (!exhausted).then(|| verdict.delay(policy, attempts, draw));
        let then = due_in.map_or(Then::Hold, Then::RetryAfter);
        let step = Step::Fail { row, attempts, first, last: failure, then, behind: Vec::new() };
        (step, StepKind::FailAgain { due_in })
    };
    ask(key, state, version, step, kind)
}

/// Delivered parked messages were removed; `version` is the key's new state, none when it flows again. Returns the failure that came behind
/// what was delivered, to be recorded now.
pub(super) fn resumed(
    key: &KeyId,
    state: &mut KeyState,
    version: Option<i64>,
    effects: &mut Effects,
) -> Option<(RowId, Failure, Verdict)> {
    let retry = state.retry.as_mut()?;
    retry.delivered.clear();
    match version {
        Some(version) if !retry.parked.is_empty() => {
            retry.version = version;
            retry.attempts = 0;
            retry.failed.take()
        }
        version => {
            state.retry = None;
            effects.worked.push((key.clone(), version.map(|_| Duration::ZERO)));
            None
        }
    }
}

pub(super) fn ask(
    key: &KeyId,
    state: &mut KeyState,
    version: Option<i64>,
    step: Step,
    kind: StepKind,
) -> Ask {
    state.busy = Busy::Step(kind);
    ask_of(key, state, version, step)
}

fn ask_of(key: &KeyId, state: &KeyState, version: Option<i64>, step: Step) -> Ask {
    Ask {
        key: key.clone(),
        generation: state.generation,
        bucket: state.bucket,
        epoch: state.epoch,
        version,
        step,
    }
}

pub(super) fn reason(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Rejected => "rejected",
        Verdict::Failed | Verdict::Silent(_) => "exhausted",
    }
}

impl Verdict {
    /// How many attempts it counts as.
    pub(super) fn counts(self) -> u32 {
        u32::from(!matches!(self, Self::Silent(_)))
    }

    /// Whether it was the last attempt.
    pub(super) fn is_exhausted(self, policy: &RetryPolicy, attempts: u32, failure: &Failure) -> bool {
        match self {
            Self::Failed => policy.is_exhausted(attempts, &failure.class),
            Self::Rejected => true,
            Self::Silent(_) => false,
        }
    }

    /// How long the key waits before the next.
    pub(super) fn delay(self, policy: &RetryPolicy, attempts: u32, draw: f64) -> Duration {
        match self {
            Self::Failed | Self::Rejected => policy.delay(attempts, draw),
            Self::Silent(rest) => rest,
        }
    }
}
