//! Record of a message on Kafka: CloudEvents in binary mode, the key as the record's key.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use outbox_contract::backend::cloudevents::{self, RawRecord};
use outbox_contract::backend::{Origin, Stored, Undecodable};
use outbox_contract::{Key, Message, Topic};
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

    /// None for a tombstone: a topic that is compacted forgets the key by it.
    pub(crate) fn payload(&self) -> Option<&[u8]> {
        let message = &self.stored.message;
        (!message.is_tombstone()).then_some(&*message.payload)
    }

    pub(crate) fn message(&self) -> &Message {
        &self.stored.message
    }

    /// Returns its size in bytes, about.
    pub(crate) fn bytes(&self) -> usize {
        self.stored.message.bytes()
    }

    /// Destination.
    pub(crate) fn partition(&self) -> Partition {
        (self.topic().clone(), self.partition)
    }

    /// The headers, for the client to take over.
    pub(crate) fn headers(&self) -> OwnedHeaders {
        let Stored { message, position, .. } = &*self.stored;
        let all = OwnedHeaders::new_with_capacity(1 + cloudevents::MAX_ATTRIBUTES + message.headers.len());
        // Each step takes them and gives them back.
        let mut all = Some(match cloudevents::content_type(message) {
            Some(value) => all.insert(Header { key: cloudevents::CONTENT_TYPE, value: Some(value) }),
            None => all,
        });
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
    let payload = Bytes::copy_from_slice(record.payload().unwrap_or_default());
    // The broker's ordering key is the key of handling too, whatever bytes other producers wrote.
    let mut raw = RawRecord::new(cloudevents::KAFKA, payload)
        .with_key(record.key())
        .with_null(record.payload().is_none());
    let headers = record.headers();
    for at in 0..headers.map_or(0, |headers| headers.count()) {
        // The binding panics at a header whose name is not text, and anybody may write one.
        match catch_unwind(AssertUnwindSafe(|| headers.and_then(|headers| headers.try_get(at)))) {
            Ok(Some(Header { key, value })) => raw.push(key.as_bytes(), value.unwrap_or_default()),
            Ok(None) => {}
            Err(_) => raw.note("a header whose name is not UTF-8 is left out"),
        }
    }
    match raw.message(topic) {
        Ok((message, origin)) => (Ok(message), origin),
        Err(undecodable) => {
            let place = format!("kafka {topic}/{}@{}", record.partition(), record.offset());
            (Err(undecodable.at(place)), None)
        }
    }
}
