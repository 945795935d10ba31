//! Errors that the client of a member reports, with their remedies.
//!
//! A member whose group refuses it is given nothing, for ever, and the client only tries again. So
//! whatever is not known to pass by itself is said.

use outbox_contract::{TransportError, TransportErrorKind as Kind};
use rdkafka::types::RDKafkaErrorCode as Code;

/// Something that the client said.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerError {
    pub(crate) code: Code,
    /// In the client's own words, as far as it has some.
    pub(crate) words: String,
}

impl ConsumerError {
    /// Creates an error of which only the code is known.
    pub(crate) const fn of(code: Code) -> Self {
        Self { code, words: String::new() }
    }

    /// Returns the error to tell. `None`: the client mends it by itself.
    pub(crate) fn told(&self) -> Option<TransportError> {
        self.is_told().map(|(kind, words)| TransportError::new(kind, "next", words))
    }

    /// Returns true if it may be of a single topic, or a partition of it: the others go on.
    pub(crate) fn is_of_a_topic(&self) -> bool {
        let words = self.words.as_str();
        let begins = |beginnings: &[&str]| beginnings.iter().any(|beginning| words.starts_with(beginning));
        // Whatever the code: of these nothing at all can be received.
        if begins(&["JoinGroup", "SyncGroup", "ConsumerGroupHeartbeat", "FindCoordinator"]) {
            // Refused for one topic that may not be described: it is found, and left out.
            return self.code == Code::TopicAuthorizationFailed && begins(&["ConsumerGroupHeartbeat"]);
        }
        let of_topics = matches!(
            self.code,
            Code::UnknownTopicOrPartition
                | Code::UnknownTopic
                | Code::UnknownPartition
                | Code::InvalidTopic
                | Code::TopicAuthorizationFailed
                | Code::MessageSizeTooLarge
                | Code::AutoOffsetReset
                | Code::NotImplemented
                | Code::BadMessage
                | Code::BadCompression
                | Code::InvalidMessage
                | Code::InvalidRecord
        );
        of_topics
            || begins(&["Fetch from broker", "Subscribed topic", "Failed to fetch committed offset for"])
    }

    /// Returns true if the broker refused the member as a whole.
    pub(crate) fn is_of_the_group(&self) -> bool {
        self.words.starts_with("ConsumerGroupHeartbeat")
    }

    /// The kind of error that it is, and the words for it. None: the client mends it by itself.
    pub(crate) fn is_told(&self) -> Option<(Kind, String)> {
        let (kind, remedy) = match self.code {
            code if passes(code) => return None,
            Code::AllBrokersDown | Code::Resolve => {
                (Kind::Unavailable, "no broker can be reached; check the addresses, and that the brokers run")
            }
            Code::UnknownTopicOrPartition | Code::UnknownTopic => {
                (Kind::Unavailable, "the topic does not exist; create it")
            }
            Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed => {
                (Kind::NotPermitted, "access refused; grant Read on the topic and the group")
            }
            Code::Authentication | Code::SaslAuthenticationFailed => {
                (Kind::NotPermitted, "authentication failed: the broker refuses these credentials")
            }
            Code::SSL => (
                Kind::NotPermitted,
                "the TLS handshake with a broker failed: check authorities and identity, and the log of librdkafka",
            ),
            Code::InconsistentGroupProtocol | Code::UnsupportedAssignor => (
                Kind::Unavailable,
                "the group has members with another assignment strategy: stop them, or give all members the same group_protocol (programs \
                 without this library: partition.assignment.strategy=cooperative-sticky)",
            ),
            Code::GroupMaxSizeReached => (
                Kind::Unavailable,
                "the group has reached its maximum size: raise group.max.size of the broker (group.consumer.max.size where the broker \
                 assigns partitions), or start fewer members",
            ),
            Code::FencedInstanceId | Code::UnreleasedInstanceId => {
                (Kind::Unavailable, "another member has this group.instance.id: give each its own")
            }
            Code::InvalidSessionTimeout => (
                Kind::Invalid,
                "session.timeout.ms is outside the broker's group.min.session.timeout.ms and group.max.session.timeout.ms: change one of them",
            ),
            Code::InvalidGroupId => (Kind::Invalid, "the broker rejects this group id: rename the consumer"),
            Code::AutoOffsetReset => (
                Kind::Invalid,
                "a partition has no committed offset, and auto.offset.reset is error: change it, or commit an offset",
            ),
            Code::NotImplemented | Code::BadCompression => {
                (Kind::Unsupported, "unsupported compression codec of records")
            }
            Code::MessageSizeTooLarge => {
                (Kind::Invalid, "a record is too large to be fetched: raise receive.message.max.bytes")
            }
            _ => (Kind::Unavailable, "librdkafka reports a persistent error"),
        };
        Some((kind, self.with_code(remedy)))
    }

    /// Returns true if it is over when a record comes, of whichever partition.
    pub(crate) const fn is_over_with_a_record(&self) -> bool {
        matches!(
            self.code,
            Code::AllBrokersDown
                | Code::Resolve
                | Code::InconsistentGroupProtocol
                | Code::UnsupportedAssignor
                | Code::GroupMaxSizeReached
        )
    }

