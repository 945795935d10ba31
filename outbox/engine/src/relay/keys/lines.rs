//! Where the keys of a lane stand while they wait: four lines, each in the order of arrival.

use std::collections::VecDeque;

use outbox_contract::KeyId;

use super::super::key::KeyState;
use super::turns::Turn;

/// The lines. A key stands in one for a publisher at most, and in none while something of it is out or while it rests. It may stand in that of the steps
/// besides: what came behind a failing message is parked while that waits for its turn.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Keys with something to send.
    pub(super) ready: VecDeque<KeyId>,
    /// Keys whose first message failed: the broker said so.
    pub(super) failed: VecDeque<KeyId>,
    /// Keys of whose first message nothing was heard. Apart, so that waiting for them holds up no other.
    pub(super) silent: VecDeque<KeyId>,
    /// Keys that need a step of the store: it waits for no publisher.
    pub(super) steps: VecDeque<KeyId>,
}

impl Lines {
    /// Those who wait for a publisher of this turn.
    pub(super) fn of(&mut self, turn: Turn) -> &mut VecDeque<KeyId> {
        match turn {
            Turn::Ready => &mut self.ready,
            Turn::Failed => &mut self.failed,
            Turn::Silent => &mut self.silent,
        }
    }

    /// Puts a key at the end of the lines that it belongs to, if it does not stand there.
    pub(super) fn stand(&mut self, key: &KeyId, state: &mut KeyState) {
        if state.needs_step() && !std::mem::replace(&mut state.in_steps, true) {
            self.steps.push_back(key.clone());
        }
        if let Some(turn) = state.turn()
            && !std::mem::replace(&mut state.in_line, true)
        {
            self.of(turn).push_back(key.clone());
        }
    }
}
