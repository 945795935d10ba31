//! What the client library tells apart from reports and messages: its log, and errors of connections.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaErrorCode;

/// Passes the client's log on, and remembers what was last wrong with its connections.
#[derive(Debug, Default)]
pub(crate) struct Events {
    trouble: Mutex<Option<Trouble>>,
}

/// What was last wrong with the connections of a client.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) code: RDKafkaErrorCode,
    pub(crate) words: String,
}

impl Trouble {
    /// Whether the broker refuses the credentials.
    pub(crate) const fn is_refusal(&self) -> bool {
        matches!(
            self.code,
            RDKafkaErrorCode::Authentication
                | RDKafkaErrorCode::SaslAuthenticationFailed
                | RDKafkaErrorCode::ClusterAuthorizationFailed
        )
    }
}

impl Events {
    fn trouble(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something went wrong. Where a broker refuses the credentials, the client says a moment later that all brokers are down: of the two the
    /// refusal is kept, as it has the remedy.
    fn remember(&self, trouble: Trouble) {
        let mut last = self.trouble();
        let is_refused = last.as_ref().is_some_and(Trouble::is_refusal);
        let says_less = matches!(
            trouble.code,
            RDKafkaErrorCode::AllBrokersDown | RDKafkaErrorCode::BrokerTransportFailure
        );
        if !(is_refused && says_less) {
            *last = Some(trouble);
        }
    }

    /// What was last wrong, if anything was since the last [`clear`](Self::clear).
    pub(crate) fn last(&self) -> Option<Trouble> {
        self.trouble().clone()
    }

    /// The broker has answered: what was wrong is over.
    pub(crate) fn clear(&self) {
        *self.trouble() = None;
    }
}

impl ClientContext for Events {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, words: &str) {
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => tracing::warn!(target: "librdkafka", facility, "{words}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
                tracing::info!(target: "librdkafka", facility, "{words}");
            }
            RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", facility, "{words}"),
        }
    }

    fn stats(&self, _: Statistics) {}

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        tracing::debug!(target: "librdkafka", %error, reason, "the client reports an error");
        self.remember(Trouble { code, words: reason.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered_until_the_broker_answers() {
        let events = Events::default();
        let trouble = |code| Trouble { code, words: String::new() };
        let last = || events.last().map(|trouble| trouble.code);
        events.remember(trouble(RDKafkaErrorCode::AllBrokersDown));
        events.remember(trouble(RDKafkaErrorCode::Authentication));
        events.remember(trouble(RDKafkaErrorCode::BrokerTransportFailure));
        events.remember(trouble(RDKafkaErrorCode::AllBrokersDown));
        assert_eq!(last(), Some(RDKafkaErrorCode::Authentication));
        events.clear();
        assert_eq!(last(), None);
        events.remember(trouble(RDKafkaErrorCode::AllBrokersDown));
        assert_eq!(last(), Some(RDKafkaErrorCode::AllBrokersDown));
    }
}
