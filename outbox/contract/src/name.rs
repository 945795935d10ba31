//! Names used in tables, on the wire and in metrics: validated once on creation, and cheap to pass
//! on.

use std::convert::Infallible;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::backend::Bucket;

/// Reason why a name is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameError {
    what: &'static str,
    value: String,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Problem {
    Empty,
    TooLong { bytes: usize, most: usize },
    ControlCharacter { code: u32, at: usize },
    Reserved,
    NotAnAttribute,
    NoUuid,
}

impl NameError {
    /// Returns the stable code of this error, as the book's page on errors lists it.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "OBX-NAME-INVALID"
    }
}

/// Lets `TryInto<Topic, Error: Into<NameError>>` accept a topic as well as text.
impl From<Infallible> for NameError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, value, .. } = self;
        match self.problem {
            Problem::Empty => write!(f, "the {what} is empty; give it at least one character"),
            Problem::TooLong { bytes, most } => {
                write!(f, "the {what} {value:?} has {bytes} bytes; shorten it to {most} bytes or fewer")
            }
            Problem::ControlCharacter { code, at } => {
                write!(
                    f,
                    "the {what} {value:?} has the control character U+{code:04X} at byte {at}; remove it"
                )
            }
            Problem::Reserved => {
                write!(f, "the {what} {value:?} is reserved by the wire format; choose another")
            }
            Problem::NotAnAttribute => {
                write!(
                    f,
                    "the {what} {value:?} is not a valid CloudEvents attribute name; use 1 to 20 characters of a-z and 0-9"
                )
            }
            Problem::NoUuid => write!(f, "the {what} {value:?} is not a UUID; give it as lists show it"),
        }
    }
}

impl std::error::Error for NameError {}

/// Converts an argument to a name.
pub(crate) fn parse<N>(name: impl TryInto<N, Error: Into<NameError>>) -> Result<N, NameError> {
    name.try_into().map_err(Into::into)
}

/// Error for a reserved name.
pub(crate) fn reserved(what: &'static str, value: &str) -> NameError {
    NameError { what, value: value.to_owned(), problem: Problem::Reserved }
}

/// Error for a name that CloudEvents does not allow.
pub(crate) fn not_an_attribute(value: &str) -> NameError {
    NameError { what: "extension attribute", value: shown(value), problem: Problem::NotAnAttribute }
}

/// Error for an identifier that is no UUID.
pub(crate) fn no_uuid(what: &'static str, value: &str) -> NameError {
    NameError { what, value: shown(value), problem: Problem::NoUuid }
}

/// Checks the value of a header. The error names the header and does not show the value, which may
/// be a secret.
pub(crate) fn check_value(header: &str, value: &str, most: usize) -> Result<(), NameError> {
    check("value", value, most).map_err(|error| NameError {
        what: "value of the header",
        value: shown(header),
        problem: error.problem,
    })
}

/// Text as shown in an error: a long one is truncated.
pub(crate) fn shown(text: &str) -> String {
    text.char_indices().nth(64).map_or(text.to_owned(), |(end, _)| format!("{}…", &text[..end]))
}

/// Checks a text that appears in a table, a header and log lines.
pub(crate) fn check(what: &'static str, value: &str, most: usize) -> Result<(), NameError> {
    // Almost all names are printable ASCII, and this check works a word at a time.
    let plain = value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if plain && (1..=most).contains(&value.len()) {
        return Ok(());
    }
    let problem = if value.is_empty() {
        Problem::Empty
    } else if value.len() > most {
        Problem::TooLong { bytes: value.len(), most }
    } else if let Some((at, found)) = value.char_indices().find(|(_, found)| found.is_control()) {
        Problem::ControlCharacter { code: found.into(), at }
    } else {
        return Ok(());
    };
    Err(NameError { what, value: shown(value), problem })
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $most:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Maximum size of this name in UTF-8, in bytes.
            pub const MAX_BYTES: usize = $most;

            /// Creates a name of 1 to [`MAX_BYTES`](Self::MAX_BYTES) bytes without control
            /// characters.
            ///
            /// # Errors
            ///
            /// Describes the fault of any other name.
            pub fn new(name: impl AsRef<str>) -> Result<Self, NameError> {
                let name = name.as_ref();
                check($what, name, Self::MAX_BYTES)?;
                Ok(Self(name.into()))
            }

            /// Returns the name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), self.as_str())
            }
        }

        impl TryFrom<&str> for $name {
            type Error = NameError;

            fn try_from(name: &str) -> Result<Self, NameError> {
                Self::new(name)
            }
        }

        impl TryFrom<&String> for $name {
            type Error = NameError;

            fn try_from(name: &String) -> Result<Self, NameError> {
                Self::new(name)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(name: String) -> Result<Self, NameError> {
                Self::new(name)
            }
        }

        impl std::str::FromStr for $name {
            type Err = NameError;

            fn from_str(name: &str) -> Result<Self, NameError> {
                Self::new(name)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.as_str().to_owned()
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.as_str() == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.as_str() == *other
            }
        }
    };
}

