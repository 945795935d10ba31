//! Conflicts that last: when a message that is always in conflict has failed. Pure.
//!
//! A conflict is nobody's fault, so it is not counted. But a message that meets one each time that it is tried would be tried for ever: a
//! version that it can never find, a handler for which the database does not wait. It has failed once so many attempts in a row came to
//! nothing, each of several tries. Where the database says what was in the way, only those attempts tell during which other messages went through:
//! when none does, it is not this one's doing.

use std::collections::BTreeMap;

use outbox_contract::MessageId;

/// How many attempts in a row come to nothing before they count as a failure. Each is of several tries.
pub(crate) const MOST_CONFLICTS: u32 = 5;

/// Of how many messages this is remembered. Beyond it all are forgotten, and count from the beginning.
const MOST_MESSAGES: usize = 10_000;

/// Messages whose last attempt ended in a conflict.
#[derive(Debug, Default)]
pub(crate) struct Conflicts(BTreeMap<MessageId, Met>);

#[derive(Clone, Copy, Debug)]
struct Met {
    times: u32,
    /// How many messages had gone through by then.
    gone: u64,
}

impl Conflicts {
    /// An attempt at a message ended in a conflict, when this many messages had gone through. `own`: it is certain to be of its own making. Says
    /// whether it has failed now.
    pub(crate) fn met(&mut self, id: MessageId, own: bool, gone: u64) -> bool {
        if self.0.len() >= MOST_MESSAGES && !self.0.contains_key(&id) {
            self.0.clear();
        }
        let before = self.0.get(&id).copied();
        let tells = own || before.is_none_or(|met| gone > met.gone);
        let times = before.map_or(0, |met| met.times) + u32::from(tells);
        if times >= MOST_CONFLICTS {
            self.0.remove(&id);
            return true;
        }
        self.0.insert(id, Met { times, gone });
        false
    }

    /// An attempt at a message ended in another way.
    pub(crate) fn over(&mut self, id: MessageId) {
        self.0.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Message;

    use super::*;

    fn id() -> MessageId {
        Message::new("orders".parse().unwrap(), "placed").id
    }

    #[test]
    fn a_conflict_is_a_failure_when_it_lasts_and_others_go_through() {
        let (mut conflicts, id) = (Conflicts::default(), id());
        let failed: Vec<bool> = (0..10).map(|gone| conflicts.met(id, false, gone)).collect();
        assert_eq!(failed.iter().position(|failed| *failed), Some(4));
        assert_eq!(failed.iter().filter(|failed| **failed).count(), 2, "and counts from the beginning then");
    }

    #[test]
    fn while_nobody_goes_through_it_is_nobodys_fault() {
        let (mut conflicts, id) = (Conflicts::default(), id());
        assert!(!(0..1_000).any(|_| conflicts.met(id, false, 7)));
        assert!((0..4).any(|gone| conflicts.met(id, false, 8 + gone)));
        assert!((0..5).any(|_| conflicts.met(id, true, 7)), "unless it is certain to be its own");
    }

    #[test]
    fn conflicts_that_are_not_in_a_row_are_none() {
        let (mut conflicts, id) = (Conflicts::default(), id());
        for gone in 0..100 {
            assert!(!conflicts.met(id, true, gone));
            if gone % 4 == 3 {
                conflicts.over(id);
            }
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut conflicts = Conflicts::default();
        (0..MOST_MESSAGES * 3).for_each(|_| _ = conflicts.met(id(), true, 0));
        assert!(conflicts.0.len() <= MOST_MESSAGES);
    }
}
