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
    /// What kind of failure, for policies and metrics.
    pub class: Cow<'static, str>,
    /// What was said, for people. At most [`MOST_BYTES`](Self::MOST_BYTES).
    pub message: String,
}

impl Failure {
    /// The most bytes of words that are kept.
    pub const MOST_BYTES: usize = 1_000;

    /// A failure of a class, with words; longer ones are cut.
    #[must_use]
    pub fn new(class: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > Self::MOST_BYTES {
            let end = (0..=Self::MOST_BYTES - 3).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
            message.truncate(end);
            message.push('…');
        }
        Self { class: class.into(), message }
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
}
