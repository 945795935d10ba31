//! The janitor: scheduled messages, retention, and the figures of the backlog.
//!
//! One relay is elected to maintain; every relay measures. Nothing here can stop the relay: what fails is tried again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ractor::{ActorProcessingErr, ActorRef};

use super::context::{Context, in_time};

pub(crate) struct Janitor {
    /// The routes of this relay; the first one's configuration counts.
    pub(crate) routes: Vec<Arc<Context>>,
}

pub(crate) enum JanitorMsg {
    /// Maintain, if elected.
    Maintain,
    /// Measure.
    Observe,
}

#[derive(Default)]
pub(crate) struct JanitorState {
    elected_until: Duration,
}

/// The most rows of each kind in one round.
const ROUND: usize = 1_000;
/// How many rounds follow each other before others have their turn.
const ROUNDS: usize = 20;

#[ractor::actor(message = JanitorMsg, state = JanitorState)]
impl Janitor {
    async fn pre_start(
        &self,
        _myself: ActorRef<JanitorMsg>,
        (): (),
    ) -> Result<JanitorState, ActorProcessingErr> {
        Ok(JanitorState::default())
    }

    async fn post_start(
        &self,
        myself: ActorRef<JanitorMsg>,
        _state: &mut JanitorState,
    ) -> Result<(), ActorProcessingErr> {
        myself.cast(JanitorMsg::Observe)?;
        Ok(myself.cast(JanitorMsg::Maintain)?)
    }

    async fn handle(
        &self,
        myself: ActorRef<JanitorMsg>,
        message: JanitorMsg,
        state: &mut JanitorState,
    ) -> Result<(), ActorProcessingErr> {
        let Some(context) = self.routes.first() else { return Ok(()) };
        match message {
            JanitorMsg::Maintain => {
                let wait = self.maintain(context, state).await;
                myself.send_after(wait, || JanitorMsg::Maintain);
            }
            JanitorMsg::Observe => {
                for route in &self.routes {
                    observe(route).await;
                    look_for_the_transport(route).await;
                }
                myself.send_after(context.config.observe_every, || JanitorMsg::Observe);
            }
        }
        Ok(())
    }
}

impl Janitor {
    /// Does what there is to do, and says when to come again.
    async fn maintain(&self, context: &Context, state: &mut JanitorState) -> Duration {
        let config = &context.config;
        let now = context.now();
        if now >= state.elected_until {
            let lasts = config.lease.max(config.maintain_every * 3);
            let call = context.store.elect("janitor", context.relay, lasts);
            match in_time(config.store_timeout, "elect", call).await {
                // Renewed well before it runs out; not before each round, which would double the queries of an idle relay.
                Ok(true) => state.elected_until = now + lasts / 2,
                Ok(false) => return config.maintain_every,
                Err(error) => {
                    tracing::debug!(%error, "no janitor could be elected");
                    return config.maintain_every;
                }
            }
        }
        let mut next_due = None;
        for _ in 0..ROUNDS {
            match in_time(config.store_timeout, "maintain", context.store.maintain(ROUND)).await {
                Ok(done) => {
                    if done.promoted > 0 {
                        tracing::debug!(promoted = done.promoted, "scheduled messages are due");
                    }
                    next_due = done.next_due;
                    if !done.more {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "maintenance failed; trying again");
                    break;
                }
            }
        }
        next_due.unwrap_or(config.maintain_every).clamp(Duration::from_millis(1), config.maintain_every)
    }
}

/// A relay that was counted out because its transport was away owns nothing, so no chunk of its own tells it that the transport is back.
async fn look_for_the_transport(context: &Context) {
    let is_idle = context.counters.buckets.load(Ordering::Relaxed) == 0;
    if !is_idle || context.breaker().away_since().is_none() {
        return;
    }
    let check = context.transport.check();
    if in_time(context.config.publish_timeout, "check", check).await.is_ok() && context.breaker().heard() {
        tracing::info!(route = %context.route, "the transport is back");
    }
}

async fn observe(context: &Context) {
    match in_time(context.config.store_timeout, "backlog", context.store.backlog(&context.route)).await {
        Ok(backlog) => {
            let breaker_open = context.breaker().away_since().is_some();
            context.counters.observe(context.now(), backlog, context.credit.out(), breaker_open);
        }
        Err(error) => context.counters.failed_to_observe(&error.to_string()),
    }
}
