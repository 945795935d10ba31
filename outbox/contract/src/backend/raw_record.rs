//! Records as brokers deliver them, of which nothing is trusted: any program can write them.
//!
//! One rule for all transports: what is needed to handle an event must be there, or the record is
//! none. All else is taken as far as it goes. Who handles the event finds it, and one header more
//! that names what is not as it was sent.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

use crate::attributes;
use crate::backend::cloudevents::{Binding, CONTENT_TYPE, attribute_of, foreign_id};
use crate::backend::trace::{TRACEPARENT, TRACESTATE};
use crate::backend::{Origin, Undecodable};
use crate::clock::Timestamp;
use crate::headers::Headers;
use crate::id::MessageId;
use crate::message::Message;
use crate::name::{self, Key, Topic};

mod event_attributes;
mod structured;

use event_attributes::Attributes;

/// The header that names what a message does not have as its producer sent it, and why. Only the
/// reader of records writes it.
pub const ADAPTED: &str = "outbox-adapted";

/// Content type of a payload that comes without one.
const UNKNOWN_CONTENT: &str = "application/octet-stream";

/// Content type of an outbox's message without payload, which is sent without one.
const NO_CONTENT: &str = "application/json";

/// A name or a value, whatever bytes it has.
type Raw<'r> = Cow<'r, [u8]>;

/// A record as a broker delivers it: texts and bytes under names, and a payload.
///
/// The content type decides how it is read. `application/cloudevents+json` is an event in
/// structured mode: attributes and data are members of the payload, and attributes among the
/// headers do not count. Anything else is an event in binary mode, with its attributes in headers.
/// Their prefix may be that of any protocol (`ce_`, `ce-`, `cloudEvents:`, `cloudEvents_`), in any
/// case; where there are several, that of the binding counts.
///
/// [`message`](Self::message) reads it by these rules:
///
/// | of the record | rule |
/// |---|---|
/// | `specversion`, `id`, `source`, `type` | required, text; `specversion` begins with `1.`, the `id` is not empty, the `type` can be one |
/// | `partitionkey`, else the key of the protocol, else `subject` | the key, whatever bytes it is: [`Key::of_bytes`]. The `subject` of an outbox is no key |
/// | `topic` | what can be none: the topic that the record came from |
/// | `time` | RFC 3339, or a whole number of seconds, milliseconds, microseconds or nanoseconds, by its size; anything else: 1970, as without one |
/// | `schemaversion` | what is no number from 1: 1, as without one |
/// | `sequence` | what is no number: none |
/// | `subject`, `dataschema`, extensions | kept by the message, [escaped and cut](Headers::MAX_VALUE_BYTES) as headers are |
/// | `traceparent`, `tracestate` | the headers of these names, where there are none |
/// | content type | what can be none: `application/octet-stream`, as without one |
/// | value of a header | control characters and bytes that are not UTF-8 are escaped; cut to [`Headers::MAX_VALUE_BYTES`] |
/// | name of a header | what can be none: the header is left out |
/// | payload | as it is, up to [`Message::MAX_PAYLOAD_BYTES`] |
///
/// The message's header [`ADAPTED`] names what was not taken as it was sent. The value of a header
/// is not repeated in it, as it may be secret.
///
/// CloudEvents tells events apart by source *and* id, so the id of what has no number as
/// `sequence`, or that is no UUID, becomes one that is computed from both: the same event has the
/// same id again, and those of two producers never have. What has a number keeps its id, as an
/// outbox wrote it; whoever remembers ids goes by the
/// [`identity`](crate::backend::cloudevents::identity). [`Message::event_id`] and
/// [`Message::source`] return what was written.
///
/// ```
/// # mod outbox { pub use outbox_contract::*; pub mod message { pub use outbox_contract::*; } }
/// use outbox::Topic;
/// use outbox::backend::RawRecord;
/// use outbox::backend::cloudevents::KAFKA;
/// use outbox::message::Bytes;
///
/// let mut record = RawRecord::new(KAFKA, Bytes::from_static(b"{}")).with_key(Some(b"\x00\x07"));
/// for (name, value) in [("specversion", "1.0"), ("id", "17"), ("source", "/legacy"), ("type", "order.placed")] {
///     record.push(format!("ce_{name}").into_bytes(), value.as_bytes());
/// }
/// let (message, _) = record.message(&Topic::new("orders")?).expect("it has all that is needed");
/// assert_eq!(message.key.as_ref().map(|key| key.as_str()), Some("0x0007"));
/// assert_eq!((message.source(), &*message.event_id()), (Some("/legacy"), "17"));
/// # Ok::<(), outbox::NameError>(())
/// ```
#[derive(Clone)]
pub struct RawRecord<'r> {
    binding: Binding,
    headers: Vec<(Raw<'r>, Raw<'r>)>,
    content_type: Option<&'r [u8]>,
    key: Option<&'r [u8]>,
    payload: Bytes,
    is_null: bool,
    notes: Vec<String>,
}