    /// Returns the error to tell where the client can't go on.
    pub(crate) fn told_at_the_end(&self) -> TransportError {
        match self.told() {
            Some(told) if !told.is_retryable() => told,
            Some(told) => TransportError::new(Kind::Other, "next", format!("the consumer stopped: {told}")),
            None => TransportError::new(Kind::Other, "next", self.with_code("the consumer stopped")),
        }
    }

    fn with_code(&self, remedy: &str) -> String {
        let Self { code, words } = self;
        let said = if words.is_empty() { String::new() } else { format!(": {words}") };
        format!("{remedy} ({code}{said})")
    }
}

/// Returns the words for a topic that this consumer may not read.
pub(crate) fn not_readable() -> String {
    ConsumerError::of(Code::TopicAuthorizationFailed).is_told().map(|(_, words)| words).unwrap_or_default()
}

/// Returns true if the client gets over it by itself: what a rebalance, a leader that moves and a
/// single connection that is lost bring with them.
const fn passes(code: Code) -> bool {
    matches!(
        code,
        Code::AssignmentLost
            | Code::BrokerDestroy
            | Code::BrokerNotAvailable
            | Code::BrokerTransportFailure
            | Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::DestroyBroker
            | Code::FencedLeaderEpoch
            | Code::FencedMemberEpoch
            | Code::FetchSessionIdNotFound
            | Code::IllegalGeneration
            | Code::InProgress
            | Code::Interrupted
            | Code::InvalidFetchSessionEpoch
            | Code::LeaderNotAvailable
            | Code::MemberIdRequired
            | Code::NetworkException
            | Code::NotCoordinator
            | Code::NotLeaderForPartition
            | Code::OffsetNotAvailable
            | Code::OffsetOutOfRange
            | Code::OperationTimedOut
            | Code::Outdated
            | Code::PartitionEOF
            // The next poll joins again.
            | Code::PollExceeded
            | Code::RebalanceInProgress
            | Code::RebootstrapRequired
            | Code::ReplicaNotAvailable
            | Code::RequestTimedOut
            | Code::Retry
            | Code::StaleMemberEpoch
            | Code::ThrottlingQuotaExceeded
            | Code::TimedOutQueue
            | Code::UnknownLeaderEpoch
            | Code::UnknownMemberId
            | Code::UnknownTopicId
            | Code::UnstableOffsetCommit
            | Code::WaitingForCoordinator
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: Code) -> ConsumerError {
        ConsumerError { code, words: "JoinGroup failed".to_owned() }
    }

    #[test]
    fn a_group_that_refuses_a_member_is_named_with_a_remedy() {
        let cases = [
            (Code::InconsistentGroupProtocol, Kind::Unavailable, "partition.assignment.strategy"),
            (Code::GroupMaxSizeReached, Kind::Unavailable, "group.max.size"),
            (Code::FencedInstanceId, Kind::Unavailable, "group.instance.id"),
            (Code::InvalidSessionTimeout, Kind::Invalid, "session.timeout.ms"),
            (Code::GroupAuthorizationFailed, Kind::NotPermitted, "grant Read"),
        ];
        for (code, kind, words) in cases {
            let told = error(code).told().unwrap();
            assert_eq!(told.kind(), kind, "{told}");
            assert!(told.to_string().contains(words), "{told}");
        }
    }

    #[test]
    fn what_is_not_known_to_pass_is_said_in_the_clients_words() {
        for code in [Code::RebalanceInProgress, Code::BrokerTransportFailure, Code::NotCoordinator] {
            assert!(error(code).told().is_none(), "{code}");
        }
        for code in [Code::PolicyViolation, Code::Unknown, Code::CriticalSystemResource] {
            let told = error(code).told().unwrap();
            assert!(told.is_retryable() && told.to_string().contains("JoinGroup failed"), "{told}");
        }
    }

    #[test]
    fn what_may_be_of_one_topic_is_told_apart_from_what_stops_all_of_a_member() {
        let of_a_topic = |code, words: &str| ConsumerError { code, words: words.to_owned() }.is_of_a_topic();
        assert!(of_a_topic(Code::TopicAuthorizationFailed, "Fetch from broker 1 failed"));
        assert!(of_a_topic(Code::PolicyViolation, "Fetch from broker 1 failed at offset 3"));
        assert!(of_a_topic(Code::UnknownTopicOrPartition, "Subscribed topic not available: orders"));
        assert!(of_a_topic(Code::TopicAuthorizationFailed, "ConsumerGroupHeartbeat failed"));
        assert!(!of_a_topic(Code::GroupMaxSizeReached, "ConsumerGroupHeartbeat failed"));
        assert!(!of_a_topic(Code::GroupAuthorizationFailed, "FindCoordinator response error"));
        assert!(!of_a_topic(Code::AllBrokersDown, "1/1 brokers are down"));
    }

    #[test]
    fn what_the_client_can_not_get_over_is_final() {
        for code in [Code::FencedInstanceId, Code::GroupAuthorizationFailed, Code::RebalanceInProgress] {
            let told = error(code).told_at_the_end();
            assert!(!told.is_retryable(), "{told}");
        }
    }
}
