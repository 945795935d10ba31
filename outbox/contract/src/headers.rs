//! Headers: small named texts that travel with a message.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::{self, NameError};

/// The headers of a message, in the order of their names.
///
/// Names and values are text without control characters. Names are compared as they are; brokers that fold case may
/// fold them, so write them in lower case.
///
/// `content-type`, and names that begin with `ce_`, `ce-`, `cloudEvents:` or `cloudEvents_`, are how one protocol or another carries what a message has anyway
/// ([`cloudevents`](crate::cloudevents)). [`Message::with_header`](crate::Message::with_header) refuses them; one that stands in a table nevertheless does not
/// go out.
///
/// ```
/// use outbox_contract::Headers;
///
/// let mut headers = Headers::new();
/// headers.insert("tenant", "acme")?;
/// assert_eq!(headers.get("tenant"), Some("acme"));
/// assert!(headers.insert("tenant", "ac\r\nme").is_err());
/// # Ok::<(), outbox_contract::NameError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// The most bytes that a header's name may have.
    pub const MOST_NAME_BYTES: usize = 255;
    /// The most bytes that a header's value may have. Not a broker's limit but a bound: headers are not for payloads.
    pub const MOST_VALUE_BYTES: usize = 8_192;

    /// No headers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a header, in place of an earlier one of that name.
    ///
    /// # Errors
    ///
    /// Says what is wrong with a name that is empty, or a name or value that is too long or has a control character.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) -> Result<(), NameError> {
        let (name, value) = (name.into(), value.into());
        Self::check(&name, &value)?;
        self.0.insert(name, value);
        Ok(())
    }

    /// The value of a header.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Takes a header out.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// How many headers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The headers, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The headers as the bytes that a store keeps: a JSON object of strings; no bytes at all when there are none.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.0.is_empty() {
            return Vec::new();
        }
        serde_json::to_vec(&self.0).unwrap_or_default()
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote, or what a program in another language put there.
    ///
    /// # Errors
    ///
    /// Says what is wrong with bytes that are neither empty nor a JSON object of strings.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(bytes).map(Self)
    }

    pub(crate) fn validate(&self) -> Result<(), NameError> {
        self.0.iter().try_for_each(|(name, value)| Self::check(name, value))
    }

    fn check(name: &str, value: &str) -> Result<(), NameError> {
        name::check("header name", name, Self::MOST_NAME_BYTES)?;
        if value.is_empty() { Ok(()) } else { name::check_value(name, value, Self::MOST_VALUE_BYTES) }
    }

    /// The bytes of all names and values together.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

/// Shows names only: a header's value may be a token.
impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_refused_is_told_by_the_name_of_its_header_and_not_shown() {
        let refused = |value: &str| Headers::new().insert("authorization", value).unwrap_err().to_string();
        let line = refused("secret\nline");
        assert_eq!(
            line,
            "the value of the header \"authorization\" has the control character U+000A at byte 6; remove it"
        );
        let long = refused(&"secret".repeat(2_000));
        assert!(long.contains("\"authorization\" has 12000 bytes") && !long.contains("secret"), "{long}");
    }
}
