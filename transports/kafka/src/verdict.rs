//! What a report means for a message: the decisions, without the waiting.

use std::collections::BTreeSet;

use outbox_contract::backend::{Outcome, Unavailable};
use outbox_contract::{Failure, KeyId};
use rdkafka::types::RDKafkaErrorCode as Code;

use crate::flight::Heard;

/// What an error code says of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The broker may not want this message; or another one in the same record batch, which is taken or rejected as a whole. Only a
    /// message that was sent alone knows.
    MayBeRejected(Failure),
    /// Its topic, or all of the broker, is not to be had.
    Unavailable(Unavailable, Failure),
    /// It may or may not be in the log.
    Unknown(Failure),
}

/// What a code means. The words name the topic.
pub(crate) fn meaning(code: Code, topic: &str) -> Meaning {
    let failure = |class, words: String| Failure::new(class, words);
    let said = || format!("the broker said {code}");
    match code {
        Code::MessageSizeTooLarge => Meaning::MayBeRejected(failure(
            "message-too-large",
            format!("larger than {topic} takes: raise its max.message.bytes, or send a reference"),
        )),
        Code::InvalidRecord | Code::InvalidTimestamp | Code::PolicyViolation | Code::InvalidMessageSize => {
            Meaning::MayBeRejected(failure(
                "not-valid",
                format!("{topic} does not take this message: {}", said()),
            ))
        }
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition | Code::InvalidTopic => {
            Meaning::Unavailable(Unavailable::Topic, missing(topic))
        }
        Code::TopicAuthorizationFailed => Meaning::Unavailable(
            Unavailable::Topic,
            failure(
                "not-authorised",
                format!("not authorised to write to {topic}: grant Write and Describe on it"),
            ),
        ),
        Code::NotEnoughReplicas | Code::NotEnoughReplicasAfterAppend | Code::ISRInsufficient => {
            Meaning::Unavailable(Unavailable::Topic, not_enough_replicas(topic))
        }
        Code::ClusterAuthorizationFailed | Code::SaslAuthenticationFailed | Code::Authentication => {
            Meaning::Unavailable(Unavailable::Route, refused(&said()))
        }
        Code::AllBrokersDown | Code::Resolve => Meaning::Unavailable(
            Unavailable::Route,
            failure("broker-unavailable", format!("no broker can be reached: {code}")),
        ),
        code => Meaning::Unknown(failure("unconfirmed", format!("not confirmed: {code}"))),
    }
}

/// A user that may do nothing.
pub(crate) fn refused(why: &str) -> Failure {
    let words = format!(
        "the broker refuses this user: {why}; look at its credentials, and grant Write on its topics"
    );
    Failure::new("not-authorised", words)
}

/// A topic that is not there.
pub(crate) fn missing(topic: &str) -> Failure {
    Failure::new("topic-missing", format!("the topic {topic} is not on the broker: create it"))
}

/// Too few replicas are in step.
pub(crate) fn not_enough_replicas(topic: &str) -> Failure {
    Failure::new(
        "not-enough-replicas",
        format!(
            "fewer replicas of {topic} are in step than its min.insync.replicas asks for: look at its brokers"
        ),
    )
}

/// What became of the messages of a batch, key by key: the first that is not delivered cuts its key, and what follows of it is blocked.
#[derive(Debug, Default)]
pub(crate) struct Cuts(BTreeSet<KeyId>);

impl Cuts {
    /// Whether everything was delivered so far.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an earlier message of the key was not delivered.
    pub(crate) fn has(&self, key: &KeyId) -> bool {
        self.0.contains(key)
    }

    /// A message of the key was not delivered.
    pub(crate) fn cut(&mut self, key: &KeyId) {
        self.0.insert(key.clone());
    }
}

/// Whether a message was handed over, and was given up as nothing came of it.
pub(crate) const fn is_silence(heard: Heard) -> bool {
    matches!(heard, Heard::Nothing | Heard::Failed(Code::PurgeQueue | Code::PurgeInflight))
}

/// What is said of a message that waited for others of its partition, of which nothing was heard.
pub(crate) fn behind_silence(partition: i32, topic: &str) -> Failure {
    let words =
        format!("partition {partition} of {topic} does not answer: nothing was heard of what went ahead");
    Failure::new("unconfirmed", words)
}

/// What is said of a message whose key is whole so far.
pub(crate) fn first_of(heard: Heard, topic: &str) -> Result<Outcome, Meaning> {
    match heard {
        Heard::Acknowledged => Ok(Outcome::Delivered),
        // It waited for another: the lead of its partition, those that are under way to it, or a producer that is closed.
        Heard::NotSent => Ok(Outcome::Blocked),
        Heard::Nothing => Err(Meaning::Unknown(Failure::new(
            "unconfirmed",
            "handed over, and nothing was heard of it in time",
        ))),
        Heard::WithoutOffset => Err(Meaning::Unknown(Failure::new(
            "unconfirmed",
            "the broker named no offset: it may have lost it",
        ))),
        Heard::Failed(code) => Err(meaning(code, topic)),
    }
}
