//! Limits of topics: the size of a batch, and whether a record needs a key. Known ahead, a message
//! that its topic rejects is never sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outbox_contract::backend::{Position, cloudevents};
use outbox_contract::{Failure, Message, Topic};
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, OwnedResourceSpecifier, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaError;

use crate::config::Config;

/// Time for which the limits of a topic are believed.
const FRESH: Duration = Duration::from_secs(300);
/// Maximum age of limits by which a message is rejected: an operator may just have changed them.
const SURE: Duration = Duration::from_secs(2);
/// Time limit for the broker to tell.
const ANSWER: Duration = Duration::from_secs(2);
/// The fewest bytes of a record batch with one record that are neither key, value nor header: 61 of
/// the batch, 8 of the record.
const FRAME: usize = 69;
/// The same of a header.
const HEADER: usize = 2;
/// Maximum size of the attributes of CloudEvents, but for the source and what the message counts
/// itself.
const ATTRIBUTES: usize = 512;

/// Limits of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The most bytes of a record batch.
    pub(crate) batch_bytes: usize,
    /// True if it is compacted: it takes no record without a key.
    needs_key: bool,
}

impl Limits {
    /// Why a message can never be taken. None: it may be.
    fn refuses(&self, message: &Message, source: &str, compresses: bool) -> Option<Failure> {
        let topic = &message.topic;
        if self.needs_key && message.key.is_none() {
            let words =
                format!("{topic} is compacted and accepts no record without a key: give the message one");
            return Some(Failure::new("not-valid", words));
        }
        // Only the client knows the size after compression.
        if compresses || message.bytes() + source.len() + ATTRIBUTES <= self.batch_bytes {
            return None;
        }
        let bytes = least_bytes(message, source);
        (bytes > self.batch_bytes).then(|| {
            let limit = self.batch_bytes;
            let words = format!(
                "at least {bytes} bytes as a record, over the {limit} of {topic}: raise its max.message.bytes, or send a reference"
            );
            Failure::new("message-too-large", words)
        })
    }
}

/// The fewest bytes that a message has as a record batch of its own, uncompressed.
fn least_bytes(message: &Message, source: &str) -> usize {
    let mut bytes = FRAME + message.payload.len() + message.key.as_ref().map_or(0, |key| key.as_str().len());
    if let Some(content_type) = cloudevents::content_type(message) {
        bytes += HEADER + cloudevents::CONTENT_TYPE.len() + content_type.len();
    }
    cloudevents::each(message, source, Position(0), cloudevents::KAFKA, |name, value| {
        bytes += HEADER + name.len() + value.len();
    });
    bytes
}

/// Known limits of topics. None: the broker does not tell, mostly as the right to ask
/// (`DescribeConfigs`) is missing.
type Known = HashMap<Topic, (Option<Limits>, Instant)>;

/// Asks the broker what topics take.
#[derive(Debug)]
pub(crate) struct TopicLimits {
    config: Arc<Config>,
    known: Mutex<Known>,
}

impl TopicLimits {
    pub(crate) fn new(config: &Arc<Config>) -> Self {
        Self { config: Arc::clone(config), known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the limits of a topic, as far as they are known.
    pub(crate) fn of(&self, topic: &Topic) -> Option<Limits> {
        self.known().get(topic)?.0
    }

    /// A topic takes less than it said: it is asked again. One that tells nothing is not asked more
    /// often for that.
    pub(crate) fn forget(&self, topic: &Topic) {
        let mut known = self.known();
        if known.get(topic).is_some_and(|(limits, _)| limits.is_some()) {
            known.remove(topic);
        }
    }

    /// Asks what these topics take, where that is not known.
    pub(crate) async fn learn<'t>(&self, topics: impl IntoIterator<Item = &'t Topic>) {
        let unknown: Vec<Topic> = {
            let known = self.known();
            let is_known = |topic: &&Topic| known.get(*topic).is_some_and(|(_, at)| at.elapsed() < FRESH);
            topics.into_iter().filter(|topic| !is_known(topic)).cloned().collect()
        };
        if !unknown.is_empty() {
            self.ask(&unknown).await;
        }
    }

    /// Why a message can never be taken by its topic, by what the topic says now. None: it may be.
    pub(crate) async fn refusal(&self, message: &Message, source: &str) -> Option<Failure> {
        let compresses = self.config.compresses();
        let (limits, at) = self.known().get(&message.topic).copied()?;
        let refusal = limits?.refuses(message, source, compresses)?;
        if at.elapsed() < SURE {
            return Some(refusal);
        }
        self.ask(std::slice::from_ref(&message.topic)).await;
        self.of(&message.topic)?.refuses(message, source, compresses)
    }

    async fn ask(&self, topics: &[Topic]) {
        let told = self.describe(topics).await;
        let mut known = self.known();
        let now = Instant::now();
        for topic in topics {
            known.insert(topic.clone(), (told.get(topic.as_str()).copied(), now));
        }
    }

    async fn describe(&self, topics: &[Topic]) -> HashMap<String, Limits> {
        let admin: Result<AdminClient<DefaultClientContext>, KafkaError> = self.config.admin().create();
        let Ok(admin) = admin else { return HashMap::new() };
        let options = AdminOptions::new().request_timeout(Some(ANSWER));
        let asked: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic.as_str())).collect();
        let answers = admin.describe_configs(&asked, &options);
        let answers = tokio::time::timeout(ANSWER, answers).await;
        // The end of a client blocks.
        drop(tokio::task::spawn_blocking(move || drop(admin)));
        let answers = answers.ok().and_then(Result::ok).unwrap_or_default();
        answers.into_iter().flatten().filter_map(|resource| limits_of(&resource)).collect()
    }
}

fn limits_of(resource: &ConfigResource) -> Option<(String, Limits)> {
    let OwnedResourceSpecifier::Topic(topic) = &resource.specifier else { return None };
    let value = |name| resource.get(name).and_then(|entry| entry.value.as_deref());
    let batch_bytes = value("max.message.bytes")?.parse().ok()?;
    let needs_key = value("cleanup.policy").is_some_and(|policy| policy.contains("compact"));
    Some((topic.clone(), Limits { batch_bytes, needs_key }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: usize) -> Message {
        Message::new("orders", "x").unwrap().with_payload(vec![0; bytes])
    }

    #[test]
    fn what_can_not_be_taken_is_refused_with_the_limit() {
        let limits = Limits { batch_bytes: 1_000, needs_key: false };
        assert_eq!(limits.refuses(&message(100), "/test", false), None);
        let refusal = limits.refuses(&message(1_000), "/test", false).unwrap();
        assert!(refusal.message.contains("over the 1000 of orders"), "{refusal:?}");
        assert_eq!(limits.refuses(&message(1_000), "/test", true), None, "compressed it may be taken");
        let least = least_bytes(&message(1), "/test") - 1;
        assert_eq!(limits.refuses(&message(1_000 - least), "/test", false), None);
        assert!(limits.refuses(&message(1_001 - least), "/test", false).is_some());
    }

    #[test]
    fn a_compacted_topic_takes_no_message_without_a_key() {
        let limits = Limits { batch_bytes: 1_000_000, needs_key: true };
        assert!(limits.refuses(&message(1), "/test", false).unwrap().message.contains("compacted"));
        assert_eq!(limits.refuses(&message(1).with_key("a").unwrap(), "/test", false), None);
    }
}
