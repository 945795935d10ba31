//! Codecs: encoding of events to bytes, and decoding.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Encodes events to payloads and decodes them. The default is [`Json`].
///
/// ```
/// # mod outbox {
/// #     pub use outbox_contract::*;
/// #     pub mod error { pub use outbox_contract::*; }
/// #     pub mod message { pub use outbox_contract::*; }
/// # }
/// use outbox::error::CodecError;
/// use outbox::message::Bytes;
/// use outbox::{Codec, Json};
/// use serde::{Serialize, de::DeserializeOwned};
///
/// /// JSON under the media type of this company.
/// struct ShopJson;
///
/// impl Codec for ShopJson {
///     fn content_type(&self) -> &'static str { "application/vnd.shop+json" }
///
///     fn encode<E: Serialize + ?Sized>(&self, event: &E) -> Result<Bytes, CodecError> {
///         Json.encode(event)
///     }
///
///     fn decode<E: DeserializeOwned>(&self, payload: &[u8]) -> Result<E, CodecError> {
///         Json.decode(payload)
///     }
/// }
/// ```
pub trait Codec: Send + Sync + 'static {
    /// Media type of the encoded payload, such as `application/json`.
    fn content_type(&self) -> &'static str;

    /// Encodes an event.
    ///
    /// # Errors
    ///
    /// If the event does not encode. Nothing was written, and the caller's transaction is
    /// untouched.
    fn encode<E: Serialize + ?Sized>(&self, event: &E) -> Result<Bytes, CodecError>;

    /// Decodes an event.
    ///
    /// # Errors
    ///
    /// If the bytes are not an event of this type.
    fn decode<E: DeserializeOwned>(&self, payload: &[u8]) -> Result<E, CodecError>;
}

/// JSON, as serde writes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

impl Codec for Json {
    fn content_type(&self) -> &'static str {
        "application/json"
    }

    fn encode<E: Serialize + ?Sized>(&self, event: &E) -> Result<Bytes, CodecError> {
        serde_json::to_vec(event)
            .map(Bytes::from)
            .map_err(|error| CodecError::new("write", std::any::type_name::<E>(), self.content_type(), error))
    }

    fn decode<E: DeserializeOwned>(&self, payload: &[u8]) -> Result<E, CodecError> {
        serde_json::from_slice(payload)
            .map_err(|error| CodecError::new("read", std::any::type_name::<E>(), self.content_type(), error))
    }
}

/// An event that could not be encoded or decoded.
#[derive(Debug)]
pub struct CodecError {
    action: &'static str,
    what: &'static str,
    content_type: &'static str,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl CodecError {
    /// Creates a codec error: `action` is `write` or `read`, `what` the event's Rust type.
    pub fn new(
        action: &'static str,
        what: &'static str,
        content_type: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { action, what, content_type, source: source.into() }
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {} {} as {}: {}", self.action, self.what, self.content_type, self.source)
    }
}

impl std::error::Error for CodecError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}
