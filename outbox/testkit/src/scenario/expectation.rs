//! Comparison of expected and actual events, key by key: pure.

use std::collections::BTreeMap;
use std::fmt::Write;

use outbox_contract::{Codec, DomainEvent, Json, Message};
use serde::Serialize;
use serde_json::Value;

/// An event that can be expected: every [`DomainEvent`] that serializes and has a topic.
pub trait Expect {
    #[doc(hidden)]
    fn expected(&self) -> Expected;
}

/// An event as it is compared.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expected {
    /// Topic and key; None for a message without a key.
    lane: (String, Option<String>),
    shown: String,
}

impl<E: DomainEvent + Serialize> Expect for E {
    fn expected(&self) -> Expected {
        let kind = self.event_type();
        let Some(topic) = kind.topic else {
            panic!("the event {} is local: it is never sent, so no scenario can see it", kind.name);
        };
        let payload = Json.encode(self).unwrap_or_else(|error| panic!("{error}"));
        let lane = (topic.to_owned(), self.key().map(Into::into));
        Expected { lane, shown: shown(kind.name, &payload) }
    }
}

impl Expected {
    fn seen(message: &Message) -> Self {
        let lane = (message.topic.to_string(), message.key.as_ref().map(ToString::to_string));
        Self { lane, shown: shown(&message.event_type, &message.payload) }
    }
}

/// Prints fields in the order of their names, so that equal events read the same.
fn shown(event_type: &str, payload: &[u8]) -> String {
    match serde_json::from_slice::<Value>(payload) {
        Ok(value) => format!("{event_type} {value}"),
        Err(_) => format!("{event_type} ({} bytes that are no JSON)", payload.len()),
    }
}

/// Returns the differences, in lines; None if there are none. Within a lane the order counts;
/// events without a key are unordered.
pub(super) fn compare(expected: &[Expected], seen: &[Message]) -> Option<String> {
    type Lanes = BTreeMap<(String, Option<String>), (Vec<String>, Vec<String>)>;
    let mut lanes = Lanes::new();
    for event in expected {
        lanes.entry(event.lane.clone()).or_default().0.push(event.shown.clone());
    }
    for event in seen.iter().map(Expected::seen) {
        lanes.entry(event.lane).or_default().1.push(event.shown);
    }
    let mut difference = String::new();
    for ((topic, key), (mut expected, mut seen)) in lanes {
        if key.is_none() {
            expected.sort();
            seen.sort();
        }
        if expected == seen {
            continue;
        }
        let key = key.map_or_else(|| "without a key".to_owned(), |key| format!("key {key}"));
        let _ = writeln!(difference, "topic {topic}, {key}:");
        for at in 0..expected.len().max(seen.len()) {
            let same = expected.get(at) == seen.get(at);
            let mut line = |what: &str, event: Option<&String>| {
                let event = event.map_or("nothing", String::as_str);
                let _ = writeln!(difference, "  {what:<9} {event}");
            };
            if same {
                line("as it is:", expected.get(at));
            } else {
                line("expected:", expected.get(at));
                line("seen:", seen.get(at));
            }
        }
    }
    (!difference.is_empty()).then_some(difference)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use outbox_contract::EventType;

    use super::*;

    #[derive(Serialize)]
    struct Counted {
        item: &'static str,
        left: u32,
    }

    impl DomainEvent for Counted {
        const TYPES: &'static [EventType] = &[EventType::new("stock", "stock.counted", 1)];

        fn event_type(&self) -> &'static EventType {
            &Self::TYPES[0]
        }

        fn key(&self) -> Option<Cow<'_, str>> {
            Some(self.item.into())
        }
    }

    fn expected(item: &'static str, left: u32) -> Expected {
        Counted { item, left }.expected()
    }

    fn message(item: &str, left: u32) -> Message {
        let message = Message::new("stock", "stock.counted").unwrap().with_key(item).unwrap();
        message.with_payload(format!(r#"{{ "left": {left}, "item": "{item}" }}"#))
    }

    #[test]
    fn only_the_order_within_a_key_counts() {
        let all = [expected("a", 1), expected("b", 1), expected("a", 0)];
        assert_eq!(compare(&all, &[message("a", 1), message("a", 0), message("b", 1)]), None);
        assert!(compare(&all, &[message("a", 0), message("a", 1), message("b", 1)]).is_some());
    }

    #[test]
    fn what_is_missing_too_much_or_different_is_shown_beside_what_was_expected() {
        let difference =
            compare(&[expected("a", 1), expected("a", 0)], &[message("a", 1), message("b", 9)]).unwrap();
        let lines = r#"topic stock, key a:
  as it is: stock.counted {"item":"a","left":1}
  expected: stock.counted {"item":"a","left":0}
  seen:     nothing
topic stock, key b:
  expected: nothing
  seen:     stock.counted {"item":"b","left":9}
"#;
        assert_eq!(difference, lines);
    }

    #[test]
    fn events_without_a_key_have_no_order() {
        let message = |text: &str| Message::new("stock", "note").unwrap().with_payload(format!("{text:?}"));
        let both = [message("a"), message("b")];
        let expected: Vec<_> = both.iter().rev().map(Expected::seen).collect();
        assert_eq!(compare(&expected, &both), None);
        assert!(compare(&expected[..1], &both).is_some());
    }
}
