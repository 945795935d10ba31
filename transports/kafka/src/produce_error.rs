//! ProduceError of a report for a message: the decisions, without the waiting.

use outbox_contract::Failure;
use outbox_contract::backend::{Outcome, Unavailable};
use rdkafka::types::RDKafkaErrorCode as Code;

use crate::flight::Heard;

/// ProduceError of an error code for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProduceError {
    /// The broker may not want this message; or another one in the same record batch, which is
    /// taken or rejected as a whole. Only a message that was sent alone knows.
    MayBeRejected(Failure),
    /// Its topic, or the whole broker, is unavailable.
    Unavailable(Unavailable, Failure),
    /// It may or may not be in the log.
    Unknown(Failure),
}

/// Returns the meaning of a code. The words name the topic.
pub(crate) fn meaning(code: Code, topic: &str) -> ProduceError {
    let failure = |class, words: String| Failure::new(class, words);
    let said = || format!("the broker answered {code}");
    match code {
        Code::MessageSizeTooLarge => ProduceError::MayBeRejected(failure(
            "message-too-large",
            format!("larger than {topic} takes: raise its max.message.bytes, or send a reference"),
        )),
        Code::InvalidRecord | Code::InvalidTimestamp | Code::PolicyViolation | Code::InvalidMessageSize => {
            ProduceError::MayBeRejected(failure(
                "not-valid",
                format!("the broker rejected this message for {topic}: {}", said()),
            ))
        }
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition | Code::InvalidTopic => {
            ProduceError::Unavailable(Unavailable::Topic, missing(topic))
        }
        Code::TopicAuthorizationFailed => ProduceError::Unavailable(
            Unavailable::Topic,
            failure(
                "not-authorized",
                format!("not authorized to write to {topic}: grant Write and Describe on it"),
            ),
        ),
        Code::NotEnoughReplicas | Code::NotEnoughReplicasAfterAppend | Code::ISRInsufficient => {
            ProduceError::Unavailable(Unavailable::Topic, not_enough_replicas(topic))
        }
        Code::ClusterAuthorizationFailed | Code::SaslAuthenticationFailed | Code::Authentication => {
            ProduceError::Unavailable(Unavailable::Route, refused(&said()))
        }
        Code::AllBrokersDown | Code::Resolve => ProduceError::Unavailable(
            Unavailable::Route,
            failure(
                "broker-unavailable",
                format!("no broker can be reached ({code}); check the addresses, and that the brokers run"),
            ),
        ),
        code => ProduceError::Unknown(failure("unconfirmed", format!("not confirmed: {code}"))),
    }
}

/// A user that may do nothing.
pub(crate) fn refused(why: &str) -> Failure {
    let words = format!(
        "authentication or authorization failed: {why}; check the credentials, and grant Write on the topics"
    );
    Failure::new("not-authorized", words)
}

/// A topic that is not there.
pub(crate) fn missing(topic: &str) -> Failure {
    Failure::new("topic-missing", format!("the topic {topic} does not exist; create it"))
}

/// Too few replicas are in step.
pub(crate) fn not_enough_replicas(topic: &str) -> Failure {
    Failure::new(
        "not-enough-replicas",
        format!("fewer replicas of {topic} are in sync than its min.insync.replicas; check its brokers"),
    )
}

/// Returns true if a message was handed over, and was given up as nothing came of it.
pub(crate) const fn is_silence(heard: Heard) -> bool {
    matches!(heard, Heard::Nothing | Heard::Failed(Code::PurgeQueue | Code::PurgeInflight))
}

/// Failure of a message that waited for others of its partition, of which nothing was heard.
pub(crate) fn behind_silence(partition: i32, topic: &str) -> Failure {
    let words = format!("partition {partition} of {topic} does not answer: earlier messages are unconfirmed");
    Failure::new("unconfirmed", words)
}

/// Returns the outcome of a message whose key is whole so far.
pub(crate) fn first_of(heard: Heard, topic: &str) -> Result<Outcome, ProduceError> {
    match heard {
        Heard::Acknowledged => Ok(Outcome::Delivered),
        // It waited for another: the lead of its partition, those that are under way to it, or a
        // producer that is closed.
        Heard::NotSent => Ok(Outcome::Blocked),
        Heard::Nothing => Err(ProduceError::Unknown(Failure::new(
            "unconfirmed",
            "timeout: sent, and not confirmed in time",
        ))),
        Heard::WithoutOffset => Err(ProduceError::Unknown(Failure::new(
            "unconfirmed",
            "the broker confirmed without an offset, so the message may be lost",
        ))),
        Heard::Failed(code) => Err(meaning(code, topic)),
    }
}
