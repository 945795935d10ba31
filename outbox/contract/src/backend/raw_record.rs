//! Records as brokers deliver them, of which nothing is trusted: any program can write them.
//!
//! One rule for all transports: what is needed to handle an event must be there, or the record is
//! none. All else is taken as far as it goes. Who handles the event finds it, and one header more
//! that names what is not as it was sent.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

use crate::backend::cloudevents::{Binding, CONTENT_TYPE, foreign_id};
use crate::backend::{Origin, Undecodable};
use crate::clock::Timestamp;
use crate::headers::Headers;
use crate::id::MessageId;
use crate::message::Message;
use crate::name::{self, Key, Topic};

/// The header that names what a message does not have as its producer sent it, and why. Only the
/// reader of records writes it.
pub const ADAPTED: &str = "outbox-adapted";

/// Content type of a payload that comes without one.
const UNKNOWN_CONTENT: &str = "application/octet-stream";

/// A name or a value, whatever bytes it has.
type Raw<'r> = Cow<'r, [u8]>;

/// A record as a broker delivers it: texts and bytes under names, and a payload.
///
/// [`message`](Self::message) reads it by these rules:
///
/// | of the record | rule |
/// |---|---|
/// | `specversion`, `id`, `source`, `type` | required, text; `specversion` begins with `1.`, the `id` is not empty, the `type` can be one |
/// | `partitionkey`, else the key of the protocol, else `subject` | the key, whatever bytes it is: [`Key::of_bytes`] |
/// | `topic` | what can be none: the topic that the record came from |
/// | `time` | what is no instant of RFC 3339: 1970, as without one |
/// | `schemaversion` | what is no number from 1: 1, as without one |
/// | `sequence` | what is no number: none |
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
/// outbox wrote it; whoever remembers ids goes by the [`identity`](crate::backend::cloudevents::identity).
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
/// # Ok::<(), outbox::NameError>(())
/// ```
#[derive(Clone)]
pub struct RawRecord<'r> {
    binding: Binding,
    headers: Vec<(Raw<'r>, Raw<'r>)>,
    content_type: Option<&'r [u8]>,
    key: Option<&'r [u8]>,
    payload: Bytes,
    notes: Vec<String>,
}

