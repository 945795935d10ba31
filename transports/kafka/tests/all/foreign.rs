//! Records of other producers: read as far as it goes, and noted where it is not as it was sent.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what these tests write is small"
)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use outbox_contract::backend::{ADAPTED, Received, Subscription, Transport};
use outbox_contract::{Message, Topic};
use outbox_servers::{Kafka, OrSkip};
use outbox_transport_kafka::KafkaTransport;

use crate::support::{PATIENCE, fresh_topic};

/// A record as bytes: key, headers, value.
struct Foreign<'r> {
    key: Option<&'r [u8]>,
    headers: Vec<(Vec<u8>, &'r [u8])>,
}

impl<'r> Foreign<'r> {
    fn event(more: &[(&[u8], &'r [u8])]) -> Self {
        let attributes: [(&str, &[u8]); 4] =
            [("specversion", b"1.0"), ("id", b"17"), ("source", b"/legacy"), ("type", b"x")];
        let attributes = attributes.map(|(name, value)| (format!("ce_{name}").into_bytes(), value));
        let more = more.iter().map(|(name, value)| (name.to_vec(), *value));
        Self { key: None, headers: attributes.into_iter().chain(more).collect() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut record = vec![0];
        // Deltas of the time and of the offset.
        record.extend([0, 0]);
        match self.key {
            Some(key) => counted(&mut record, key),
            None => varint(&mut record, -1),
        }
        counted(&mut record, b"{}");
        varint(&mut record, self.headers.len() as i64);
        for (name, value) in &self.headers {
            counted(&mut record, name);
            counted(&mut record, value);
        }
        let mut bytes = Vec::new();
        counted(&mut bytes, &record);
        bytes
    }

    /// Writes it to the only partition of a topic. By hand: the client library writes no name that
    /// is not UTF-8.
    fn send(&self, brokers: &str, topic: &Topic) {
        let mut covered = Vec::new();
        covered.extend(0_i16.to_be_bytes());
        covered.extend(0_i32.to_be_bytes());
        covered.extend([0_i64; 2].map(i64::to_be_bytes).concat());
        covered.extend((-1_i64).to_be_bytes());
        covered.extend((-1_i16).to_be_bytes());
        covered.extend((-1_i32).to_be_bytes());
        covered.extend(1_i32.to_be_bytes());
        covered.extend(self.bytes());
        let mut batch = Vec::new();
        batch.extend(0_i64.to_be_bytes());
        batch.extend((covered.len() as i32 + 9).to_be_bytes());
        batch.extend((-1_i32).to_be_bytes());
        batch.push(2);
        batch.extend(crc32c(&covered).to_be_bytes());
        batch.extend(covered);

        // Produce, version 7, by a client without a name; no transaction; confirmed by all within a
        // minute.
        let mut request = Vec::new();
        request.extend([0, 7].map(i16::to_be_bytes).concat());
        request.extend(1_i32.to_be_bytes());
        request.extend([-1, -1, -1].map(i16::to_be_bytes).concat());
        request.extend(60_000_i32.to_be_bytes());
        request.extend(1_i32.to_be_bytes());
        request.extend((topic.as_str().len() as i16).to_be_bytes());
        request.extend(topic.as_str().as_bytes());
        request.extend([1, 0, batch.len() as i32].map(i32::to_be_bytes).concat());
        request.extend(batch);

        let mut socket = TcpStream::connect(brokers).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(&(request.len() as i32).to_be_bytes()).unwrap();
        socket.write_all(&request).unwrap();
        let mut size = [0; 4];
        socket.read_exact(&mut size).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(size) as usize];
        socket.read_exact(&mut answer).unwrap();
        // Behind: correlation, topics, the topic's name, partitions, the partition.
        let at = 4 + 4 + 2 + topic.as_str().len() + 4 + 4;
        assert_eq!(answer[at..at + 2], [0, 0], "the broker took it");
    }
}

fn varint(out: &mut Vec<u8>, value: i64) {
    let mut left = ((value << 1) ^ (value >> 63)) as u64;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

fn counted(out: &mut Vec<u8>, bytes: &[u8]) {
    varint(out, bytes.len() as i64);
    out.extend(bytes);
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
    !bytes.iter().fold(!0, |crc: u32, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// Writes records, and receives them as messages.
async fn received(records: &[Foreign<'_>]) -> Option<Vec<Message>> {
    let server = Kafka::newest().shared().or_skip()?;
    let topic = fresh_topic(&server.url(), 1, &[]).await;
    records.iter().for_each(|record| record.send(&server.url(), &topic));
    let transport = KafkaTransport::builder(server.url()).build().unwrap();
    let subscription = Subscription::new("reader", [topic]).unwrap();
    let deliveries = transport.subscribe(subscription).await.unwrap();
    let mut messages = Vec::new();
    while messages.len() < records.len() {
        let next = tokio::time::timeout(PATIENCE, deliveries.next()).await.unwrap().unwrap();
        let Received::Deliveries(received) = next else { continue };
        messages.extend(received.into_iter().map(|delivery| delivery.message.unwrap()));
    }
    Some(messages)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_program_writes_is_read_as_far_as_it_goes() {
    let long = [b'x'; 10_000];
    let record = Foreign::event(&[
        (b"bytes", b"\xff\x07"),
        (b"lines", b"two\nlines"),
        (b"long", &long),
        (b"", b"nameless"),
        (b"odd\xe9name", b"not UTF-8"),
        (b"content-type", b""),
        (b"ce_schemaversion", b"1.2.0"),
        (b"ce_subject", &long[..300]),
        (b"tenant", b"acme"),
    ]);
    let Some(messages) = received(&[record]).await else { return };
    let [message] = &messages[..] else { panic!("{messages:?}") };
    let header = |name| message.headers.get(name).unwrap();
    assert_eq!((header("bytes"), header("lines"), header("tenant")), ("\\xff\\x07", "two\\nlines", "acme"));
    let own = message.headers.iter().filter(|(name, _)| !name.starts_with("ce-"));
    assert_eq!((header("long").len(), own.count()), (8_192, 5));
    assert_eq!((message.schema_version, &*message.content_type), (1, "application/octet-stream"));
    assert_eq!(message.key, Some(outbox_contract::Key::of_bytes(&long[..300])));
    let note = header(ADAPTED);
    for words in ["bytes", "lines", "long", "\"\" is left out", "name is not UTF-8", "1.2.0"] {
        assert!(note.contains(words), "{words}: {note}");
    }
}

/// Of the attribute and of the record itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_whatever_bytes_it_is() {
    let binary: [&[u8]; 3] = [b"\0\0\0\x07", b"\xff", b"a\nb"];
    let named = binary.map(|key| Foreign::event(&[(b"ce_partitionkey", key), (b"ce_subject", b"line-1")]));
    let own = binary.map(|key| Foreign { key: Some(key), ..Foreign::event(&[(b"ce_subject", b"line-1")]) });
    let records: Vec<Foreign<'_>> = named.into_iter().chain(own).collect();
    let Some(messages) = received(&records).await else { return };
    let keys: Vec<String> = messages.into_iter().map(|message| message.key.unwrap().to_string()).collect();
    assert_eq!(keys, ["0x00000007", "0xff", "0x610a62", "0x00000007", "0xff", "0x610a62"]);
}
