//! Measures the backlog, and checks whether a transport that was unreachable is back. Every relay
//! measures for itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{join, join_all};
use ractor::{ActorProcessingErr, ActorRef};

use crate::relay::context::{Context, in_time};

/// The job that measures.
pub(crate) struct BacklogJob {
    /// The routes of this relay; the first one's configuration applies.
    pub(crate) routes: Vec<Arc<Context>>,
}

/// Measures once.
pub(crate) struct Measure;

#[ractor::actor(message = Measure, state = ())]
impl BacklogJob {
    async fn pre_start(&self, _myself: ActorRef<Measure>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn post_start(&self, myself: ActorRef<Measure>, _state: &mut ()) -> Result<(), ActorProcessingErr> {
        Ok(myself.cast(Measure)?)
    }

    async fn handle(
        &self,
        myself: ActorRef<Measure>,
        Measure: Measure,
        _state: &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let Some(first) = self.routes.first() else { return Ok(()) };
        join_all(self.routes.iter().map(|route| join(measure(route), look_for_the_transport(route)))).await;
        myself.send_after(first.config.observe_every, || Measure);
        Ok(())
    }
}

/// A relay that was counted out because its transport was away owns nothing, so no batch of its own tells it that the transport is back.
async fn look_for_the_transport(context: &Context) {
    let is_idle = context.counters.buckets.load(Ordering::Relaxed) == 0;
    if !is_idle || context.breaker().away_since().is_none() {
        return;
    }
    let check = context.transport.check();
    if in_time(context.config.publish_timeout, "check", check).await.is_ok() && context.transport_answers() {
        tracing::info!(route = %context.route, "the transport is back");
    }
}

async fn measure(context: &Context) {
    // What this relay found before its first lease has no owner yet: it is about to be one.
    let owned = context.tenure.has_begun();
    match in_time(context.config.store_timeout, "backlog", context.store.backlog(&context.route)).await {
        Ok(backlog) => {
            let breaker_open = context.breaker().away_since().is_some();
            context.counters.observe(context.now(), backlog, context.in_flight(), breaker_open);
            context.counters.owned(owned);
        }
        Err(error) => {
            tracing::warn!(route = %context.route, %error, "the backlog could not be measured");
            context.counters.failed_to_observe(context.now(), error.to_string());
        }
    }
}
