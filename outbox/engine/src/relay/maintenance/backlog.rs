//! Backlog job: measures the backlog, and checks whether an unreachable transport is back. It runs
//! in every relay.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join;

use crate::relay::context::{Context, in_time};

/// Rest after a measurement, as a multiple of its duration: a store that reads whole messages to
/// count them spends at most a tenth of its time on each relay that asks.
const REST: u32 = 9;
/// Maximum of that rest: alerts use the age of the oldest message.
const MAX_REST: Duration = Duration::from_secs(60);

pub(super) async fn round(route: &Context) {
    join(measure(route), check_transport(route)).await;
}

/// Checks a transport that did not answer the last check, or that counts as unavailable, while this
/// relay owns no buckets, or has nothing to send.
///
/// Relays whose transport is unavailable lose their buckets to others. Without buckets or messages,
/// no batch would tell such a relay that its transport is back.
async fn check_transport(context: &Context) {
    let breaker = *context.breaker();
    let owns_none = context.counters.buckets.load(Ordering::Relaxed) == 0;
    // A transport that answers a check may still answer no batch.
    let is_idle = context.in_flight().0 == 0 && breaker.is_said_to_be_away();
    if breaker.away_since().is_none() {
        if context.unanswered().is_some() && context.in_flight().0 == 0 {
            context.check_transport().await;
        }
        return;
    }
    if !(owns_none || is_idle) {
        return;
    }
    let check = context.transport.check();
    if in_time(context.config.publish_timeout, "check", check).await.is_ok() && context.transport_answers() {
        tracing::info!(route = %context.route, "transport available again");
    }
}

async fn measure(context: &Context) {
    let began = context.now();
    if began < context.counters.measure_at() {
        return;
    }
    // Buckets without an owner found before this relay's first lease do not count: it is about to
    // acquire them.
    let owned = context.tenure.has_begun();
    match in_time(context.config.store_timeout, "backlog", context.store.backlog(&context.route)).await {
        Ok(backlog) => {
            let (now, breaker_open) = (context.now(), context.breaker().away_since().is_some());
            let rest = now.saturating_sub(began).saturating_mul(REST).min(MAX_REST);
            context.counters.observe(now, rest, backlog, context.in_flight(), breaker_open);
            context.counters.owned(owned);
        }
        Err(error) => {
            tracing::warn!(route = %context.route, %error, "could not measure the backlog; will retry");
            context.counters.failed_to_observe(context.now(), error.to_string());
        }
    }
}
