//! Topics job: measures the age of the oldest message of each topic. It runs in every relay.
//!
//! A store reads more rows for this than for the backlog, so it is asked seldom, and only while
//! messages wait: an idle outbox is not queried.

use std::time::Duration;

use outbox_contract::Admin;

use crate::relay::context::{Context, in_time};

/// Interval of the query. The age of the route, which alerts use, is measured more often.
pub(super) const EVERY: Duration = Duration::from_secs(60);

pub(super) async fn measure(context: &Context) {
    // Not measured yet, or failing: then health reports it, and this query would fail, too.
    let Some((_, backlog)) = context.counters.backlog() else { return };
    if backlog.oldest_age.is_none() {
        context.counters.observe_topics(&[]);
        return;
    }
    match in_time(context.config.store_timeout, "topics", context.store.topics(&context.route)).await {
        Ok(figures) => context.counters.observe_topics(&figures),
        Err(error) => {
            tracing::warn!(route = %context.route, %error, "could not measure the topics; will retry");
        }
    }
}
