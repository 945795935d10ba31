//! Names that stand in tables, on the wire and in metrics: checked once, where they come in, and cheap to pass on.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::bucket::Bucket;

/// A name that can't be one, and why.
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
                write!(
                    f,
                    "the {what} {value:?} is one under which the wire carries what a message has anyway; choose another"
                )
            }
        }
    }
}

impl std::error::Error for NameError {}

/// What is wrong with a name that is not free.
pub(crate) fn reserved(what: &'static str, value: &str) -> NameError {
    NameError { what, value: value.to_owned(), problem: Problem::Reserved }
}

/// Checks a text that will stand in a table, in a header and in a log line.
pub(crate) fn check(what: &'static str, value: &str, most: usize) -> Result<(), NameError> {
    // Almost all are of printable ASCII, which is told a word at a time.
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
    let shown =
        value.char_indices().nth(64).map_or(value.to_owned(), |(end, _)| format!("{}…", &value[..end]));
    Err(NameError { what, value: shown, problem })
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $most:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The most bytes that this name may have, in UTF-8.
            pub const MOST_BYTES: usize = $most;

            /// Takes a name of 1 to [`MOST_BYTES`](Self::MOST_BYTES) bytes without control characters.
            ///
            /// # Errors
            ///
            /// Says what is wrong with any other.
            pub fn new(name: impl AsRef<str>) -> Result<Self, NameError> {
                let name = name.as_ref();
                check($what, name, Self::MOST_BYTES)?;
                Ok(Self(name.into()))
            }

            /// The name as text.
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
    /// What a message is about, and where consumers find it. 1 to 249 bytes (the most that Kafka takes), no control
    /// characters. Transports are stricter where their broker is; they say so when a message is appended or published.
    Topic, "topic", 249
}

name! {
    /// What a message is ordered by: messages of one topic and key are delivered in the order in which they were
    /// committed. 1 to 255 bytes, no control characters.
    Key, "key", 255
}

name! {
    /// The transport, or set of relays, that a row goes out by: `default` unless said. 1 to 64 bytes.
    Route, "route", 64
}

name! {
    /// The name of one inbox subscription: what a message was handled *for*. 1 to 128 bytes.
    Consumer, "consumer", 128
}

impl Default for Route {
    fn default() -> Self {
        Self("default".into())
    }
}

/// A key within its topic: the thing that has an order.
///
/// A message without a key is alone in its order; its own identifier stands for the key here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyId {
    /// The topic.
    pub topic: Topic,
    /// The key.
    pub key: Key,
}

impl KeyId {
    /// The name of a key that stands in a store's own tables; none if somebody has made it what it can't be.
    #[must_use]
    pub fn from_texts(topic: &str, key: &str) -> Option<Self> {
        Some(Self { topic: Topic::new(topic).ok()?, key: Key::new(key).ok()? })
    }

    /// The bucket that this key belongs to.
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
    fn a_bad_name_is_refused_with_its_value_and_the_remedy() {
        let says = |name: &str| Topic::new(name).unwrap_err().to_string();
        assert_eq!(says(""), "the topic is empty; give it at least one character");
        assert_eq!(says("a\nb"), "the topic \"a\\nb\" has the control character U+000A at byte 1; remove it");
        let long = says(&"é".repeat(125));
        assert!(long.ends_with("has 250 bytes; shorten it to 249 bytes or fewer"), "{long}");
        assert!(long.len() < 300, "a long value is shown shortened");
    }

    #[test]
    fn the_longest_name_is_taken() {
        assert!(Key::new("k".repeat(255)).is_ok());
        assert!(Key::new("k".repeat(256)).is_err());
    }
}
