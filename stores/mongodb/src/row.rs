//! Rows: from documents to messages, and back.
//!
//! Any program can write documents, so nothing in them is trusted. Reading strictly says what is
//! wrong with one that is not a message; read leniently it is a [`RawMessage`].

use std::fmt::Display;
use std::sync::Arc;

use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, Document, doc};
use outbox_contract::admin::Edit;
use outbox_contract::backend::{Bucket, Position, RawMessage, RowId, Stored, Stripe, StripeId, Waiting};
use outbox_contract::{Bytes, Headers, Key, KeyId, Message, MessageId, Timestamp, Topic};
use uuid::Uuid;

/// The most bytes that a document may have on any server.
const MAX_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of a message in a document beside its content and names: field names, numbers, and what
/// the parked and the dead add.
const MAX_BYTES_AROUND: usize = 16 * 1024;

/// A row that is not a message, and why.
#[derive(Debug)]
pub(crate) struct NotAMessage {
    /// The row, under names that can be names: control characters are replaced, long ones cut.
    pub(crate) waiting: Waiting,
    /// The error in it.
    pub(crate) reason: String,
}

/// A document of a message. In the hot collection route, position and id are its `_id`; elsewhere
/// they are fields.
pub(crate) struct Raw {
    document: Document,
}

/// Forms in which an identifier may be written: as the store does, as programs that know of no
/// UUIDs do, and as older drivers did. To the server these are three values.
const ID_SUBTYPES: [BinarySubtype; 3] = [BinarySubtype::Uuid, BinarySubtype::Generic, BinarySubtype::UuidOld];

/// Returns the size of a document's content, in bytes: headers and payload.
pub(crate) fn content_bytes(row: &Document) -> usize {
    let size = |field| match row.get(field) {
        Some(Bson::Binary(binary)) => binary.bytes.len(),
        Some(Bson::String(text)) => text.len(),
        _ => 0,
    };
    size("headers") + size("payload")
}

/// A document's route, position and id: how a row of the hot collection is named.
pub(crate) fn row_name(route: &str, row: RowId) -> Document {
    doc! { "route": route, "position": row.position.0, "id": uuid(row.id.as_uuid()) }
}

/// A row's name, in each way in which its id may be written: the store's own way first.
pub(crate) fn row_names(route: &str, row: RowId) -> impl Iterator<Item = Document> {
    ids(row.id).map(move |id| doc! { "route": route, "position": row.position.0, "id": id })
}

/// An identifier in each way in which it may be written: the store's own way first.
pub(crate) fn ids(id: MessageId) -> impl Iterator<Item = Bson> {
    ID_SUBTYPES.into_iter().map(move |subtype| bytes(subtype, id.as_uuid().as_bytes().to_vec()))
}

/// Returns true if a document of the hot collection has a name by which it can be removed again:
/// route, position and id, in this order and nothing else, with an id that is a UUID.
pub(crate) fn has_name(row: &Document) -> bool {
    let Ok(name) = row.get_document("_id") else { return false };
    let mut fields = name.iter().map(|(field, value)| (field.as_str(), value));
    let is_route = matches!(fields.next(), Some(("route", Bson::String(_))));
    let is_position = matches!(fields.next(), Some(("position", Bson::Int64(_) | Bson::Int32(_))));
    let is_id = match fields.next() {
        Some(("id", Bson::Binary(id))) => id.bytes.len() == 16 && ID_SUBTYPES.contains(&id.subtype),
        _ => false,
    };
    is_route && is_position && is_id && fields.next().is_none()
}

/// An identifier as the collections have it.
pub(crate) fn uuid(uuid: Uuid) -> Bson {
    bytes(BinarySubtype::Uuid, uuid.as_bytes().to_vec())
}

pub(crate) fn message_id(value: Option<&Bson>) -> Option<MessageId> {
    match value {
        Some(Bson::Binary(binary)) => Uuid::from_slice(&binary.bytes).ok().map(MessageId::from_uuid),
        _ => None,
    }
}

fn bytes(subtype: BinarySubtype, bytes: Vec<u8>) -> Bson {
    Bson::Binary(Binary { subtype, bytes })
}

/// Returns a document's fields of a message, without its place.
pub(crate) fn content(message: &Message) -> Document {
    let mut content = doc! {
        "bucket": i32::from(message.bucket().0),
        "topic": message.topic.as_str(),
        "event_type": &*message.event_type,
        "schema_version": i64::from(message.schema_version),
        "content_type": &*message.content_type,
        "headers": bytes(BinarySubtype::Generic, message.headers.to_bytes()),
        "payload": bytes(BinarySubtype::Generic, message.payload.to_vec()),
        "occurred_at": message.occurred_at.as_micros(),
    };
    if let Some(key) = &message.key {
        content.insert("key", key.as_str());
    }
    content
}

