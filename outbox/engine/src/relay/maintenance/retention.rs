//! Retention job: promotes scheduled messages that are due, and removes expired rows.
//!
//! It runs in one elected relay. A failed round is retried, and never stops the relay. Every relay,
//! elected or not, records the retention that its store was opened with, so that the elected one
//! removes nothing that it keeps.

use std::time::Duration;

use outbox_contract::backend::Maintained;

use crate::relay::context::{Context, in_time};

/// State of the job between its rounds.
#[derive(Default)]
pub(super) struct Retention {
    elected_until: Duration,
    /// Time of the next renewal of the recorded retention.
    renew_at: Duration,
    pace: Pace,
}

/// Delay between rounds.
#[derive(Debug, Default)]
struct Pace {
    /// Consecutive rounds that promoted nothing though a message is due, because a transaction is
    /// writing to its key.
    blocked_rounds: u32,
}

impl Pace {
    /// Delay after a first such round; it doubles with each further one.
    const FIRST: Duration = Duration::from_millis(50);

    /// Returns the delay before the next round, at most `every`.
    fn after(&mut self, done: &Maintained, every: Duration) -> Duration {
        if done.more && has_changed(done) {
            // Lets other queries through in between.
            return Duration::from_millis(1);
        }
        let due = done.next_due.unwrap_or(every);
        if done.promoted > 0 || !due.is_zero() {
            self.blocked_rounds = 0;
            return due.clamp(Duration::from_millis(1), every);
        }
        let pause = Self::FIRST.saturating_mul(2_u32.saturating_pow(self.blocked_rounds));
        self.blocked_rounds = self.blocked_rounds.saturating_add(1);
        pause.min(every)
    }
}

/// Returns true if a round changed any row.
const fn has_changed(done: &Maintained) -> bool {
    let removed = done.history_removed + done.handled_ids_removed + done.audit_removed + done.relays_removed;
    done.promoted + removed > 0
}

/// Maximum number of rows of each kind in one round.
const ROUND: usize = 1_000;
/// Maximum number of consecutive rounds before a pause.
const ROUNDS: usize = 20;
/// Interval between renewals of the recorded retention.
const RENEW: Duration = Duration::from_secs(3_600);

impl Retention {
    /// Records the retention of this relay's store, if it is time to. Returns false if that failed:
    /// it is retried in the next round.
    async fn record(&mut self, context: &Context) -> bool {
        let now = context.now();
        if now < self.renew_at {
            return true;
        }
        let call = context.store.record_retention();
        match in_time(context.config.store_timeout, "record_retention", call).await {
            Ok(()) => {
                self.renew_at = now + RENEW;
                true
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "could not record the retention of handled ids; another relay may remove ids earlier \
                     than this process is configured to; will retry"
                );
                context.counters.failed_to_maintain(error.to_string());
                false
            }
        }
    }

    /// Runs rounds while there is work. Returns the delay before the next ones.
    pub(super) async fn rounds(&mut self, context: &Context) -> Duration {
        let config = &context.config;
        let is_recorded = self.record(context).await;
        let maintained = || {
            if is_recorded {
                context.counters.maintained(context.now());
            }
        };
        let now = context.now();
        if now >= self.elected_until {
            let lasts = config.lease.max(config.maintain_every * 3);
            let call = context.store.elect("retention", context.relay, lasts);
            match in_time(config.store_timeout, "elect", call).await {
                // Renewed well before it expires, but not in each round: that would double the
                // queries of an idle relay.
                Ok(true) => self.elected_until = now + lasts / 2,
                Ok(false) => {
                    maintained();
                    return config.maintain_every;
                }
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "could not elect a relay for maintenance; scheduled messages and expired rows \
                         wait; will retry"
                    );
                    context.counters.failed_to_maintain(error.to_string());
                    return config.maintain_every;
                }
            }
        }
        let mut wait = config.maintain_every;
        for _ in 0..ROUNDS {
            match in_time(config.store_timeout, "maintain", context.store.maintain(ROUND)).await {
                Ok(done) => {
                    if done.promoted > 0 {
                        tracing::debug!(promoted = done.promoted, "promoted scheduled messages");
                    }
                    maintained();
                    wait = self.pace.after(&done, config.maintain_every);
                    if !done.more || !has_changed(&done) {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "maintenance failed; scheduled messages and expired rows wait; will retry"
                    );
                    context.counters.failed_to_maintain(error.to_string());
                    return config.maintain_every;
                }
            }
        }
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(5);

    fn round(promoted: u64, next_due: Option<Duration>) -> Maintained {
        let mut maintained = Maintained::default();
        maintained.promoted = promoted;
        maintained.next_due = next_due;
        maintained
    }

    #[test]
    fn the_next_round_is_when_something_is_due() {
        let mut pace = Pace::default();
        assert_eq!(pace.after(&round(0, None), EVERY), EVERY);
        assert_eq!(pace.after(&round(0, Some(Duration::from_secs(2))), EVERY), Duration::from_secs(2));
        assert_eq!(pace.after(&round(0, Some(EVERY * 2)), EVERY), EVERY);
        assert_eq!(pace.after(&round(7, Some(Duration::ZERO)), EVERY), Duration::from_millis(1));
    }

    #[test]
    fn what_is_left_of_a_long_round_is_done_soon() {
        let mut done = Maintained::default();
        done.history_removed = 1_000;
        done.more = true;
        assert_eq!(Pace::default().after(&done, EVERY), Duration::from_millis(1));
        let mut later = done;
        later.next_due = Some(EVERY);
        assert_eq!(Pace::default().after(&later, EVERY), Duration::from_millis(1));
    }

    #[test]
    fn rounds_in_vain_become_rare() {
        let mut pace = Pace::default();
        let waits: Vec<_> = (0..40).map(|_| pace.after(&round(0, Some(Duration::ZERO)), EVERY)).collect();
        assert_eq!(waits[..3], [50, 100, 200].map(Duration::from_millis));
        assert_eq!(waits[8..], [EVERY; 32]);
        pace.after(&round(1, Some(Duration::ZERO)), EVERY);
        assert_eq!(pace.after(&round(0, Some(Duration::ZERO)), EVERY), Pace::FIRST);
    }
}