impl<'r> RawRecord<'r> {
    /// A record of nothing but a payload.
    #[must_use]
    pub fn new(binding: Binding, payload: Bytes) -> Self {
        let (headers, notes) = (Vec::new(), Vec::new());
        Self { binding, headers, content_type: None, key: None, payload, is_null: false, notes }
    }

    /// Records that the protocol says there is no payload, which is not the same as an empty one:
    /// the message is a [tombstone](Message::is_tombstone).
    #[must_use]
    pub fn with_null(mut self, is_null: bool) -> Self {
        self.is_null = is_null;
        self
    }

    /// Sets the protocol's own content type. Without one, the header `content-type` counts.
    #[must_use]
    pub fn with_content_type(mut self, content_type: Option<&'r [u8]>) -> Self {
        self.content_type = content_type;
        self
    }

    /// Sets the protocol's own key: the broker orders by it, so it goes before the `subject`. Only
    /// a `partitionkey` goes before it.
    #[must_use]
    pub fn with_key(mut self, key: Option<&'r [u8]>) -> Self {
        self.key = key;
        self
    }

    /// Adds a header, attributes among them.
    pub fn push(&mut self, name: impl Into<Cow<'r, [u8]>>, value: impl Into<Cow<'r, [u8]>>) {
        self.headers.push((name.into(), value.into()));
    }

    /// Notes a part of the record that could not be added.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Reads the message.
    ///
    /// # Errors
    ///
    /// [`Undecodable`] names what is missing or wrong, and keeps payload, headers and key.
    pub fn message(self, came_from: &Topic) -> Result<(Message, Option<Origin>), Undecodable> {
        let mut notes = self.notes.clone();
        self.read(came_from, &mut notes).map_err(|reason| self.undecodable(reason))
    }