name! {
    /// Subject of a message, and the name under which consumers find it. 1 to 249 bytes (the
    /// maximum of Kafka), no control characters. A transport whose broker is stricter reports this
    /// when a message is appended or published.
    ///
    /// Most functions take a topic as text. Create a `Topic` to check it early, or to use it often:
    ///
    /// ```
    /// # extern crate outbox_contract as outbox;
    /// use outbox::Topic;
    ///
    /// assert_eq!(Topic::new("orders")?, "orders");
    /// assert!(Topic::new("").is_err());
    /// # Ok::<(), outbox::NameError>(())
    /// ```
    Topic, "topic", 249
}

name! {
    /// Ordering key of a message: messages of one topic and key are delivered in the order of their
    /// commits. 1 to 255 bytes, no control characters.
    Key, "key", 255
}

name! {
    /// The transport, or set of relays, that delivers a row: `default` unless set. 1 to 64 bytes.
    Route, "route", 64
}

name! {
    /// Name of an inbox subscription: handled messages are recorded per consumer. 1 to 128 bytes.
    Consumer, "consumer", 128
}

impl Default for Route {
    fn default() -> Self {
        Self("default".into())
    }
}

impl Key {
    /// Number of bytes shown of a key that is too long, in front of its hash.
    const SHOWN: usize = 120;

    /// Converts the key of another producer's record, whatever its bytes. Equal bytes give equal
    /// keys, so an order that the broker keeps by key can be kept in handling.
    ///
    /// Valid key text becomes the key unchanged. Other bytes are shown in hex after `0x`. A result
    /// longer than [`MAX_BYTES`](Self::MAX_BYTES) is truncated, and ends in the SHA-256 of all
    /// bytes.
    ///
    /// ```
    /// # extern crate outbox_contract as outbox;
    /// use outbox::Key;
    ///
    /// assert_eq!(Key::of_bytes(b"order-1"), "order-1");
    /// assert_eq!(Key::of_bytes(&[0, 0, 0, 7]), "0x00000007");
    /// assert!(Key::of_bytes("x".repeat(300).as_bytes()).as_str().contains("...sha256:"));
    /// ```
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).ok().filter(|text| !text.is_empty());
        let text = text.filter(|text| !text.chars().any(char::is_control));
        let shown = match text {
            Some(text) if text.len() <= Self::MAX_BYTES => return Self(text.into()),
            Some(text) => text[..text.floor_char_boundary(Self::SHOWN)].to_owned(),
            None if 2 + 2 * bytes.len() <= Self::MAX_BYTES => return Self(hex("0x", bytes).into()),
            None => hex("0x", bytes.get(..Self::SHOWN / 2).unwrap_or(bytes)),
        };
        Self(hex(&format!("{shown}...sha256:"), &Sha256::digest(bytes)).into())
    }
}

