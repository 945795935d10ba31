//! Limits of the core: sizes, timeouts and intervals.

use std::time::Duration;

use super::super::config::RelayConfig;

/// Limits of a route, from its configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of rows of one fetch.
    pub(crate) fetch_rows: usize,
    /// Maximum number of bytes of one fetch.
    pub(crate) fetch_bytes: usize,
    /// Maximum number of messages in memory, and of rows that are to be parked.
    pub(crate) max_in_flight: usize,
    /// Maximum number of messages in memory until the transport is known to be fast.
    pub(crate) narrow_in_flight: usize,
    /// Maximum number of bytes of messages in memory; one message may exceed it.
    pub(crate) max_in_flight_bytes: usize,
    /// Maximum number of rows of one key in memory.
    pub(crate) max_per_key: usize,
    /// Maximum number of messages of a publish batch.
    pub(crate) batch: usize,
    /// Maximum number of bytes of a publish batch; a single message may exceed it.
    pub(crate) batch_bytes: usize,
    /// Number of batches that a full fetch is divided into.
    pub(crate) shares: usize,
    /// Maximum number of unconfirmed batches of keys that get answers.
    pub(crate) publishers: usize,
    /// Maximum number of unconfirmed batches of silent keys: they wait for answers, so that other
    /// keys need not.
    pub(crate) silent_publishers: usize,
    /// Number of positions that a fetch may scan again before it pays to ask after each fetch which
    /// transactions are writing. A database takes about 0.3 microseconds to skip a removed row, and
    /// about as long as for a thousand rows to answer that query.
    pub(crate) walk: i64,
    /// Maximum number of rows that one transition moves.
    pub(crate) rows_per_transition: usize,
    /// True if blocked keys make room for others: of the relay of an inbox, whose handlers block
    /// their keys for as long as what they need is away. Brokers do so for a moment.
    pub(crate) blocked_leave: bool,
    /// First delay after an unknown outcome or an outage.
    pub(crate) first_delay: Duration,
    /// Maximum of such a delay.
    pub(crate) max_delay: Duration,
    /// Time after which an unconfirmed batch counts as unknown.
    pub(crate) publish_timeout: Duration,
    /// Polling interval of an idle relay.
    pub(crate) idle_poll: Duration,
    /// Polling interval for due keys that nothing announced.
    pub(crate) due_poll: Duration,
    /// Interval of heartbeats.
    pub(crate) heartbeat: Duration,
}

/// Maximum number of rows that one transition moves.
const ROWS_PER_TRANSITION: usize = 500;
/// Number of full fetches' worth of positions that a fetch may scan again.
const WALK: i64 = 4;
/// Part of `max_in_flight` that a relay begins with, as one to so many.
const NARROW: usize = 2;
/// Publishers of keys that get answers, to one of silent keys.
const FOR_ONE_SILENT: usize = 4;
/// Maximum number of shares and of publishers of silent keys in the relay of an inbox.
const OF_INBOX: usize = 4;

/// Returns the maximum number of messages of one key in memory, where a relay begins with room for
/// so many.
fn max_per_key(config: &RelayConfig, narrow_in_flight: usize) -> usize {
    config.per_key.min((narrow_in_flight / 2).max(1))
}

impl Limits {
    /// Returns the limits of a relay.
    pub(crate) fn of(config: &RelayConfig) -> Self {
        let narrow_in_flight = config.max_in_flight.div_ceil(NARROW);
        Self {
            fetch_rows: config.fetch_batch,
            fetch_bytes: config.fetch_batch_bytes,
            max_in_flight: config.max_in_flight,
            narrow_in_flight,
            max_in_flight_bytes: config.max_in_flight_bytes,
            max_per_key: max_per_key(config, narrow_in_flight),
            batch: config.publish_batch,
            batch_bytes: config.publish_batch_bytes,
            shares: config.fetch_batch.div_ceil(config.publish_batch),
            publishers: config.max_unconfirmed_batches,
            silent_publishers: config.max_unconfirmed_batches.div_ceil(FOR_ONE_SILENT),
            walk: i64::try_from(config.fetch_batch).unwrap_or(i64::MAX).saturating_mul(WALK),
            rows_per_transition: ROWS_PER_TRANSITION,
            blocked_leave: false,
            first_delay: config.outage_first_delay,
            max_delay: config.outage_max_delay,
            publish_timeout: config.publish_timeout,
            idle_poll: config.idle_poll,
            due_poll: config.due_poll,
            heartbeat: config.heartbeat,
        }
    }

    /// Returns the limits of the relay of an inbox. Its publishers are the transactions that may run
    /// at once. The number of messages in memory is not adjusted to handlers: slow keys leave half
    /// of them to the others.
    pub(crate) fn of_inbox(config: &RelayConfig) -> Self {
        let shares = config.max_unconfirmed_batches.min(OF_INBOX);
        Self {
            narrow_in_flight: config.max_in_flight,
            max_per_key: max_per_key(config, config.max_in_flight),
            shares,
            silent_publishers: shares,
            blocked_leave: true,
            ..Self::of(config)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_never_has_more_than_half_of_the_credit_that_a_relay_begins_with() {
        let of = |max_in_flight, per_key| {
            let config = RelayConfig { max_in_flight, per_key, ..RelayConfig::default() };
            [Limits::of(&config), Limits::of_inbox(&config)].map(|limits| limits.max_per_key)
        };
        assert_eq!((of(2_000, 500), of(200, 500), of(1, 500)), ([500, 500], [50, 100], [1, 1]));
    }

    #[test]
    fn as_many_batches_as_configured_are_unconfirmed_and_a_quarter_more_of_silent_keys() {
        let of = |fetch_batch, publish_batch, max_unconfirmed_batches| {
            let config =
                RelayConfig { fetch_batch, publish_batch, max_unconfirmed_batches, ..RelayConfig::default() };
            let limits = Limits::of(&config);
            (limits.shares, limits.publishers, limits.silent_publishers)
        };
        let default = RelayConfig::default();
        let by_default = of(default.fetch_batch, default.publish_batch, default.max_unconfirmed_batches);
        assert_eq!(by_default, (2, 8, 2));
        assert_eq!((of(2_000, 250, 64), of(10, 1_000, 1)), ((8, 64, 16), (1, 1, 1)));
    }
}