    /// The record as one that is no message, and why.
    #[must_use]
    pub fn undecodable(self, reason: impl Into<String>) -> Undecodable {
        let key = self.key_bytes(&Attributes::of_headers(&self.headers, self.binding)).map(<[u8]>::to_vec);
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| (Undecodable::text(name), Undecodable::text(value)));
        let is_beside = self.headers.iter().any(|(name, _)| is_content_type(name));
        let content_type = self.content_type.filter(|_| !is_beside);
        let content_type = content_type.map(|value| (CONTENT_TYPE.to_owned(), Undecodable::text(value)));
        let notes = (!self.notes.is_empty()).then(|| (ADAPTED.to_owned(), self.notes.join("; ")));
        let headers = headers.chain(content_type).chain(notes).collect();
        let mut undecodable = Undecodable::new(reason, self.payload, headers);
        undecodable.is_null = self.is_null;
        match key {
            Some(key) => undecodable.with_key(key),
            None => undecodable,
        }
    }

    fn read(&self, came_from: &Topic, notes: &mut Vec<String>) -> Result<(Message, Option<Origin>), String> {
        let given = self.given_content_type();
        let Some(event) =
            given.and_then(|given| structured::read(given, &self.payload, notes)).transpose()?
        else {
            let attributes = Attributes::of_headers(&self.headers, self.binding);
            attributes.expect_any(&self.payload)?;
            let given = given.or_else(|| attributes.get("datacontenttype"));
            return self.message_of(&attributes, self.payload.clone(), given, came_from, notes);
        };
        let given = Some(event.content_type.as_bytes()).filter(|given| !given.is_empty());
        self.message_of(&event.attributes, event.payload, given, came_from, notes)
    }

    fn message_of(
        &self,
        attributes: &Attributes<'_>,
        payload: Bytes,
        content_type: Option<&[u8]>,
        came_from: &Topic,
        notes: &mut Vec<String>,
    ) -> Result<(Message, Option<Origin>), String> {
        let version = attributes.required("specversion")?;
        if !version.starts_with("1.") {
            return Err(attributes.wrong("specversion", version.as_bytes(), "should be 1.0"));
        }
        let (id, source) = (attributes.required("id")?, attributes.required("source")?);
        if id.is_empty() {
            return Err(attributes.wrong("id", b"", "would make all events of its source one"));
        }
        let sequence = attributes.get("sequence").and_then(text).and_then(|sequence| sequence.parse().ok());
        let id_of = id_of(id, source, sequence);
        let mut message =
            Message::of(id_of, came_from.clone(), attributes.required("type")?).with_payload(payload);
        let is_ours = is_ours(id, attributes.get("sequence"));
        message.key = self.key_bytes(attributes).map(Key::of_bytes);
        if message.key.is_none() && !is_ours {
            message.key = attributes.get("subject").filter(|key| !key.is_empty()).map(Key::of_bytes);
        }
        attributes.take(
            "topic",
            notes,
            Topic::new,
            "is not a valid topic; the topic of the record is used",
            |topic| {
                message.topic = topic;
            },
        );
        let instant = |time: &str| instant(time).ok_or(());
        attributes
            .take("time", notes, instant, "is not an RFC 3339 time; ignored", |at| message.occurred_at = at);
        let number = |version: &str| version.parse().ok().filter(|version| *version > 0).ok_or(());
        attributes.take("schemaversion", notes, number, "is not a number from 1 on; read as 1", |version| {
            message.schema_version = version;
        });
        let unknown = if is_ours && message.payload.is_empty() { NO_CONTENT } else { UNKNOWN_CONTENT };
        message.content_type = checked_content_type(content_type, unknown, notes).into();
        message.headers = self.own_headers(notes);
        self.keep_attributes(&mut message, attributes, sequence.is_some(), notes);
        if !notes.is_empty() {
            let _ = message.headers.insert(ADAPTED, fitting(notes.join("; ").as_bytes()).0);
        }
        message.validate().map_err(|error| error.to_string())?;
        Ok((message, sequence.map(|sequence| Origin { source: source.into(), sequence })))
    }

    /// Keeps the attributes that are no fields of a message, among its headers.
    fn keep_attributes(
        &self,
        message: &mut Message,
        attributes: &Attributes<'_>,
        has_origin: bool,
        notes: &mut Vec<String>,
    ) {
        for (name, value) in attributes.iter() {
            let is_kept = match name {
                // An inbox gets both beside the message.
                "source" | "sequence" => !has_origin,
                "id" => text(value).is_some_and(|id| id != message.id.to_string()),
                name => !attributes::is_field(name),
            };
            if is_kept && !value.is_empty() {
                keep(&mut message.headers, &attributes::header_of(name), value, notes);
            }
        }
        if self.is_null {
            attributes::mark_tombstone(&mut message.headers);
        }
        // The context of who made the event; a header of that name is of who sent it last.
        if message.headers.get(TRACEPARENT).is_none()
            && let Some(parent) = attributes.get(TRACEPARENT)
        {
            keep(&mut message.headers, TRACEPARENT, parent, notes);
            if let Some(state) = attributes.get(TRACESTATE) {
                keep(&mut message.headers, TRACESTATE, state, notes);
            }
        }
    }

    /// Returns the bytes that order the record.
    fn key_bytes<'a>(&'a self, attributes: &'a Attributes<'_>) -> Option<&'a [u8]> {
        attributes.get("partitionkey").filter(|key| !key.is_empty()).or(self.key)
    }

    /// The content type as it was given: that of the protocol, else that of a header.
    fn given_content_type(&self) -> Option<&[u8]> {
        let header =
            || self.headers.iter().find(|(name, _)| is_content_type(name)).map(|(_, value)| &**value);
        self.content_type.or_else(header).filter(|given| !given.is_empty())
    }

    /// The headers that are no attributes.
    fn own_headers(&self, notes: &mut Vec<String>) -> Headers {
        let mut own = Headers::new();
        for (name, value) in &self.headers {
            if attribute_of(name).is_some() || is_content_type(name) || **name == *ADAPTED.as_bytes() {
                continue;
            }
            match text(name) {
                Some(name) => keep(&mut own, name, value, notes),
                None => notes.push(left_out(&Undecodable::text(name))),
            }
        }
        own
    }
}

