//! Events that the client library tells apart from reports and messages: its log, and errors of
//! connections.

use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::watch;

use crate::connection_error::ConnectionError;
use crate::repeats::Repeats;

/// Time for which another broker may take to answer after one has refused something.
const GRACE: Duration = Duration::from_secs(2);

/// Passes the client's log on, and remembers what was last wrong with its connections.
#[derive(Debug, Default)]
pub(crate) struct Events {
    // Written by the thread of the client, awaited by who asks the broker.
    trouble: watch::Sender<Option<ConnectionError>>,
}

impl Events {
    /// Something went wrong.
    fn remember(&self, trouble: ConnectionError) {
        self.trouble.send_if_modified(|last| {
            let stays = last.as_ref().is_some_and(|last| last.says_more_than(&trouble));
            if !stays {
                let before = last.take();
                *last = Some(trouble.after(before));
            }
            !stays
        });
    }

    /// Returns the last error since the last [`clear`](Self::clear).
    pub(crate) fn last(&self) -> Option<ConnectionError> {
        self.trouble.borrow().clone()
    }

    /// Waits until something is wrong that does not pass by waiting, and no broker has answered for
    /// a moment.
    pub(crate) async fn lasting(&self) -> ConnectionError {
        let mut told = self.trouble.subscribe();
        let lasts = |trouble: &Option<ConnectionError>| trouble.as_ref().is_some_and(ConnectionError::lasts);
        loop {
            // The sender lives as long as this value.
            drop(told.wait_for(lasts).await);
            tokio::time::sleep(GRACE).await;
            if let Some(trouble) = self.last().filter(ConnectionError::lasts) {
                return trouble;
            }
        }
    }

    /// The broker has answered: what was wrong is over.
    pub(crate) fn clear(&self) {
        // Each acknowledgement says so, and mostly nothing was wrong.
        if self.trouble.borrow().is_some() {
            self.trouble.send_replace(None);
        }
    }
}

/// Of a consumer in no group.
impl rdkafka::consumer::ConsumerContext for Events {}

impl ClientContext for Events {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, words: &str) {
        // A broker that ends a connection is no error to the client; and it may do so as the client
        // speaks no TLS.
        let trouble =
            ConnectionError { code: RDKafkaErrorCode::BrokerTransportFailure, words: words.to_owned() };
        if facility == "FAIL" && trouble.lasts() {
            self.remember(trouble);
        }
        // Of every producer it says that `enable.gapless.guarantee` is experimental. That is known,
        // and can't be changed.
        if facility == "CONFWARN" && words.contains("enable.gapless.guarantee") {
            return tracing::debug!(target: "librdkafka", facility, "{words}");
        }
        if facility == "FAIL" && Repeats::have(words) {
            return tracing::debug!(target: "librdkafka", facility, "{words}");
        }
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
        tracing::debug!(target: "librdkafka", %error, reason, "librdkafka reports an error");
        self.remember(ConnectionError { code, words: reason.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered_until_the_broker_answers() {
        let events = Events::default();
        let trouble = |code| ConnectionError { code, words: String::new() };
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

    #[test]
    fn the_cause_is_said_also_when_all_brokers_are_down() {
        let events = Events::default();
        let said = |code, words: &str| {
            events.remember(ConnectionError { code, words: words.to_owned() });
            events.last().map(|last| (last.code, last.words))
        };
        let refused = "b:9092/1: Connect to b:9092 failed: Connection refused";
        let (away, all_down) = (RDKafkaErrorCode::BrokerTransportFailure, RDKafkaErrorCode::AllBrokersDown);
        assert_eq!(
            said(all_down, "0/1 brokers are down"),
            Some((all_down, "0/1 brokers are down".to_owned()))
        );
        said(away, &format!("{refused} (after 0ms in state CONNECT)"));
        for words in ["1/1 brokers are down", "0/2 brokers are down"] {
            assert_eq!(said(all_down, words), Some((all_down, refused.to_owned())));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_mends_by_waiting_is_told_unless_another_broker_answers() {
        let events = Events::default();
        let start = tokio::time::Instant::now();
        let trouble = |code| ConnectionError { code, words: String::new() };
        let told = async {
            let told = events.lasting().await;
            (told.code, start.elapsed())
        };
        let happens = async {
            events.remember(trouble(RDKafkaErrorCode::AllBrokersDown));
            tokio::time::sleep(Duration::from_secs(60)).await;
            events.remember(trouble(RDKafkaErrorCode::SSL));
            tokio::time::sleep(GRACE / 2).await;
            events.clear();
            tokio::time::sleep(Duration::from_secs(60)).await;
            events.remember(trouble(RDKafkaErrorCode::Authentication));
        };
        let ((code, after), ()) = tokio::join!(told, happens);
        assert_eq!(code, RDKafkaErrorCode::Authentication);
        assert_eq!(after, Duration::from_secs(120) + GRACE / 2 + GRACE);
    }
}