/// Checks that a message fits in a document, as any of the collections has it. The error is its
/// approximate size in bytes.
pub(crate) fn too_large(message: &Message) -> Option<usize> {
    // Headers are written as JSON, in which a character of theirs may take two bytes and more.
    let taken = message.bytes() - message.headers.iter().map(|(n, v)| n.len() + v.len()).sum::<usize>()
        + message.headers.to_bytes().len()
        + MAX_BYTES_AROUND;
    (taken > MAX_DOCUMENT_BYTES).then_some(taken)
}

/// The fields of a document in the hot collection, as the other collections have them: route,
/// position and id beside the content, and what the message is ordered by. Ids are written in one
/// way there, so that they are found.
pub(crate) fn aside(raw: Raw) -> Document {
    let order_key = raw.names().order_key();
    let mut aside = Document::new();
    for field in ["route", "position"] {
        aside.insert(field, raw.get(field).cloned().unwrap_or(Bson::Null));
    }
    aside.insert("id", raw.id().map_or(Bson::Null, |id| uuid(id.as_uuid())));
    aside.insert("order_key", order_key.as_str());
    for (field, value) in raw.document {
        if field != "_id" {
            aside.insert(field, value);
        }
    }
    aside
}

impl Raw {
    pub(crate) const fn new(document: Document) -> Self {
        Self { document }
    }

    pub(crate) fn into_document(self) -> Document {
        self.document
    }

    fn get(&self, field: &str) -> Option<&Bson> {
        let value = match self.document.get_document("_id") {
            Ok(name) if matches!(field, "route" | "position" | "id") => name.get(field),
            _ => self.document.get(field),
        };
        value.filter(|value| **value != Bson::Null)
    }

    fn integer(&self, field: &str) -> Option<i64> {
        match self.get(field)? {
            Bson::Int64(number) => Some(*number),
            Bson::Int32(number) => Some(i64::from(*number)),
            _ => None,
        }
    }

    fn required(&self, field: &str) -> Result<i64, String> {
        self.integer(field).ok_or_else(|| format!("its {field} is not a whole number"))
    }

    fn text(&self, field: &str) -> Result<&str, String> {
        self.get(field).and_then(Bson::as_str).ok_or_else(|| format!("its {field} is not a string"))
    }

    /// Returns the name of the row in the hot collection.
    pub(crate) fn name(&self) -> Option<&Bson> {
        self.document.get("_id")
    }

    /// Returns the position of the row.
    pub(crate) fn position(&self) -> Position {
        Position(self.integer("position").unwrap_or_default())
    }

    /// Returns the size of the row's content, in bytes.
    pub(crate) fn size(&self) -> usize {
        content_bytes(&self.document)
    }

    pub(crate) fn id(&self) -> Option<MessageId> {
        message_id(self.get("id"))
    }

    /// Its topic and what it is ordered by, under names that can be names.
    pub(crate) fn key_id(&self) -> KeyId {
        self.names().key_id()
    }

    /// The message; or why the row is none.
    pub(crate) fn message(mut self) -> Result<Arc<Stored>, Box<NotAMessage>> {
        self.strict().map_err(|reason| Box::new(NotAMessage { waiting: self.waiting(), reason }))
    }

    fn strict(&mut self) -> Result<Arc<Stored>, String> {
        let id = self.id().ok_or("its id is not a UUID of 16 bytes")?;
        let topic = Topic::new(self.text("topic")?).map_err(shown)?;
        let mut message = Message::of(id, topic, self.text("event_type")?);
        if self.get("key").is_some() {
            message.key = Some(Key::new(self.text("key")?).map_err(shown)?);
        }
        let content_type = self.text("content_type")?;
        if *message.content_type != *content_type {
            message.content_type = content_type.into();
        }
        let version = self.required("schema_version")?;
        message.schema_version = u32::try_from(version)
            .map_err(|_| format!("its schema_version is {version}; versions count from 1"))?;
        message.headers = self.headers()?;
        message.occurred_at = Timestamp::from_micros(self.required("occurred_at")?);
        let (stripe, number) = (self.required("stripe")?, self.required("number")?);
        let appended_at = Timestamp::from_micros(self.required("appended_at")?);
        let bucket = self.integer("bucket");
        let position = self.position();
        message.payload = self.take_payload()?;
        message.validate().map_err(shown)?;

        let order_key = message.order_key();
        let expected = StripeId::of(message.topic.as_str(), order_key.as_str());
        if stripe != i64::from(expected.0) {
            return Err(format!(
                "its stripe is {stripe}, but its topic and key give {}: the first ten bits of SHA-256 over topic, NUL and key",
                expected.0
            ));
        }
        if bucket != Some(i64::from(expected.bucket().0)) {
            let bucket = bucket.map_or("not a whole number".to_owned(), |bucket| bucket.to_string());
            return Err(format!(
                "its bucket is {bucket}, but its topic and key give {}: the first byte of SHA-256 over topic, NUL and key",
                expected.bucket()
            ));
        }
        let mut stored = Stored::new(position, appended_at, message);
        stored.stripe = Some(Stripe { stripe: expected, number });
        Ok(Arc::new(stored))
    }

