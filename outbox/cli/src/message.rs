//! Messages of the outbox, as rows and in full.

use outbox::admin::{Listed, Position, View};
use outbox::error::Failure;
use outbox::{Message, Timestamp};
use serde_json::{Map, Value, json};

use crate::args::Form;
use crate::escape;
use crate::out::Row;
use crate::time;

/// Returns the head of a list of messages.
pub(crate) const fn head(view: View) -> &'static [&'static str] {
    match view {
        View::DeadLetters => {
            &["id", "route", "topic", "key", "type", "died at", "reason", "attempts", "error"]
        }
        View::Waiting => &["id", "route", "topic", "key", "type", "position", "appended at"],
        View::Parked => &["id", "route", "topic", "key", "type", "position", "parked at"],
        View::History => &["id", "route", "topic", "key", "type", "position", "delivered at"],
        View::Scheduled => &["id", "route", "topic", "key", "type", "due at"],
    }
}

/// Returns a message of a list.
pub(crate) fn row(view: View, listed: &Listed) -> Row {
    let message = &listed.stored.message;
    let mut cells = vec![
        message.id.to_string(),
        listed.route.to_string(),
        message.topic.to_string(),
        message.key.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
        message.event_type.to_string(),
    ];
    match (view, &listed.death) {
        (View::DeadLetters, Some(death)) => cells.extend([
            time::at(listed.at),
            death.reason.clone(),
            death.attempts.to_string(),
            death.last_failure.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
        ]),
        (View::Waiting | View::Parked | View::History, _) => {
            cells.extend([listed.stored.position.to_string(), time::at(listed.at)]);
        }
        (View::DeadLetters | View::Scheduled, _) => cells.push(time::at(listed.at)),
    }
    Row { json: Value::Object(summary(view, listed)), cells }
}

/// Returns a message without its payload.
fn summary(view: View, listed: &Listed) -> Map<String, Value> {
    let message = &listed.stored.message;
    let mut map = Map::new();
    let mut add = |name: &str, value: Value| drop(map.insert(name.to_owned(), value));
    add("id", json!(message.id.to_string()));
    // An inbox knows a message by an id of its own: this is the one that producer and broker know.
    add("event_id", json!(message.event_id()));
    add("source", json!(message.source()));
    add("route", json!(listed.route.as_str()));
    add("topic", json!(message.topic.as_str()));
    add("key", json!(message.key.as_ref().map(|key| key.as_str())));
    add("type", json!(&*message.event_type));
    add("schema_version", json!(message.schema_version));
    add("content_type", json!(&*message.content_type));
    add("occurred_at", instant(message.occurred_at));
    add("bytes", json!(message.payload.len()));
    if let Some(trace) = trace(message) {
        add("trace_id", json!(trace));
    }
    if listed.stored.position != Position::START {
        add("position", json!(listed.stored.position.0));
        add("appended_at", instant(listed.stored.appended_at));
    }
    add(when(view), instant(listed.at));
    if let Some(death) = &listed.death {
        add("reason", json!(death.reason));
        add("attempts", json!(death.attempts));
        add("first_failure", failure(death.first_failure.as_ref()));
        add("last_failure", failure(death.last_failure.as_ref()));
    }
    map
}

/// Returns the id of the trace that appended a message.
fn trace(message: &Message) -> Option<&str> {
    let parent = message.headers.get(outbox::backend::trace::TRACEPARENT)?;
    parent.split('-').nth(1).filter(|id| id.len() == 32 && id.chars().all(|char| char.is_ascii_hexdigit()))
}

const fn when(view: View) -> &'static str {
    match view {
        View::DeadLetters => "died_at",
        View::Waiting => "appended_at",
        View::Parked => "parked_at",
        View::History => "delivered_at",
        View::Scheduled => "due_at",
    }
}

/// Returns an instant for programs.
pub(crate) fn instant(at: Timestamp) -> Value {
    json!(at.to_string())
}

/// Returns a failure for programs.
pub(crate) fn failure(failure: Option<&Failure>) -> Value {
    failure.map_or(Value::Null, |failure| json!({ "class": failure.class, "message": failure.message }))
}

/// Returns a message in full, as an object.
pub(crate) fn whole(view: View, listed: &Listed, form: Form) -> Value {
    let message = &listed.stored.message;
    let mut map = summary(view, listed);
    let headers: Map<String, Value> =
        message.headers.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    map.insert("headers".to_owned(), Value::Object(headers));
    let (name, payload) = match Payload::of(message, form) {
        Payload::Json(value) => ("payload", value),
        Payload::Text(text) => ("payload_text", json!(text)),
        Payload::Hex(text) => ("payload_hex", json!(text)),
    };
    map.insert(name.to_owned(), payload);
    Value::Object(map)
}

/// Returns a message in full, as text that is safe for a terminal.
pub(crate) fn text(view: View, listed: &Listed, form: Form) -> String {
    let message = &listed.stored.message;
    let mut lines = Vec::new();
    let mut add = |name: &str, value: &str| {
        lines.push(format!("{name:16}{}", escape::short(value, 2_000)));
    };
    for (name, value) in summary(view, listed) {
        let value = match value {
            Value::String(text) => text,
            Value::Null => "-".to_owned(),
            Value::Object(failure) => {
                let part = |name| failure.get(name).and_then(Value::as_str).unwrap_or_default();
                format!("{} [{}]", part("message"), part("class"))
            }
            other => other.to_string(),
        };
        add(&name.replace('_', " "), &value);
    }
    for (name, value) in message.headers.iter() {
        add("header", &format!("{name}: {value}"));
    }
    let payload = match Payload::of(message, form) {
        Payload::Json(value) => escape::lines(&serde_json::to_string_pretty(&value).unwrap_or_default()),
        Payload::Text(text) => escape::lines(&text),
        Payload::Hex(text) => text,
    };
    lines.push(format!("payload\n{}", shortened(&payload)));
    lines.join("\n")
}

/// Number of characters of a payload that a terminal shows.
const SHOWN: usize = 16_384;

/// Returns the beginning of a payload, and how much more there is.
fn shortened(payload: &str) -> String {
    match payload.char_indices().nth(SHOWN) {
        Some((end, _)) => {
            let more = payload.len() - end;
            format!("{}\n… and {more} bytes more; --json shows all of it", &payload[..end])
        }
        None => payload.to_owned(),
    }
}

/// A payload as it can be shown.
enum Payload {
    Json(Value),
    Text(String),
    Hex(String),
}

impl Payload {
    fn of(message: &Message, form: Form) -> Self {
        let bytes = &message.payload;
        let json = || serde_json::from_slice(bytes).ok().map(Self::Json);
        let text = || std::str::from_utf8(bytes).ok().map(|text| Self::Text(text.to_owned()));
        let shown = match form {
            Form::Auto if message.content_type.contains("json") => json().or_else(text),
            Form::Auto | Form::Text => text(),
            Form::Json => json().or_else(text),
            Form::Hex => None,
        };
        shown.unwrap_or_else(|| Self::Hex(hex(bytes)))
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_payload_leaves_the_terminal_readable() {
        assert_eq!(shortened("{}"), "{}");
        let whole = "ü".repeat(SHOWN);
        assert_eq!(shortened(&whole), whole);
        let shown = shortened(&format!("{whole}üx"));
        assert_eq!(shown, format!("{whole}\n… and 3 bytes more; --json shows all of it"));
    }
}