impl<'r> RawRecord<'r> {
    /// A record of nothing but a payload.
    #[must_use]
    pub fn new(binding: Binding, payload: Bytes) -> Self {
        Self { binding, headers: Vec::new(), content_type: None, key: None, payload, notes: Vec::new() }
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
        let key = self.key_bytes().map(<[u8]>::to_vec);
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| (Undecodable::text(name), Undecodable::text(value)));
        let notes = (!self.notes.is_empty()).then(|| (ADAPTED.to_owned(), self.notes.join("; ")));
        let headers = headers.chain(notes).collect();
        let undecodable = Undecodable::new(reason, self.payload, headers);
        match key {
            Some(key) => undecodable.with_key(key),
            None => undecodable,
        }
    }

    fn read(&self, came_from: &Topic, notes: &mut Vec<String>) -> Result<(Message, Option<Origin>), String> {
        let version = self.required("specversion")?;
        if !version.starts_with("1.") {
            return Err(self.wrong("specversion", version.as_bytes(), "should be 1.0"));
        }
        let (id, source) = (self.required("id")?, self.required("source")?);
        if id.is_empty() {
            return Err(self.wrong("id", b"", "would make all events of its source one"));
        }
        let sequence = self.attribute("sequence").and_then(text).and_then(|sequence| sequence.parse().ok());
        let mut message = Message::of(id_of(id, source, sequence), came_from.clone(), self.required("type")?)
            .with_payload(self.payload.clone());
        message.key = self.key_bytes().map(Key::of_bytes);
        self.take(
            "topic",
            notes,
            |topic| Topic::new(topic).ok(),
            "is no topic; that of the record counts",
            |topic| {
                message.topic = topic;
            },
        );
        message.occurred_at = Timestamp::default();
        let instant = |time: &str| Timestamp::parse(time).filter(|time| time.is_printable());
        self.take("time", notes, instant, "is no instant of RFC 3339; ignored", |at| {
            message.occurred_at = at
        });
        let number = |version: &str| version.parse().ok().filter(|version| *version > 0);
        self.take("schemaversion", notes, number, "is no number from 1; taken as 1", |version| {
            message.schema_version = version;
        });
        message.content_type = self.content_type(notes).into();
        message.headers = self.own_headers(notes);
        if !notes.is_empty() {
            let _ = message.headers.insert(ADAPTED, fitting(notes.join("; ").as_bytes()).0);
        }
        message.validate().map_err(|error| error.to_string())?;
        Ok((message, sequence.map(|sequence| Origin { source: source.into(), sequence })))
    }

    fn attribute(&self, name: &str) -> Option<&[u8]> {
        let prefix = self.binding.prefix.as_bytes();
        let found =
            self.headers.iter().find(|(header, _)| header.strip_prefix(prefix) == Some(name.as_bytes()));
        found.map(|(_, value)| &**value)
    }

    /// An attribute without which there is no event.
    fn required(&self, name: &str) -> Result<&str, String> {
        let missing = || format!("the CloudEvents attribute {}{name} is missing", self.binding.prefix);
        let value = self.attribute(name).ok_or_else(missing)?;
        text(value).ok_or_else(|| self.wrong(name, value, "should be UTF-8"))
    }

    /// Gives an attribute that can be read to `set`; notes one that can't.
    fn take<T>(
        &self,
        name: &str,
        notes: &mut Vec<String>,
        read: impl Fn(&str) -> Option<T>,
        wrong: &str,
        set: impl FnOnce(T),
    ) {
        let Some(value) = self.attribute(name) else { return };
        match text(value).and_then(read) {
            Some(value) => set(value),
            None => notes.push(self.wrong(name, value, wrong)),
        }
    }

    fn wrong(&self, name: &str, value: &[u8], wrong: &str) -> String {
        let value = name::shown(&Undecodable::text(value));
        format!("{}{name} is {value:?}, which {wrong}", self.binding.prefix)
    }

    /// What the record is ordered by.
    fn key_bytes(&self) -> Option<&[u8]> {
        let named = |name| self.attribute(name).filter(|key| !key.is_empty());
        named("partitionkey").or(self.key).or_else(|| named("subject"))
    }

    fn content_type(&self, notes: &mut Vec<String>) -> &str {
        let header =
            || self.headers.iter().find(|(name, _)| is_content_type(name)).map(|(_, value)| &**value);
        let Some(bytes) = self.content_type.or_else(header).filter(|bytes| !bytes.is_empty()) else {
            return UNKNOWN_CONTENT;
        };
        match text(bytes).filter(|text| name::check(CONTENT_TYPE, text, Message::MAX_TYPE_BYTES).is_ok()) {
            Some(content_type) => content_type,
            None => {
                let value = name::shown(&Undecodable::text(bytes));
                notes.push(format!("{CONTENT_TYPE} is {value:?}, which is none; taken as {UNKNOWN_CONTENT}"));
                UNKNOWN_CONTENT
            }
        }
    }

    /// The headers that are no attributes.
    fn own_headers(&self, notes: &mut Vec<String>) -> Headers {
        let prefix = self.binding.prefix.as_bytes();
        let mut own = Headers::new();
        for (name, value) in &self.headers {
            if name.starts_with(prefix) || is_content_type(name) || **name == *ADAPTED.as_bytes() {
                continue;
            }
            let Some(name) = text(name).filter(|name| Headers::check_name(name).is_ok()) else {
                notes.push(format!(
                    "the header {:?} is left out: its name should be 1 to {} bytes of UTF-8 without control characters",
                    name::shown(&Undecodable::text(name)),
                    Headers::MAX_NAME_BYTES
                ));
                continue;
            };
            let (value, changes) = fitting(value);
            if !changes.is_empty() {
                notes.push(format!("the header {name:?}: {changes}"));
            }
            // Both are such as can be taken.
            let _ = own.insert(name, value);
        }
        own
    }
}

/// Without payload and values, which may be nobody's business.
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

fn is_content_type(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(CONTENT_TYPE.as_bytes())
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
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
