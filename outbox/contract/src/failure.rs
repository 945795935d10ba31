//! A failure: the report of a broker, handler or codec about a message, stored with it.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Reason why a message was not delivered: a class that policies can name, and a text.
///
/// Classes are short, lower-case and stable (`message-too-large`, `not-authorized`, `timeout`):
/// retry policies, metrics and dead letters use them. The text is for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Read")]
#[non_exhaustive]
pub struct Failure {
    /// Class of the failure, for policies and metrics. At most
    /// [`MAX_CLASS_BYTES`](Self::MAX_CLASS_BYTES).
    pub class: Cow<'static, str>,
    /// Failure text, for people. At most [`MAX_BYTES`](Self::MAX_BYTES).
    pub message: String,
}

/// A failure as it is read, of any size.
#[derive(Deserialize)]
struct Read {
    class: String,
    message: String,
}

impl From<Read> for Failure {
    fn from(Read { class, message }: Read) -> Self {
        Self::new(class, message)
    }
}

impl Failure {
    /// Maximum size of the text, in bytes.
    pub const MAX_BYTES: usize = 1_000;

    /// Maximum size of a class, in bytes.
    pub const MAX_CLASS_BYTES: usize = 64;

    /// Class of the failure of a message whose bucket has a newer owner, as the broker knows.
    pub const FENCED: &'static str = "fenced";

    /// Creates a failure from a class and a text. Truncates each to its limit, at a character
    /// boundary.
    #[must_use]
    pub fn new(class: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        let (mut class, mut message) = (class.into(), message.into());
        if class.len() > Self::MAX_CLASS_BYTES {
            let mut cut = class.into_owned();
            cut.truncate(cut.floor_char_boundary(Self::MAX_CLASS_BYTES));
            class = cut.into();
        }
        if message.len() > Self::MAX_BYTES {
            message.truncate(message.floor_char_boundary(Self::MAX_BYTES - '…'.len_utf8()));
            message.push('…');
        }
        Self { class, message }
    }

    /// Returns the failure as JSON: the form that stores keep in a text column.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::json!({ "class": self.class, "message": self.message }).to_string()
    }

    /// Parses the stored form. Returns `None` for any other text, which another program must have
    /// written.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.message, self.class)
    }
}

/// A message that a transport can never carry, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection(pub Failure);

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Rejection {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_read_as_it_was_kept() {
        let failure = Failure::new("too-large", "it has \"1 MB\"\nand more");
        assert_eq!(Failure::from_text(&failure.to_text()), Some(failure));
        assert_eq!(Failure::from_text("by hand"), None);
    }

    #[test]
    fn whatever_is_said_is_bounded() {
        let failure = Failure::new("x".repeat(1 << 25), "y".repeat(1 << 25));
        assert!(failure.to_text().len() < 2_000, "{}", failure.to_text().len());
        let failure = Failure::new(format!("x{}", "é".repeat(100)), "");
        assert_eq!(failure.class.len(), Failure::MAX_CLASS_BYTES - 1, "cut between two characters");
        assert!(matches!(Failure::new("too-large", "").class, Cow::Borrowed("too-large")));
    }

    #[test]
    fn what_is_read_is_bounded_too() {
        let text = format!(r#"{{"class":"{}","message":"{}"}}"#, "x".repeat(5_000), "y".repeat(5_000));
        let failure: Failure = serde_json::from_str(&text).unwrap();
        let sizes = (failure.class.len(), failure.message.len());
        assert_eq!(sizes, (Failure::MAX_CLASS_BYTES, Failure::MAX_BYTES));
    }
}
