//! A failure: what a broker, a handler or a codec said of a message, kept with it.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a message was not delivered: a class that policies can name, and the words.
///
/// Classes are short, lower-case and stable (`message-too-large`, `not-authorised`, `timeout`): they stand in retry
/// policies, in metrics and in the dead letter. The words are for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of failure, for policies and metrics. At most [`MOST_CLASS_BYTES`](Self::MOST_CLASS_BYTES).
    pub class: Cow<'static, str>,
    /// What was said, for people. At most [`MOST_BYTES`](Self::MOST_BYTES).
    pub message: String,
}

impl Failure {
    /// The most bytes of words that are kept.
    pub const MOST_BYTES: usize = 1_000;

    /// The most bytes of a class.
    pub const MOST_CLASS_BYTES: usize = 64;

    /// A failure of a class, with words. What is longer than it may be is cut, between two characters.
    #[must_use]
    pub fn new(class: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        let (mut class, mut message) = (class.into(), message.into());
        if class.len() > Self::MOST_CLASS_BYTES {
            let mut cut = class.into_owned();
            cut.truncate(cut.floor_char_boundary(Self::MOST_CLASS_BYTES));
            class = cut.into();
        }
        if message.len() > Self::MOST_BYTES {
            message.truncate(message.floor_char_boundary(Self::MOST_BYTES - '…'.len_utf8()));
            message.push('…');
        }
        Self { class, message }
    }

    /// As JSON: how stores keep it in a column of text.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::json!({ "class": self.class, "message": self.message }).to_string()
    }

    /// As it was kept. What is no failure is none: somebody else has written it.
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

/// A message that a transport can never carry, and why.
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
        assert_eq!(failure.class.len(), Failure::MOST_CLASS_BYTES - 1, "cut between two characters");
        assert!(matches!(Failure::new("too-large", "").class, Cow::Borrowed("too-large")));
    }
}
