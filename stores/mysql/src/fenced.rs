//! Positions of messages that were fenced: where a deduplication need not look further. Hints:
//! what is found there is checked.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outbox_contract::backend::{Position, Stored};
use outbox_contract::{Message, MessageId};

/// Maximum number of positions. They are forgotten with the next deduplication, but for those of
/// transactions that come to nothing.
const MAX: usize = 8_192;

/// Positions of messages that were fenced and are not deduplicated yet.
#[derive(Debug, Default)]
pub(crate) struct Fenced(Mutex<HashMap<MessageId, Position>>);

impl Fenced {
    fn positions(&self) -> MutexGuard<'_, HashMap<MessageId, Position>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records messages that wait where they were read.
    pub(crate) fn note<'s>(&self, waiting: impl IntoIterator<Item = &'s Stored>) {
        let mut positions = self.positions();
        for stored in waiting {
            if positions.len() >= MAX {
                positions.clear();
            }
            positions.insert(stored.message.id, stored.position);
        }
    }

    /// Returns the last position of these messages, if all of them were fenced, and forgets them.
    pub(crate) fn take(&self, messages: &[&Message]) -> Option<Position> {
        let mut positions = self.positions();
        let mut last = Some(Position::START);
        for message in messages {
            let position = positions.remove(&message.id);
            last = last.zip(position).map(|(last, position)| last.max(position));
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Timestamp;

    use super::*;

    fn stored(position: i64) -> Stored {
        let message = Message::new("orders", "placed").unwrap();
        Stored::new(Position(position), Timestamp::from_micros(0), message)
    }

    #[test]
    fn only_where_all_were_fenced_the_last_position_is_known_and_once() {
        let fenced = Fenced::default();
        let (one, two) = (stored(7), stored(3));
        fenced.note([&one, &two]);
        assert_eq!(fenced.take(&[&one.message, &two.message]), Some(Position(7)));
        assert_eq!(fenced.take(&[&one.message]), None);
        fenced.note([&one]);
        assert_eq!(fenced.take(&[&one.message, &two.message]), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let fenced = Fenced::default();
        (0..10_000).for_each(|at| fenced.note([&stored(at)]));
        assert!(fenced.positions().len() <= MAX);
    }
}
