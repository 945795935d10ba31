//! Records of other programs that are no events: a change feed, a topic of another framework. A
//! mapper makes messages of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use outbox_contract::backend::Undecodable;
use outbox_contract::{Bytes, Headers, Key, Message, Topic};

use super::undecodable::keep;
use crate::error_text::{of_panic, with_causes};
use crate::mediator::HandlerError;

/// The type of what a mapper leaves out.
pub(crate) const IGNORED: &str = "outbox.ignored";

/// Content type of a payload that comes without one.
const UNKNOWN_CONTENT: &str = "application/octet-stream";

/// A record that is no CloudEvent, as the broker delivered it, for
/// [`InboxBuilder::map_records`](crate::InboxBuilder::map_records).
///
/// ```
/// # mod outbox { pub use outbox_contract::*; pub use outbox_engine::*; }
/// # use outbox::{ForeignRecord, HandlerError, Message};
/// fn typed(record: &ForeignRecord<'_>) -> Result<Option<Message>, HandlerError> {
///     let event_type = record.header("eventType").ok_or("the header eventType is missing")?;
///     Ok(Some(record.message(event_type)))
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ForeignRecord<'r> {
    topic: &'r Topic,
    record: &'r Undecodable,
}

impl<'r> ForeignRecord<'r> {
    pub(crate) const fn new(topic: &'r Topic, record: &'r Undecodable) -> Self {
        Self { topic, record }
    }

    /// Returns the topic from which it came.
    #[must_use]
    pub fn topic(&self) -> &'r Topic {
        self.topic
    }

    /// Returns its key at the broker, whatever bytes it is.
    #[must_use]
    pub fn key(&self) -> Option<&'r [u8]> {
        self.record.key.as_deref()
    }

    /// Returns a header by its exact name: the first one, if there are several. Bytes that are not
    /// UTF-8 are escaped (`\xff`).
    ///
    /// The content type is the header `content-type` on every broker; the property `type` of
    /// RabbitMQ is the header `type`.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'r str> {
        self.headers().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Iterates over its headers, as the broker had them. On Redis these are the fields of the
    /// entry, except `data`.
    pub fn headers(&self) -> impl Iterator<Item = (&'r str, &'r str)> + use<'r> {
        self.record.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns its payload. Empty as well where it is [null](Self::is_null).
    #[must_use]
    pub fn payload(&self) -> &'r Bytes {
        &self.record.payload
    }

    /// Returns true if its value is null (Kafka), as that of a tombstone.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.record.is_null
    }

    /// Returns its location on the broker, if it has one: `kafka orders/3@1234`, for example.
    #[must_use]
    pub fn place(&self) -> Option<&'r str> {
        self.record.place.as_deref()
    }

    /// Returns the reason why it is no event.
    #[must_use]
    pub fn reason(&self) -> &'r str {
        &self.record.reason
    }

    /// Creates a message of this type with all that the record has: topic, [key](Key::of_bytes),
    /// payload, content type and headers. A null value makes it a
    /// [tombstone](Message::is_tombstone). Use the methods of [`Message`] to change it.
    ///
    /// Its id is computed from the record's location and content, so a redelivery is a duplicate. A
    /// record that is written twice is two messages: if it has an id of its own, set
    /// `with_id(MessageId::of_event(source, id))`.
    #[must_use]
    pub fn message(&self, event_type: impl Into<Arc<str>>) -> Message {
        let mut content_type = UNKNOWN_CONTENT;
        let mut message = Message::of(self.record.identity(self.topic), self.topic.clone(), event_type)
            .with_payload(self.record.payload.clone());
        message.key = self.key().map(Key::of_bytes);
        for (name, value) in self.headers() {
            if name.eq_ignore_ascii_case("content-type") {
                content_type = value;
            } else if !Headers::is_reserved(name) {
                keep(&mut message, name, value);
            }
        }
        message = message.with_content_type(content_type);
        if self.is_null() { message.into_tombstone() } else { message }
    }
}

