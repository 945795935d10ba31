//! Undecodable records: messages that stand for what can't be handled or kept as it is. No handler
//! gets them, and they become dead letters; but a topic that others fill with records that are no
//! messages must not fill the store.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::backend::{Delivery, EVENT_ID, Tag, Undecodable};
use outbox_contract::{Headers, Key, Message, MessageId, Timestamp, Topic};
use tokio::time::Instant;

use super::foreign::{Mapper, map};
use super::handlers::{UNDECODABLE, UNDECODABLE_REASON};
use super::identity::take_in;

/// The header of a record whose value is null.
const NULL: &str = "outbox-undecodable-null";

/// The header that has the place of a record on the broker.
const PLACE: &str = "outbox-undecodable-place";

/// The message of a delivery, by its identity; or what a mapper makes of one that is none; or one
/// that stands for it.
pub(crate) fn message_of(delivery: Delivery, mapper: Option<&Mapper>) -> (Tag, Message) {
    let Delivery { tag, message, origin, .. } = delivery;
    let message = match message {
        Ok(mut message) => {
            take_in(&mut message, origin.as_ref());
            message
        }
        Err(junk) => {
            let topic = &tag.unit.topic;
            let mapped = match mapper {
                Some(mapper) => map(mapper, junk, topic),
                None => Err(junk),
            };
            mapped.unwrap_or_else(|junk| undecodable(junk, topic))
        }
    };
    (tag, message)
}

/// Returns true if a message stands for a record that is none.
pub(crate) fn is_record(message: &Message) -> bool {
    place_of(message).is_some()
}

/// Returns the place on the broker of the record that a message stands for.
pub(crate) fn place_of(message: &Message) -> Option<&str> {
    if &*message.event_type == UNDECODABLE { message.headers.get(PLACE) } else { None }
}

/// Stands for what is no message. Its id is that of the record, so that one record is one dead
/// letter however often it is delivered.
fn undecodable(junk: Undecodable, topic: &Topic) -> Message {
    let id = junk.identity(topic);
    let length = junk.payload.len().min(Message::MAX_PAYLOAD_BYTES);
    let mut message = Message::of(id, topic.clone(), UNDECODABLE)
        .with_occurred_at(Timestamp::now())
        .with_content_type("application/octet-stream")
        .with_payload(junk.payload.slice(..length));
    for (name, value) in junk.headers {
        keep(&mut message, &name, &value);
    }
    // In the order of its key, as it would be if it could be read.
    message.key = junk.key.as_deref().map(Key::of_bytes);
    keep(&mut message, PLACE, junk.place.as_deref().unwrap_or("unknown"));
    keep(&mut message, UNDECODABLE_REASON, &junk.reason);
    if junk.is_null {
        keep(&mut message, NULL, "true");
    }
    message
}

/// Maps a record again that was stored as undecodable: the mapper may have changed. `None`: there
/// is no such record, or the mapper does not take it either.
///
/// The record's own id is noted as handled, so that it becomes one dead letter only. So the message
/// has the id that the mapper gives it, or else one of its own.
pub(crate) fn map_again(stored: &Message, mapper: &Mapper) -> Option<Message> {
    place_of(stored)?;
    let ours = [PLACE, NULL, UNDECODABLE_REASON, EVENT_ID];
    let headers = stored.headers.iter().filter(|(name, _)| !ours.contains(name));
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let reason = stored.headers.get(UNDECODABLE_REASON).unwrap_or_default();
    let mut record = Undecodable::new(reason, stored.payload.clone(), headers);
    record.is_null = stored.headers.get(NULL).is_some();
    record.key = stored.key.as_ref().map(|key| bytes_of(key).into());
    record.place = stored.headers.get(PLACE).map(Into::into);
    let identity = record.identity(&stored.topic);
    let mut message = map(mapper, record, &stored.topic).ok()?;
    if message.id == stored.id || message.id == identity {
        message.id = MessageId::of_event(UNDECODABLE, &stored.id.to_string());
    }
    // It is in the place of the record, whatever it says.
    message.topic = stored.topic.clone();
    message.key.clone_from(&stored.key);
    Some(message)
}