/// Appends bytes in hex to a text.
fn hex(before: &str, bytes: &[u8]) -> String {
    let mut text = String::with_capacity(before.len() + 2 * bytes.len());
    text.push_str(before);
    for byte in bytes {
        // Writing to a string can't fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A key within its topic: the unit of ordering.
///
/// A message without a key has an order of its own; its identifier replaces the key here.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::KeyId;
///
/// assert_eq!(KeyId::new("orders", "order-1")?.to_string(), "order-1 of orders");
/// assert!(KeyId::new("orders", "").is_err());
/// # Ok::<(), outbox::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyId {
    /// The topic.
    pub topic: Topic,
    /// The key.
    pub key: Key,
}

impl KeyId {
    /// Creates the unit of a key. Names are text, or a [`Topic`] and a [`Key`].
    ///
    /// # Errors
    ///
    /// Describes an invalid topic or key.
    pub fn new(
        topic: impl TryInto<Topic, Error: Into<NameError>>,
        key: impl TryInto<Key, Error: Into<NameError>>,
    ) -> Result<Self, NameError> {
        Ok(Self { topic: parse(topic)?, key: parse(key)? })
    }

    /// Returns the bucket to which this key belongs.
    #[must_use]
    pub fn bucket(&self) -> Bucket {
        Bucket::of(self.topic.as_str(), self.key.as_str())
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.key, self.topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_kind_are_a_key_and_those_of_others_another() {
        let all = [
            &b"order-1"[..],
            b"",
            b"a\nb",
            &[0, 0, 0, 0, 0, 0, 0, 7],
            &[0xff; 126],
            &[0xff; 127],
            &[0xff; 400],
            &[b'x'; 255],
            &[b'x'; 256],
            &[b'x'; 300],
        ];
        let keys: Vec<Key> = all.iter().map(|bytes| Key::of_bytes(bytes)).collect();
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(Key::new(key.as_str()).as_ref(), Ok(key), "it can be one");
            assert_eq!(*key, Key::of_bytes(all[at]));
            assert!(!keys[..at].contains(key), "{key}");
        }
        assert_eq!((keys[0].as_str(), keys[1].as_str(), keys[2].as_str()), ("order-1", "0x", "0x610a62"));
        assert_eq!(Key::of_bytes("é".repeat(200).as_bytes()).as_str().find("..."), Some(Key::SHOWN));
    }

    #[test]
    fn a_bad_name_is_refused_with_its_value_and_the_remedy() {
        let says = |name: &str| Topic::new(name).unwrap_err().to_string();
        assert_eq!(says(""), "the topic is empty; give it at least one character");
        assert_eq!(says("a\nb"), "the topic \"a\\nb\" has the control character U+000A at byte 1; remove it");
        let long = says(&"é".repeat(125));
        assert!(long.ends_with("has 250 bytes; shorten it to 249 bytes or fewer"), "{long}");
        assert!(long.len() < 300, "a long value is shown shortened");
    }

    #[test]
    fn text_is_taken_where_a_name_is_and_a_bad_one_is_refused_with_its_value() {
        use crate::admin::{Filter, HandledFilter};
        use crate::backend::Subscription;
        use crate::message::Message;

        let topic = Topic::new("orders").unwrap();
        let message = Message::new(topic.clone(), "order.placed").unwrap();
        assert_eq!(message.topic, Message::new("orders", "order.placed").unwrap().topic);
        let subscription = Subscription::new(String::from("billing"), [topic.clone()]).unwrap();
        assert_eq!(subscription.topics, Subscription::new("billing", ["orders"]).unwrap().topics);
        assert_eq!(KeyId::new(topic, Key::new("a").unwrap()), KeyId::new("orders", &"a".to_owned()));

        let long = "x".repeat(65);
        let refused = [
            Message::new("a\nb", "order.placed").err(),
            Subscription::new("billing", ["orders", "a\nb"]).err(),
            KeyId::new("a\nb", "a").err(),
            Filter::all_routes().with_topic("a\nb").err(),
            HandledFilter::of("billing").unwrap().with_topic("a\nb").err(),
        ];
        for error in refused.map(|error| error.unwrap().to_string()) {
            assert!(error.starts_with("the topic \"a\\nb\" has the control character"), "{error}");
        }
        let says = |error: Option<NameError>| error.unwrap().to_string();
        assert!(says(Subscription::new("", ["orders"]).err()).starts_with("the consumer is empty"));
        assert!(says(HandledFilter::of("").err()).starts_with("the consumer is empty"));
        assert!(says(KeyId::new("orders", "").err()).starts_with("the key is empty"));
        let of_key = HandledFilter::of("billing").unwrap().with_key("");
        assert!(says(of_key.err()).starts_with("the key is empty"));
        assert!(says(Filter::route(long).err()).ends_with("has 65 bytes; shorten it to 64 bytes or fewer"));
    }

    #[test]
    fn an_id_that_is_no_uuid_is_refused_with_its_value() {
        let says = |text: &str| text.parse::<crate::MessageId>().unwrap_err().to_string();
        assert_eq!(says("123"), "the message id \"123\" is not a UUID; give it as lists show it");
        assert!(says(&"x".repeat(100)).len() < 140);
    }

    #[test]
    fn the_longest_name_is_taken() {
        assert!(Key::new("k".repeat(255)).is_ok());
        assert!(Key::new("k".repeat(256)).is_err());
    }
}
