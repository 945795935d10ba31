//! Promotes scheduled messages that are due, and removes rows whose retention is over.
//!
//! One relay is elected. Nothing here can stop the relay: a failed round is retried.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::Maintained;
use ractor::{ActorProcessingErr, ActorRef};

use crate::relay::context::{Context, in_time};

/// The job.
pub(crate) struct RetentionJob {
    /// The routes of this relay; the first one's configuration applies.
    pub(crate) routes: Vec<Arc<Context>>,
}

/// Runs a round, if elected.
pub(crate) struct Maintain;

#[derive(Default)]
pub(crate) struct RetentionState {
    elected_until: Duration,
    pace: Pace,
}

/// How long to wait between rounds.
#[derive(Debug, Default)]
struct Pace {
    /// Rounds in a row that moved nothing, though something is due: somebody is writing to its key.
    in_vain: u32,
}

impl Pace {
    /// The first pause after a round in vain; each further one is twice as long.
    const FIRST: Duration = Duration::from_millis(50);

    /// When to come again, at the latest after `every`.
    fn after(&mut self, done: &Maintained, every: Duration) -> Duration {
        if done.more && has_done(done) {
            // Others have their turn in between.
            return Duration::from_millis(1);
        }
        let due = done.next_due.unwrap_or(every);
        if done.promoted > 0 || !due.is_zero() {
            self.in_vain = 0;
            return due.clamp(Duration::from_millis(1), every);
        }
        let pause = Self::FIRST.saturating_mul(2_u32.saturating_pow(self.in_vain));
        self.in_vain = self.in_vain.saturating_add(1);
        pause.min(every)
    }
}

/// Whether a round changed anything at all.
const fn has_done(done: &Maintained) -> bool {
    done.promoted + done.history_removed + done.handled_ids_removed + done.relays_removed > 0
}

/// The most rows of each kind in one round.
const ROUND: usize = 1_000;
/// How many rounds follow each other before others have their turn.
const ROUNDS: usize = 20;

#[ractor::actor(message = Maintain, state = RetentionState)]
impl RetentionJob {
    async fn pre_start(
        &self,
        _myself: ActorRef<Maintain>,
        (): (),
    ) -> Result<RetentionState, ActorProcessingErr> {
        Ok(RetentionState::default())
    }

    async fn post_start(
        &self,
        myself: ActorRef<Maintain>,
        _state: &mut RetentionState,
    ) -> Result<(), ActorProcessingErr> {
        Ok(myself.cast(Maintain)?)
    }

    async fn handle(
        &self,
        myself: ActorRef<Maintain>,
        Maintain: Maintain,
        state: &mut RetentionState,
    ) -> Result<(), ActorProcessingErr> {
        let Some(context) = self.routes.first() else { return Ok(()) };
        let wait = self.maintain(context, state).await;
        myself.send_after(wait, || Maintain);
        Ok(())
    }
}

impl RetentionJob {
    /// Does what there is to do, and says when to come again.
    async fn maintain(&self, context: &Context, state: &mut RetentionState) -> Duration {
        let config = &context.config;
        let now = context.now();
        if now >= state.elected_until {
            let lasts = config.lease.max(config.maintain_every * 3);
            let call = context.store.elect("retention", context.relay, lasts);
            match in_time(config.store_timeout, "elect", call).await {
                // Renewed well before it runs out; not before each round, which would double the queries of an idle relay.
                Ok(true) => state.elected_until = now + lasts / 2,
                Ok(false) => {
                    context.counters.maintained(context.now());
                    return config.maintain_every;
                }
                Err(error) => {
                    tracing::warn!(%error, "could not elect a relay for retention; scheduled messages and expired rows wait");
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
                        tracing::debug!(promoted = done.promoted, "scheduled messages are due");
                    }
                    context.counters.maintained(context.now());
                    wait = state.pace.after(&done, config.maintain_every);
                    if !done.more || !has_done(&done) {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "maintenance failed; trying again");
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
        Maintained { promoted, next_due, ..Maintained::default() }
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
        let done = Maintained { history_removed: 1_000, more: true, ..Maintained::default() };
        assert_eq!(Pace::default().after(&done, EVERY), Duration::from_millis(1));
        let later = Maintained { next_due: Some(EVERY), ..done };
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