/// Without payload and values: they are the user's, and may be secret.
impl fmt::Debug for RawRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.headers.iter().map(|(name, _)| Undecodable::text(name)).collect();
        f.debug_struct("RawRecord")
            .field("headers", &names)
            .field("payload", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// With a number it looks like one of ours, whose handlers want to see the id that was written.
fn id_of(id: &str, source: &str, sequence: Option<i64>) -> MessageId {
    id.parse().ok().filter(|_| sequence.is_some()).unwrap_or_else(|| foreign_id(source, id))
}

/// True of what an outbox wrote: its position always has twenty digits.
fn is_ours(id: &str, sequence: Option<&[u8]>) -> bool {
    let is_position = |sequence: &[u8]| sequence.len() == 20 && sequence.iter().all(u8::is_ascii_digit);
    sequence.is_some_and(is_position) && id.parse::<MessageId>().is_ok()
}

fn is_content_type(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(CONTENT_TYPE.as_bytes())
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// An instant, as text of RFC 3339 or as a number. Numbers of different units do not meet: seconds
/// have up to eleven digits until the year 5138, and each finer unit three digits more.
fn instant(time: &str) -> Option<Timestamp> {
    let instant = Timestamp::parse(time).or_else(|| {
        let number: i64 = time.parse().ok()?;
        let micros = match number.unsigned_abs() {
            0..100_000_000_000 => number.checked_mul(1_000_000)?,
            100_000_000_000..100_000_000_000_000 => number.checked_mul(1_000)?,
            100_000_000_000_000..100_000_000_000_000_000 => number,
            _ => number / 1_000,
        };
        Some(Timestamp::from_micros(micros))
    });
    instant.filter(|instant| instant.is_printable())
}

fn checked_content_type<'c>(
    given: Option<&'c [u8]>,
    unknown: &'static str,
    notes: &mut Vec<String>,
) -> &'c str {
    let Some(bytes) = given.filter(|bytes| !bytes.is_empty()) else { return unknown };
    let valid = |text: &&str| name::check(CONTENT_TYPE, text, Message::MAX_TYPE_BYTES).is_ok();
    text(bytes).filter(valid).unwrap_or_else(|| {
        let value = name::shown(&Undecodable::text(bytes));
        notes.push(format!(
            "{CONTENT_TYPE} is {value:?}, which is not a content type; read as {UNKNOWN_CONTENT}"
        ));
        UNKNOWN_CONTENT
    })
}

/// Keeps a header as far as it goes, and notes what was changed.
fn keep(headers: &mut Headers, name: &str, value: &[u8], notes: &mut Vec<String>) {
    if Headers::check_name(name).is_err() {
        notes.push(left_out(name));
        return;
    }
    let (value, changes) = fitting(value);
    if !changes.is_empty() {
        notes.push(format!("the header {name:?}: {changes}"));
    }
    // Both are such as can be taken.
    let _ = headers.insert(name, value);
}

fn left_out(name: &str) -> String {
    let (name, most) = (name::shown(name), Headers::MAX_NAME_BYTES);
    format!(
        "the header {name:?} is left out: its name should be 1 to {most} bytes of UTF-8 without control characters"
    )
}

/// The value of a header as one that can be kept, and what was changed.
fn fitting(value: &[u8]) -> (Cow<'_, str>, String) {
    const MOST: usize = Headers::MAX_VALUE_BYTES;
    let mut changes = Vec::new();
    let mut kept = match text(value) {
        None => {
            changes.push("bytes that are not UTF-8 are escaped".to_owned());
            Cow::Owned(Undecodable::text(value))
        }
        Some(text) if text.contains(char::is_control) => {
            changes.push("control characters are escaped".to_owned());
            Cow::Owned(escaped(text))
        }
        Some(text) => Cow::Borrowed(text),
    };
    if kept.len() > MOST {
        changes.push(format!("cut from {} bytes to {MOST}", kept.len()));
        kept = Cow::Owned(kept[..kept.floor_char_boundary(MOST)].to_owned());
    }
    (kept, changes.join(", "))
}

fn escaped(text: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

#[cfg(test)]
#[path = "raw_record_tests.rs"]
mod tests;