/// The bytes of which a key was made, as far as it tells.
fn bytes_of(key: &Key) -> Vec<u8> {
    let text = key.as_str();
    let hex = text.strip_prefix("0x").filter(|hex| hex.is_ascii() && hex.len() % 2 == 0);
    let byte = |at: usize| u8::from_str_radix(hex?.get(at..at + 2)?, 16).ok();
    let bytes = hex.and_then(|hex| (0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>());
    bytes.filter(|bytes| Key::of_bytes(bytes) == *key).unwrap_or_else(|| text.as_bytes().to_vec())
}

/// Stands for a message that the store refuses to keep: of the same id and key, so that it stands
/// where that would, with nothing else of it.
pub(crate) fn refused(message: &Message, words: &str) -> Message {
    let mut stand_in = Message::of(message.id, message.topic.clone(), UNDECODABLE);
    stand_in.key.clone_from(&message.key);
    stand_in.occurred_at = message.occurred_at;
    if let Some(id) = message.headers.get(EVENT_ID) {
        let _ = stand_in.headers.insert(EVENT_ID, id);
    }
    let reason = format!(
        "a message of type {} with {} bytes of payload, about {} in all, could not be stored: {words}",
        message.event_type,
        message.payload.len(),
        message.bytes()
    );
    if let Some(place) = place_of(message) {
        keep(&mut stand_in, PLACE, place);
    }
    keep(&mut stand_in, UNDECODABLE_REASON, &reason);
    stand_in
}

/// Keeps a header as far as one can be kept: without control characters, and as long as a header
/// may be. One without a name can't.
pub(crate) fn keep(message: &mut Message, name: &str, value: &str) {
    let plain = |text: &str, most: usize, instead: fn(char) -> String| {
        let mut text: String =
            text.chars().map(|c| if c.is_control() { instead(c) } else { c.to_string() }).collect();
        text.truncate(text.floor_char_boundary(most));
        text
    };
    let escaped = |c: char| c.escape_default().to_string();
    let instead = if name == UNDECODABLE_REASON { |_| " ".to_owned() } else { escaped };
    let name = plain(name, Headers::MAX_NAME_BYTES, escaped);
    let _ = message.headers.insert(name, plain(value, Headers::MAX_VALUE_BYTES, instead));
}

/// Time for which a count of dead letters is used, plus those that were added meanwhile.
const FRESH: Duration = Duration::from_secs(10);

/// Approximate number of dead letters of a consumer, and the maximum beside which a record that is
/// no message becomes another one.
#[derive(Debug)]
pub(crate) struct Undecodables {
    most: u64,
    // Held for a few instructions.
    counted: Mutex<Option<(Instant, u64)>>,
}

impl Undecodables {
    pub(crate) fn new(most: u64) -> Self {
        Self { most, counted: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, u64)>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the dead letters have to be counted first.
    pub(crate) fn is_stale(&self, now: Instant) -> bool {
        self.lock().is_none_or(|(at, _)| now.saturating_duration_since(at) >= FRESH)
    }

    /// The dead letters were counted.
    pub(crate) fn count(&self, now: Instant, dead: u64) {
        *self.lock() = Some((now, dead));
    }

    /// Records were stored, to become dead letters.
    pub(crate) fn add(&self, records: usize) {
        if let Some((_, dead)) = &mut *self.lock() {
            *dead = dead.saturating_add(records as u64);
        }
    }

    /// The number of dead letters, if another one is too many.
    pub(crate) fn full(&self) -> Option<u64> {
        self.lock().map(|(_, dead)| dead).filter(|dead| *dead >= self.most)
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Bytes;

    use super::*;

    #[test]
    fn what_is_no_message_is_kept_with_its_bytes_and_the_reason() {
        let headers = vec![("tenant".to_owned(), "acme".to_owned()), (String::new(), "nameless".to_owned())];
        let junk = Undecodable::new("no\nid", Bytes::from_static(b"\xff\x00"), headers);
        let message = undecodable(junk, &"orders".parse().unwrap());
        assert!(message.validate().is_ok());
        assert_eq!((&*message.event_type, &message.payload[..]), (UNDECODABLE, &b"\xff\x00"[..]));
        assert_eq!(message.headers.get(UNDECODABLE_REASON), Some("no id"));
        assert_eq!((message.headers.get("tenant"), message.headers.len()), (Some("acme"), 3));
        assert!(is_record(&message));
    }

    #[test]
    fn a_record_has_one_id_and_keeps_its_key() {
        let of = |place: Option<&str>, key: &'static [u8], header: &str, payload: &'static [u8]| {
            let headers = vec![("x".to_owned(), header.to_owned())];
            let junk = Undecodable::new("no id", Bytes::from_static(payload), headers).with_key(key);
            undecodable(place.map_or(junk.clone(), |place| junk.at(place)), &"orders".parse().unwrap())
        };
        let one = of(Some("0@7"), b"k", "a\tb", b"{}");
        assert_eq!(one.key.as_ref().map(Key::as_str), Some("k"));
        assert_eq!((place_of(&one), one.headers.get("x")), (Some("0@7"), Some("a\\tb")));
        assert_eq!(of(Some("0@7"), b"k", "a\tb", b"{}").id, one.id, "delivered again");
        for other in [
            of(Some("0@8"), b"k", "a\tb", b"{}"),
            of(None, b"k", "a\tb", b"{}"),
            of(Some("0@7"), b"l", "a\tb", b"{}"),
            of(Some("0@7"), b"k", "b", b"{}"),
            of(Some("0@7"), b"k", "a\tb", b"[]"),
        ] {
            assert_ne!(other.id, one.id);
        }
        let binary = of(Some("0@7"), b"\xff\x00k", "a", b"{}");
        assert_eq!(binary.key.as_ref().map(Key::as_str), Some("0xff006b"), "as if it could be read");
        assert!(binary.validate().is_ok());
        let refused = refused(&one, "too large");
        assert_eq!((refused.id, place_of(&refused)), (one.id, Some("0@7")), "it is known again");
    }

    #[test]
    fn a_reason_of_any_length_is_kept_as_far_as_a_header_goes() {
        let junk = Undecodable::new("é".repeat(9_000), Bytes::new(), Vec::new());
        let message = undecodable(junk, &"orders".parse().unwrap());
        assert!(message.headers.get(UNDECODABLE_REASON).is_some_and(|reason| reason.len() > 8_000));
    }

    #[test]
    fn what_stands_for_a_refused_message_has_its_place_and_can_be_stored() {
        let long = "x".repeat(Message::MAX_PAYLOAD_BYTES + 1);
        let mut message = Message::new("orders", "order.placed").unwrap().with_key("a").unwrap();
        message.payload = long.into();
        let stand_in = refused(&message, "too\nlarge");
        assert!(message.validate().is_err() && stand_in.validate().is_ok());
        assert_eq!((stand_in.id, stand_in.key_id()), (message.id, message.key_id()));
        let reason = stand_in.headers.get(UNDECODABLE_REASON).unwrap();
        assert!(reason.contains("order.placed") && reason.ends_with("too large"), "{reason}");
    }

    #[test]
    fn there_is_room_until_as_many_are_counted_or_were_added_since() {
        let (bound, now) = (Undecodables::new(5), Instant::now());
        assert!(bound.is_stale(now));
        bound.count(now, 3);
        assert!(!bound.is_stale(now) && bound.is_stale(now + FRESH));
        bound.add(1);
        assert_eq!(bound.full(), None);
        bound.add(1);
        assert_eq!(bound.full(), Some(5));
        bound.count(now + FRESH, 0);
        assert_eq!(bound.full(), None, "somebody has purged them");
    }
}
