//! The rule of failing keys: the next state of a key's row, for every step of a relay and every
//! operation of an operator.
//!
//! A store does a step in one transaction:
//!
//! 1. It checks the lease, loads the key's row, and refuses a step that [`is_stale`].
//! 2. It moves the step's messages: hot ones to the parked ones (`Fail`, `Park`), one to the dead
//!    letters, or out (`Bury`), parked ones out (`Resume`). If the message of a `Fail` or `Bury` is
//!    neither hot nor parked, the step is stale, and nothing may have changed.
//! 3. It asks [`after`] for the row's next state, and writes it.

use super::later;
use crate::admin::FailingKey;
use crate::backend::{KeyOperation, KeyTransition, Step, Then};
use crate::clock::Timestamp;
use crate::error::{StoreError, StoreErrorKind};
use crate::failure::Failure;
use crate::id::MessageId;
use crate::name::{KeyId, Route};

/// The row of a failing or held key. A key without a row flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// Number of this state; no state of any key repeats it.
    pub version: i64,
    /// True if the key waits for an operator.
    pub held: bool,
    /// Due time of the next attempt; `None` while the key is held.
    pub next_attempt_at: Option<Timestamp>,
    /// The first parked message, if it has failed; the attempts and failures are about it.
    pub failing: Option<MessageId>,
    /// Number of its attempts.
    pub attempts: u32,
    /// Its first failure.
    pub first_failure: Option<Failure>,
    /// Its last failure. Kept through a release, for people, until the next attempt.
    pub last_failure: Option<Failure>,
    /// Time at which the key stopped flowing.
    pub since: Timestamp,
}

impl KeyState {
    /// Returns the state of a key that stops flowing now.
    const fn open(version: i64, now: Timestamp) -> Self {
        Self {
            version,
            held: false,
            next_attempt_at: Some(now),
            failing: None,
            attempts: 0,
            first_failure: None,
            last_failure: None,
            since: now,
        }
    }

    /// Returns the key as operators see it, without what is parked behind it.
    #[must_use]
    pub fn failing_key(self, route: Route, key: KeyId) -> FailingKey {
        let mut failing = FailingKey::new(route, key, self.since);
        failing.held = self.held;
        failing.next_attempt_at = self.next_attempt_at;
        failing.attempts = self.attempts;
        failing.first_failure = self.first_failure;
        failing.last_failure = self.last_failure;
        failing
    }

    /// Continues the key with its next message, with zero attempts: at once, unless it is held.
    fn next_message(self, version: i64, now: Timestamp) -> Self {
        let next_attempt_at = (!self.held).then_some(now);
        Self { held: self.held, next_attempt_at, since: self.since, ..Self::open(version, now) }
    }

    /// An operator releases the key: it is due at once, with zero attempts.
    #[must_use]
    pub fn release(self, version: i64, now: Timestamp) -> Self {
        let last_failure = self.last_failure.clone();
        Self { last_failure, ..Self { held: false, ..self }.next_message(version, now) }
    }

    /// An operator made the first parked message a dead letter: the next one is due at once.
    #[must_use]
    pub fn skip(self, version: i64, now: Timestamp) -> Self {
        Self { held: false, ..self }.next_message(version, now)
    }

    /// An operator discards more messages than one transaction moves: until the rest is gone, the
    /// key is held, so that none of it is sent.
    #[must_use]
    pub fn discard_in_part(self, version: i64, now: Timestamp) -> Self {
        Self { held: true, ..self }.next_message(version, now)
    }
}

/// Returns the error of an operation that needs a failing or held key, on a key that flows.
#[must_use]
pub fn flows(operation: KeyOperation, route: &Route, key: &KeyId) -> StoreError {
    StoreError::new(
        StoreErrorKind::Invalid,
        operation.name(),
        format!("the key {key} on the route {route} is neither failing nor held; there is nothing to do"),
    )
}

/// An operator holds a key, flowing or failing. A key that is held already keeps its state.
#[must_use]
pub fn hold(state: Option<KeyState>, version: i64, now: Timestamp) -> KeyState {
    match state {
        Some(held) if held.held => held,
        state => KeyState {
            version,
            held: true,
            next_attempt_at: None,
            ..state.unwrap_or_else(|| KeyState::open(version, now))
        },
    }
}

/// Returns true if a step is refused as stale, whatever its messages: the key has another version,
/// or flows where the step needs a failing key.
#[must_use]
pub fn is_stale(state: Option<&KeyState>, transition: &KeyTransition) -> bool {
    let needs_state = matches!(transition.step, Step::Park { .. });
    (transition.version.is_some() && transition.version != state.map(|state| state.version))
        || (needs_state && state.is_none())
}

/// Returns true if the result of a step depends on which message is the first parked one. Otherwise
/// a store need not look.
#[must_use]
pub const fn depends_on_first(state: Option<&KeyState>, step: &Step) -> bool {
    state.is_some() && !matches!(step, Step::Park { .. })
}

/// Returns the key's state after a step that is not stale and whose messages were moved. `first` is
/// the first parked message after that. `version` is a number that no key has had. The same state
/// as before: nothing of the row changes. None: the key has no row, and flows.
#[must_use]
pub fn after(
    state: Option<KeyState>,
    step: &Step,
    first: Option<MessageId>,
    version: i64,
    now: Timestamp,
) -> Option<KeyState> {
    match step {
        Step::Fail { row, attempts, first: first_failure, last, then, .. } => {
            let state = match state {
                // The first message decides the key's state; a later one that failed too just waits
                // behind it.
                Some(state) if first != Some(row.id) => return Some(KeyState { version, ..state }),
                state => state.unwrap_or_else(|| KeyState::open(version, now)),
            };
            let next_attempt_at = match then {
                Then::RetryAfter(delay) if !state.held => Some(later(now, *delay)),
                Then::RetryAfter(_) | Then::Hold => None,
            };
            Some(KeyState {
                version,
                held: next_attempt_at.is_none(),
                next_attempt_at,
                failing: Some(row.id),
                attempts: *attempts,
                first_failure: Some(first_failure.clone()),
                last_failure: Some(last.clone()),
                since: state.since,
            })
        }
        // The same state: a running retry need not restart because more messages were parked behind
        // it.
        Step::Park { .. } => state,
        Step::Bury { .. } => match state? {
            // The buried message was not the first: the first keeps failing.
            state if state.failing.is_some() && state.failing == first => Some(KeyState { version, ..state }),
            state => Some(state.next_message(version, now)),
        },
        Step::Resume { .. } => {
            let state = state?;
            (state.held || first.is_some()).then(|| state.next_message(version, now))
        }
    }
}

#[cfg(test)]
mod tests;
