//! Where the keys of a lane stand while they wait: three lines, each in the order of arrival.

use std::collections::VecDeque;

use outbox_contract::KeyId;

use super::super::key::{Busy, KeyState};

/// The lines. A key stands in one of the two for a publisher at most, and in none while something is being done with it or while it rests. It may stand
/// in that of the steps besides: what came behind a failing message is parked while that waits for its turn.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Keys with something to send.
    pub(super) ready: VecDeque<KeyId>,
    /// Keys whose first message is suspected of something. Apart, so that waiting for them holds up no other.
    pub(super) suspects: VecDeque<KeyId>,
    /// Keys that need a step of the store first: it waits for no publisher.
    pub(super) steps: VecDeque<KeyId>,
}

impl Lines {
    /// Puts a key at the end of the line that it belongs to, if it does not stand there.
    pub(super) fn stand(&mut self, key: &KeyId, state: &mut KeyState) {
        if state.resting || state.busy != Busy::No {
            return;
        }
        let line = if state.needs_step() {
            if std::mem::replace(&mut state.in_steps, true) {
                return;
            }
            &mut self.steps
        } else {
            if std::mem::replace(&mut state.in_line, true) {
                return;
            }
            if state.is_suspect() { &mut self.suspects } else { &mut self.ready }
        };
        line.push_back(key.clone());
    }
}