/// Makes messages of records.
pub(crate) type Mapper =
    Arc<dyn Fn(&ForeignRecord<'_>) -> Result<Option<Message>, HandlerError> + Send + Sync>;

/// The message that a mapper makes of a record; or the record, with the reason why there is none.
pub(crate) fn map(mapper: &Mapper, mut record: Undecodable, topic: &Topic) -> Result<Message, Undecodable> {
    let foreign = ForeignRecord::new(topic, &record);
    // A panic would end the subscription, and come again with the record.
    let mapped = catch_unwind(AssertUnwindSafe(|| mapper(&foreign)));
    let reason = match mapped {
        Ok(Ok(Some(message))) => match message.validate() {
            Ok(()) => return Ok(message),
            Err(error) => format!("the mapper made an invalid message: {error}"),
        },
        Ok(Ok(None)) => return Ok(foreign.message(IGNORED).with_payload(Bytes::new())),
        Ok(Err(error)) => format!("the mapper refused the record: {}", with_causes(&*error)),
        Err(panic) => format!("the mapper {}", of_panic(&*panic)),
    };
    record.reason = format!("{reason} (it is not a CloudEvent either: {})", record.reason);
    Err(record)
}

#[cfg(test)]
mod tests {
    use outbox_contract::MessageId;

    use super::*;

    fn record() -> Undecodable {
        let headers = [
            ("eventType", "order.placed"),
            ("content-type", "application/json"),
            ("ce_id", "1"),
            ("a", "b\nc"),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        Undecodable::new("no id", Bytes::from_static(b"{}"), headers)
            .with_key(b"\x00\x07")
            .at("kafka orders/0@7")
    }

    fn topic() -> Topic {
        Topic::new("orders").unwrap()
    }

    fn mapped(
        mapper: impl Fn(&ForeignRecord<'_>) -> Result<Option<Message>, HandlerError> + Send + Sync + 'static,
    ) -> Result<Message, Undecodable> {
        let mapper: Mapper = Arc::new(mapper);
        map(&mapper, record(), &topic())
    }

    #[test]
    fn a_mapper_makes_a_message_of_what_the_record_has() {
        let message = mapped(|record| {
            let event_type = record.header("eventType").ok_or("it has no type")?;
            Ok(Some(record.message(event_type)))
        });
        let message = message.unwrap();
        assert_eq!((&*message.event_type, &*message.content_type), ("order.placed", "application/json"));
        assert_eq!(
            (message.key.as_ref().map(Key::as_str), &message.payload[..]),
            (Some("0x0007"), &b"{}"[..])
        );
        assert_eq!(
            (message.headers.get("eventType"), message.headers.get("a")),
            (Some("order.placed"), Some("b\\nc"))
        );
        assert_eq!((message.headers.len(), message.id), (2, record().identity(&topic())));
        assert!(message.validate().is_ok());
    }

    #[test]
    fn a_record_has_the_id_that_its_mapper_gives_it() {
        let id = |source: &'static str| {
            mapped(move |record| Ok(Some(record.message("x").with_id(MessageId::of_event(source, "17")))))
                .unwrap()
                .id
        };
        assert_eq!(id("/legacy"), id("/legacy"));
        assert_ne!(id("/legacy"), id("/other"));
    }

    #[test]
    fn what_a_mapper_leaves_out_is_ignored_and_what_it_refuses_says_why() {
        assert_eq!(&*mapped(|_| Ok(None)).unwrap().event_type, IGNORED);
        for (refused, reason) in [
            (mapped(|record| Err(format!("no schema of {}", record.topic()).into())), "no schema of orders"),
            (mapped(|record| Ok(Some(record.message("")))), "invalid message: the event type is empty"),
            (mapped(|_| panic!("a bug")), "the mapper panicked: a bug;"),
        ] {
            let refused = refused.unwrap_err();
            assert!(
                refused.reason.contains(reason) && refused.reason.contains("no id"),
                "{}",
                refused.reason
            );
            assert_eq!((refused.payload, refused.place), (record().payload, record().place));
        }
    }

    #[test]
    fn a_null_value_is_a_tombstone() {
        let mut record = record();
        (record.payload, record.is_null) = (Bytes::new(), true);
        let mapper: Mapper = Arc::new(|record| Ok(Some(record.message("x"))));
        assert!(map(&mapper, record, &topic()).unwrap().is_tombstone());
    }
}