    /// Headers as this store writes them, or as a program in another language may: a document of
    /// strings.
    fn headers(&self) -> Result<Headers, String> {
        let no_object =
            |error: &dyn Display| format!("its headers are not a JSON object of strings: {error}");
        match self.get("headers") {
            None => Ok(Headers::new()),
            Some(Bson::Binary(binary)) => {
                Headers::from_bytes(&binary.bytes).map_err(|error| no_object(&error))
            }
            Some(Bson::String(text)) => {
                Headers::from_bytes(text.as_bytes()).map_err(|error| no_object(&error))
            }
            Some(Bson::Document(fields)) => {
                let mut headers = Headers::new();
                for (name, value) in fields {
                    let value =
                        value.as_str().ok_or_else(|| no_object(&format!("{name} is not a string")))?;
                    headers.insert(name, value).map_err(shown)?;
                }
                Ok(headers)
            }
            Some(_) => Err(no_object(&"they are of another type")),
        }
    }

    fn take_payload(&mut self) -> Result<Bytes, String> {
        match self.document.remove("payload") {
            None | Some(Bson::Null) => Ok(Bytes::new()),
            Some(Bson::Binary(binary)) => Ok(binary.bytes.into()),
            Some(Bson::String(text)) => Ok(text.into()),
            Some(_) => Err("its payload is neither bytes nor a string".to_owned()),
        }
    }

    /// The row without its content, under names that can be names.
    pub(crate) fn waiting(&self) -> Waiting {
        let message = self.names();
        let stripe = self.stripe();
        Waiting::new(
            RowId { position: self.position(), id: message.id },
            message.key_id(),
            self.bucket(),
            stripe,
        )
    }

    /// The document of a side collection as corrections make it; or what is still wrong.
    pub(crate) fn edited(mut self, edit: &Edit) -> Result<Document, String> {
        let headers = match &edit.headers {
            Some(headers) => headers.to_bytes(),
            None => self.headers()?.to_bytes(),
        };
        let payload = match &edit.payload {
            Some(payload) => payload.clone(),
            None => self.take_payload()?,
        };
        // Read leniently, a number that is none would be made up.
        if edit.schema_version.is_none() {
            self.required("schema_version")?;
        }
        if edit.occurred_at.is_none() {
            self.required("occurred_at")?;
        }
        let mut row = self.raw();
        row.headers = Some(&headers);
        row.payload = Some(&payload);
        let message = edit.of_row(row)?;
        if let Some(bytes) = too_large(&message) {
            return Err(format!("it takes {bytes} bytes, more than a document may have; send a reference"));
        }
        let mut edited = content(&message);
        edited.insert("id", uuid(message.id.as_uuid()));
        edited.insert("order_key", message.order_key().as_str());
        for field in ["_id", "route", "position"] {
            if let Some(value) = self.document.get(field) {
                edited.insert(field, value.clone());
            }
        }
        Ok(edited)
    }

    /// Returns the presentable part of a row, message or not.
    pub(crate) fn presentable(mut self) -> Arc<Stored> {
        let mut message = self.raw().presentable();
        message.headers = self.headers().unwrap_or_default();
        let appended_at = Timestamp::from_micros(self.integer("appended_at").unwrap_or_default());
        let (position, bucket, stripe) = (self.position(), self.bucket(), self.stripe());
        message.payload = self.take_payload().unwrap_or_default();
        let mut stored = Stored::new(position, appended_at, message);
        stored.bucket = bucket;
        stored.stripe = stripe;
        Arc::new(stored)
    }

    fn names(&self) -> Message {
        self.raw().names()
    }

    /// Without headers and payload, which may be of several types.
    fn raw(&self) -> RawMessage<'_> {
        let text = |field| self.get(field).map(|value| value.as_str().unwrap_or_default().as_bytes());
        let mut row = RawMessage::default();
        row.id = match self.get("id") {
            Some(Bson::Binary(binary)) => Some(&binary.bytes),
            _ => None,
        };
        row.topic = text("topic");
        row.key = text("key");
        row.event_type = text("event_type");
        row.schema_version = self.integer("schema_version").unwrap_or(1);
        row.content_type = text("content_type");
        row.occurred_at = self.integer("occurred_at").unwrap_or_default();
        row
    }

    fn bucket(&self) -> Bucket {
        Bucket(self.integer("bucket").and_then(|bucket| u8::try_from(bucket).ok()).unwrap_or_default())
    }

    fn stripe(&self) -> Option<Stripe> {
        let stripe = StripeId(u16::try_from(self.integer("stripe")?).ok()?);
        Some(Stripe { stripe, number: self.integer("number")? })
    }
}

fn shown(error: impl Display) -> String {
    error.to_string()
}
