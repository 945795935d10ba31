//! How a message stands on Kafka: CloudEvents in binary mode, the key as the record's key.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use outbox_contract::fetch::Stored;
use outbox_contract::subscription::{Origin, Undecodable};
use outbox_contract::{Key, KeyId, Message, Topic, cloudevents};
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message as _, OwnedHeaders};

use crate::gapless::Partition;

/// A message, ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    stored: Arc<Stored>,
    source: Arc<str>,
    pub(crate) partition: i32,
}

impl Record {
    pub(crate) const fn new(stored: Arc<Stored>, source: Arc<str>, partition: i32) -> Self {
        Self { stored, source, partition }
    }

    pub(crate) fn topic(&self) -> &Topic {
        &self.stored.message.topic
    }

    /// None for a message without a key. A topic that is compacted takes no such record.
    pub(crate) fn key(&self) -> Option<&Key> {
        self.stored.message.key.as_ref()
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.stored.message.payload
    }

    /// What it is ordered by.
    pub(crate) fn key_id(&self) -> KeyId {
        self.stored.message.key_id()
    }

    /// What it has in bytes, about.
    pub(crate) fn bytes(&self) -> usize {
        self.stored.message.bytes()
    }

    /// Where it goes.
    pub(crate) fn partition(&self) -> Partition {
        (self.topic().clone(), self.partition)
    }

    /// The headers, for the client to take over.
    pub(crate) fn headers(&self) -> OwnedHeaders {
        let Stored { message, position, .. } = &*self.stored;
        let all = OwnedHeaders::new_with_capacity(1 + cloudevents::MOST_ATTRIBUTES + message.headers.len());
        let value: &str = &message.content_type;
        // Each step takes them and gives them back.
        let mut all = Some(all.insert(Header { key: cloudevents::CONTENT_TYPE, value: Some(value) }));
        cloudevents::each(message, &self.source, *position, cloudevents::KAFKA, |key, value| {
            all = all.take().map(|headers| headers.insert(Header { key, value: Some(value) }));
        });
        all.unwrap_or_default()
    }
}

/// Reads a record.
pub(crate) fn read(
    record: &BorrowedMessage<'_>,
    topic: &Topic,
) -> (Result<Message, Undecodable>, Option<Origin>) {
    match decode(record, topic) {
        Ok((message, origin)) => (Ok(message), origin),
        Err(mut undecodable) => {
            undecodable = undecodable.at(format!("kafka {topic}/{}@{}", record.partition(), record.offset()));
            if let Some(key) = record.key() {
                undecodable = undecodable.with_key(Bytes::copy_from_slice(key));
            }
            (Err(undecodable), None)
        }
    }
}

fn decode(record: &BorrowedMessage<'_>, topic: &Topic) -> Result<(Message, Option<Origin>), Undecodable> {
    let payload = Bytes::copy_from_slice(record.payload().unwrap_or_default());
    // The binding panics at a header whose name is not text, and anybody may write one.
    let Ok(headers) = catch_unwind(AssertUnwindSafe(|| texts(record))) else {
        return Err(Undecodable::new("a header's name is not UTF-8", payload, Vec::new()));
    };
    let (named, rest): (Vec<_>, Vec<_>) =
        headers.into_iter().partition(|(name, _)| name.eq_ignore_ascii_case(cloudevents::CONTENT_TYPE));
    let content_type = named.first().map(|(_, value)| value.as_str());
    let pairs = rest.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    // What the broker orders by is what it is handled in the order of, whatever bytes other producers took.
    cloudevents::decode_keyed(pairs, content_type, payload, topic, cloudevents::KAFKA, record.key())
}

/// The headers of a record, as far as their values are text.
fn texts(record: &BorrowedMessage<'_>) -> Vec<(String, String)> {
    let headers = record.headers().into_iter().flat_map(|headers| headers.iter());
    let text = |value: Option<&[u8]>| std::str::from_utf8(value.unwrap_or_default()).ok().map(str::to_owned);
    headers.filter_map(|header| Some((header.key.to_owned(), text(header.value)?))).collect()
}
