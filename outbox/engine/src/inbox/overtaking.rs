//! Admissions that would let a message pass an earlier one of its key. Pure.

use std::collections::BTreeMap;

use outbox_contract::transactional::Admission;
use outbox_contract::{KeyId, Message, MessageId};

/// The first message that is behind others while a later one of its key is not: each is asked about with what is committed by then, and what was
/// in the way of the first may be finished when the second is asked about. The second must not be handled before the first (P4).
pub(crate) fn overtaking(messages: &[&Message], admissions: &[Admission]) -> Option<MessageId> {
    let mut behind: BTreeMap<KeyId, MessageId> = BTreeMap::new();
    for (message, admission) in messages.iter().zip(admissions) {
        match admission {
            Admission::Behind => _ = behind.entry(message.key_id()).or_insert(message.id),
            Admission::New if !behind.is_empty() => {
                if let Some(id) = behind.get(&message.key_id()) {
                    return Some(*id);
                }
            }
            Admission::New | Admission::Duplicate => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use outbox_contract::Topic;

    use super::*;

    #[test]
    fn nothing_is_handled_in_front_of_what_is_behind_others() {
        use Admission::{Behind, Duplicate, New};
        let message =
            |key: &str| Message::new(Topic::new("orders").unwrap(), "placed").with_key(key).unwrap();
        let (first, second, other) = (message("a"), message("a"), message("b"));
        let overtaking = |admissions: [Admission; 3]| overtaking(&[&first, &other, &second], &admissions);
        assert_eq!(overtaking([Behind, New, New]), Some(first.id));
        for good in
            [[New, Behind, New], [Behind, New, Behind], [Behind, Duplicate, Duplicate], [New, New, Behind]]
        {
            assert_eq!(overtaking(good), None, "{good:?}");
        }
    }
}
