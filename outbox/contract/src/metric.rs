//! Names of all metrics, with units and labels: the one table that code, dashboard and book share.

/// A metric: its name, kind, unit, labels and meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// The name.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// The unit, such as `messages` or `seconds`.
    pub unit: &'static str,
    /// The labels that it carries.
    pub labels: &'static [&'static str],
    /// Description of the metric.
    pub help: &'static str,
}

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// A distribution.
    Histogram,
}

macro_rules! metrics {
    ($($constant:ident = $name:literal, $kind:ident, $unit:literal, [$($label:literal),*], $help:literal;)*) => {
        $(#[doc = $help] pub const $constant: &str = $name;)*

        /// Every metric.
        pub const ALL: &[Metric] = &[
            $(Metric { name: $name, kind: Kind::$kind, unit: $unit, labels: &[$($label),*], help: $help },)*
        ];
    };
}

metrics! {
    DELIVERED = "outbox_delivered_total", Counter, "messages", ["route"], "Messages that the broker confirmed; of an inbox's route, messages that were handled from the store.";
    FAILED = "outbox_failed_total", Counter, "messages", ["route"], "Attempts that failed for a reason of the message itself.";
    UNKNOWN = "outbox_unknown_total", Counter, "messages", ["route"], "Attempts whose outcome is unknown; the relay repeats them.";
    DEAD_LETTERED = "outbox_dead_lettered_total", Counter, "messages", ["route"], "Messages that became dead letters.";
    DISCARDED = "outbox_discarded_total", Counter, "messages", ["route"], "Messages that the retry policy deleted.";
    PARKED = "outbox_parked_total", Counter, "messages", ["route"], "Messages that were parked behind a failing key.";
    REFUSED = "outbox_refused_total", Counter, "transitions", ["route"], "Key transitions that the store rejected: a lease was lost, or an operator changed the key first.";
    RESETS = "outbox_resets_total", Counter, "resets", ["route"], "Restarts of a relay's pipeline, which reads the store again.";
    RESTARTS = "outbox_restarts_total", Counter, "restarts", ["route"], "Publishers of a relay that failed and were restarted; failures of other parts count as resets.";
    OLDEST_AGE = "outbox_oldest_age_seconds", Gauge, "seconds", ["route"], "Age of the oldest waiting message, by the database's clock. While it can't be measured, it grows as if no message moved.";
    TOPIC_OLDEST_AGE = "outbox_topic_oldest_age_seconds", Gauge, "seconds", ["route", "topic"], "Age of the oldest waiting message of a topic, among the first messages of the store (at least 10,000); 0 once none waits. Measured once a minute, while messages wait. After 100 topics of a route, further ones are _OTHER.";
    UNMEASURED = "outbox_unmeasured_seconds", Gauge, "seconds", ["route"], "Time since the backlog was last measured, while measuring fails; its figures are as old.";
    UNSERVED_ROUTES = "outbox_unserved_routes", Gauge, "routes", [], "Routes with messages that have waited for over a minute, and no live relay in any program. Checked once a minute.";
    UNSERVED_AGE = "outbox_unserved_age_seconds", Gauge, "seconds", ["route"], "Age of the oldest message of an unserved route; 0 once a relay serves it. Covers the first 20 such routes that a relay finds.";
    PENDING = "outbox_pending", Gauge, "messages", ["route"], "Messages to publish, up to the store's counting limit.";
    PARKED_NOW = "outbox_parked", Gauge, "messages", ["route"], "Messages parked behind a failing key, up to the store's counting limit.";
    HELD_KEYS = "outbox_held_keys", Gauge, "keys", ["route"], "Keys that wait for an operator, up to the store's counting limit.";
    RETRYING_KEYS = "outbox_retrying_keys", Gauge, "keys", ["route"], "Failing keys that the relay will retry, up to the store's counting limit.";
    DEAD = "outbox_dead_letters", Gauge, "messages", ["route"], "Dead letters in the store, up to the store's counting limit.";
    BUCKETS = "outbox_buckets", Gauge, "buckets", ["route"], "Buckets that this relay owns.";
    IN_FLIGHT = "outbox_in_flight", Gauge, "messages", ["route"], "Messages that this relay has in memory.";
    IN_FLIGHT_BYTES = "outbox_in_flight_bytes", Gauge, "bytes", ["route"], "Bytes of messages that this relay has in memory.";
    BREAKER_OPEN = "outbox_breaker_open", Gauge, "1 or 0", ["route"], "1 while the relay waits for an unavailable transport, otherwise 0.";
    LATENCY = "outbox_latency_seconds", Histogram, "seconds", ["route"], "Time from append to confirmation, by the database's clock, for the oldest message of each batch.";
    TAKEOVERS = "outbox_takeovers_total", Counter, "buckets", ["route"], "Buckets that this relay took over: at its start, from a relay that ended, or when relays share them anew.";
    BELOW_CURSOR = "outbox_below_cursor_total", Counter, "checks", ["route"], "Checks that found messages below the position up to which the relay had read, and had them delivered.";
    SENT = "messaging_client_sent_messages_total", Counter, "messages", ["route", "messaging_destination_name", "error_type"], "Attempts to publish, by topic and class of failure, named as OpenTelemetry names them; error_type is empty for confirmed messages. After 100 topics or 20 classes of a route, further ones are _OTHER.";
    INBOX_RECEIVED = "outbox_inbox_received_total", Counter, "messages", ["consumer"], "Deliveries received, duplicates included.";
    INBOX_HANDLED = "outbox_inbox_handled_total", Counter, "messages", ["consumer"], "Messages whose handler's transaction was committed.";
    INBOX_DUPLICATES = "outbox_inbox_duplicates_total", Counter, "messages", ["consumer"], "Duplicates: messages that had been handled before.";
    INBOX_IGNORED = "outbox_inbox_ignored_total", Counter, "messages", ["consumer"], "Messages without a handler, ignored by configuration.";
    INBOX_FAILED = "outbox_inbox_failed_total", Counter, "messages", ["consumer"], "Attempts of handlers that failed or were rejected.";
    INBOX_CONFLICTS = "outbox_inbox_conflicts_total", Counter, "messages", ["consumer"], "Attempts that conflicted with other transactions; the inbox repeats them, and counts them only if they persist.";
    INBOX_INTERRUPTED = "outbox_inbox_interrupted_total", Counter, "messages", ["consumer"], "Attempts interrupted by the database or the connection to it; the inbox repeats them, and counts them only if one message alone meets them.";
    INBOX_POSTPONED = "outbox_inbox_postponed_total", Counter, "messages", ["consumer"], "Attempts of messages that this program is too old for; they wait for a newer one, and no attempt is counted.";
    INBOX_STORED = "outbox_inbox_stored_total", Counter, "messages", ["consumer"], "Messages written to the store, where they wait for their handler.";
    INBOX_DROPPED = "outbox_inbox_dropped_total", Counter, "messages", ["consumer"], "Undecodable records that were not kept, because the consumer has reached its maximum number of dead letters.";
    INBOX_RESETS = "outbox_inbox_resets_total", Counter, "resets", ["consumer"], "Restarts of an inbox, which drops its memory and requests redelivery.";
    INBOX_LAG = "outbox_inbox_lag", Gauge, "messages", ["consumer", "topic", "unit"], "Messages of a unit (partition, queue, stream) that are at the broker and that the consumer has not acknowledged; told by the member that has the unit.";
    INBOX_LAG_AGE = "outbox_inbox_lag_age_seconds", Gauge, "seconds", ["consumer", "topic"], "Age of the oldest unacknowledged message of a topic at the broker, in the units of this member; 0 where nothing waits. Kafka and Redis.";
    INBOX_STUCK = "outbox_inbox_stuck", Gauge, "units", ["consumer", "topic"], "Units (partitions, queues, streams) from which nothing can be received, though messages wait in them. The health check names the cause.";
    INBOX_LOSSES = "outbox_inbox_losses_total", Counter, "losses", ["consumer", "topic", "cause"], "Findings that a broker has lost something of a unit: the consumer's position (position, truncated), messages (trimmed, evicted), a queue (queue).";
    INBOX_MISSING = "outbox_inbox_missing_total", Counter, "messages", ["consumer", "topic", "cause"], "Messages that the broker removed before the consumer had them, as far as it can count them.";
    UNSAFE_SETTINGS = "outbox_unsafe_settings", Gauge, "1 or 0", ["transport"], "1 while the transport's check, made once a minute, finds that the broker is set up so that messages can be lost or can't be published.";
    INBOX_PROBLEMS = "outbox_inbox_problems", Gauge, "problems", ["consumer", "topic"], "Topics and units (partitions, queues, streams) that can't be received from, while others can; 0 once they can. The health check names the cause.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_end_as_their_kind_says() {
        let mut names: Vec<_> = ALL.iter().map(|metric| metric.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            // The second is a convention of OpenTelemetry.
            let begins = ["outbox_", "messaging_client_"].iter().any(|begin| metric.name.starts_with(begin));
            assert!(begins, "{}", metric.name);
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter, "{}", metric.name);
        }
    }
}
