//! HandledIds that would let a message pass an earlier one of its key. Pure.

use std::collections::BTreeMap;

use outbox_contract::backend::Dedup;
use outbox_contract::{KeyId, Message, MessageId};

/// The first message that is behind others while a later one of its key is not: each is asked about
/// with what is committed by then, and what was in the way of the first may be finished when the
/// second is asked about. The second must not be handled before the first (P4).
pub(crate) fn overtaking(messages: &[&Message], handled_ids: &[Dedup]) -> Option<MessageId> {
    let mut behind: BTreeMap<KeyId, MessageId> = BTreeMap::new();
    for (message, deduplication) in messages.iter().zip(handled_ids) {
        match deduplication {
            Dedup::OutOfTurn => _ = behind.entry(message.key_id()).or_insert(message.id),
            Dedup::New if !behind.is_empty() => {
                if let Some(id) = behind.get(&message.key_id()) {
                    return Some(*id);
                }
            }
            Dedup::New | Dedup::Duplicate => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn nothing_is_handled_in_front_of_what_is_behind_others() {
        use Dedup::{Duplicate, New, OutOfTurn};
        let message = |key: &str| Message::new("orders", "placed").unwrap().with_key(key).unwrap();
        let (first, second, other) = (message("a"), message("a"), message("b"));
        let overtaking = |handled_ids: [Dedup; 3]| overtaking(&[&first, &other, &second], &handled_ids);
        assert_eq!(overtaking([OutOfTurn, New, New]), Some(first.id));
        for good in [
            [New, OutOfTurn, New],
            [OutOfTurn, New, OutOfTurn],
            [OutOfTurn, Duplicate, Duplicate],
            [New, New, OutOfTurn],
        ] {
            assert_eq!(overtaking(good), None, "{good:?}");
        }
    }
}
