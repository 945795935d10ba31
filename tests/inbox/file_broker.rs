//! A broker that outlives its consumers: one file with all messages, one with the numbers of the
//! acknowledged ones. A process that subscribes receives every unacknowledged message, in order.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use outbox_contract::backend::{
    Deliveries, Delivery, Outcomes, PublishBatch, Received, Subscription, Tag, Unit,
};
use outbox_contract::{Message, MessageId, Rejection, Transport, TransportError, async_trait};
use tokio::sync::Notify;

/// A message of the file: its key, and its place within the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) id: uuid::Uuid,
    pub(crate) key: String,
}

/// The broker in a folder.
#[derive(Clone)]
pub(crate) struct FileBroker {
    folder: PathBuf,
}

impl FileBroker {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    fn messages_file(&self) -> PathBuf {
        self.folder.join("messages")
    }

    fn acknowledged_file(&self) -> PathBuf {
        self.folder.join("acknowledged")
    }

    /// Appends messages, in this order. A repeat has the id of another.
    pub(crate) fn send(&self, messages: &[Sent]) {
        let lines: String = messages.iter().map(|sent| format!("{} {}\n", sent.id, sent.key)).collect();
        fs::write(self.messages_file(), lines).unwrap();
        fs::write(self.acknowledged_file(), "").unwrap();
    }

    fn sent(&self) -> Vec<Sent> {
        let lines = fs::read_to_string(self.messages_file()).unwrap();
        let sent = lines.lines().filter_map(|line| line.split_once(' '));
        sent.map(|(id, key)| Sent { id: id.parse().unwrap(), key: key.to_owned() }).collect()
    }

    fn acknowledged(&self) -> BTreeSet<usize> {
        let lines = fs::read_to_string(self.acknowledged_file()).unwrap();
        lines.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Returns true if everything is acknowledged.
    pub(crate) fn is_done(&self) -> bool {
        self.acknowledged().len() == self.sent().len()
    }
}

#[async_trait]
impl Transport for FileBroker {
    fn name(&self) -> &'static str {
        "files"
    }

    async fn check(&self) -> Result<(), TransportError> {
        Ok(())
    }

    fn validate(&self, _message: &Message) -> Result<(), Rejection> {
        Ok(())
    }

    async fn publish(&self, _batch: PublishBatch, _outcomes: &Outcomes) {}

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        let unit = Unit { topic: subscription.topics[0].clone(), number: 0 };
        let acknowledged = self.acknowledged();
        let waiting =
            self.sent().into_iter().enumerate().filter(|(number, _)| !acknowledged.contains(number));
        let deliveries = waiting.map(|(number, sent)| {
            let message = Message::new(unit.topic.clone(), "order.placed")
                .unwrap()
                .with_id(MessageId::from_uuid(sent.id))
                .with_key(&sent.key)
                .unwrap();
            let tag = Tag { unit: unit.clone(), incarnation: 1, number: number as u64 };
            Delivery::new(tag, Ok(message), None)
        });
        let file = OpenOptions::new().append(true).open(self.acknowledged_file()).unwrap();
        Ok(Box::new(FileDeliveries {
            waiting: Mutex::new(deliveries.collect()),
            acknowledged: Mutex::new(file),
            drained: Notify::new(),
        }))
    }

    async fn close(&self) {}
}

struct FileDeliveries {
    waiting: Mutex<Vec<Delivery>>,
    acknowledged: Mutex<File>,
    drained: Notify,
}

#[async_trait]
impl Deliveries for FileDeliveries {
    async fn next(&self) -> Result<Received, TransportError> {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        if waiting.is_empty() {
            self.drained.notified().await;
            return Ok(Received::Ended);
        }
        Ok(Received::Deliveries(waiting))
    }

    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError> {
        // In one write: a process's completed writes survive its kill.
        let lines: String = tags.iter().map(|tag| format!("{}\n", tag.number)).collect();
        self.acknowledged.lock().unwrap().write_all(lines.as_bytes()).unwrap();
        Ok(())
    }

    async fn pause(&self, _units: &[Unit]) -> Result<(), TransportError> {
        Ok(())
    }

    async fn resume(&self, _units: &[Unit]) -> Result<(), TransportError> {
        Ok(())
    }

    async fn drain(&self) -> Result<(), TransportError> {
        self.drained.notify_one();
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<(), TransportError> {
        Ok(())
    }
}
