//! Headers: small named text values that travel with a message.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::{self, NameError};

/// The headers of a message, ordered by name.
///
/// Names and values are text without control characters. Comparison of names is case-sensitive.
/// Some brokers fold case, so write names in lower case.
///
/// `content-type`, and names that begin with `ce_`, `ce-`, `cloudEvents:` or `cloudEvents_`, are
/// reserved: protocols use them for data that a message already has
/// ([`cloudevents`](crate::backend::cloudevents)).
/// [`Message::with_header`](crate::Message::with_header) rejects them. Those that begin with `ce-`
/// keep the CloudEvents attributes that a message has no field for: use
/// [`Message::with_extension`](crate::Message::with_extension) and its like. Any other reserved
/// header that is in a table anyway is not sent.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::Headers;
///
/// let mut headers = Headers::new();
/// headers.insert("tenant", "acme")?;
/// assert_eq!(headers.get("tenant"), Some("acme"));
/// assert!(headers.insert("tenant", "ac\r\nme").is_err());
/// # Ok::<(), outbox::NameError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// Maximum size of a header's name, in bytes.
    pub const MAX_NAME_BYTES: usize = 255;
    /// Maximum size of a header's value, in bytes. Not a limit of a broker: headers are not meant
    /// for payloads.
    pub const MAX_VALUE_BYTES: usize = 8_192;

    /// Creates empty headers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a header, replacing an earlier one of the same name.
    ///
    /// # Errors
    ///
    /// Describes a name that is empty, or a name or value that is too long or has a control
    /// character.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) -> Result<(), NameError> {
        let (name, value) = (name.into(), value.into());
        Self::check(&name, &value)?;
        self.0.insert(name, value);
        Ok(())
    }

    /// Returns the value of a header.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns true if the wire format uses this name for data that a message already has.
    #[must_use]
    pub fn is_reserved(name: &str) -> bool {
        crate::backend::cloudevents::is_reserved(name)
    }

    /// Removes a header.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// Returns the number of headers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no headers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the headers, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the headers as the bytes that a store keeps: a JSON object of strings, or no bytes
    /// if there are no headers.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.0.is_empty() {
            return Vec::new();
        }
        serde_json::to_vec(&self.0).unwrap_or_default()
    }

    /// Parses the output of [`to_bytes`](Self::to_bytes), or bytes that a program in another
    /// language wrote.
    ///
    /// # Errors
    ///
    /// Describes the fault of bytes that are neither empty nor a JSON object of strings.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(bytes).map(Self)
    }

    pub(crate) fn validate(&self) -> Result<(), NameError> {
        self.0.iter().try_for_each(|(name, value)| Self::check(name, value))
    }

    pub(crate) fn check_name(name: &str) -> Result<(), NameError> {
        name::check("header name", name, Self::MAX_NAME_BYTES)
    }

    fn check(name: &str, value: &str) -> Result<(), NameError> {
        Self::check_name(name)?;
        if value.is_empty() { Ok(()) } else { name::check_value(name, value, Self::MAX_VALUE_BYTES) }
    }

    /// Returns the total size of all names and values, in bytes.
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
