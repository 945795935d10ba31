//! The sampler: a small task that fills the charts.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use outbox::Timestamp;
use outbox::relay::RelayObserver;
use tokio::time::{MissedTickBehavior, interval};

use crate::app::{App, MAX_ROUTES};
use crate::problem::Problem;
use crate::series::Sample;

/// Starts the task, once. It ends with the dashboard.
pub(crate) fn start(app: &Arc<App>) {
    if app.is_sampling.swap(true, Ordering::Relaxed) {
        return;
    }
    let (weak, every) = (Arc::downgrade(app), app.sample_every);
    tokio::spawn(run(weak, every));
}

async fn run(app: Weak<App>, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(app) = app.upgrade() else { return };
        let sample = sample(&app).await;
        if let Err(problem) = &sample {
            tracing::debug!(code = problem.code, "the charts have a gap: {}", app.redacted(&problem.text));
        }
        app.series().add(Timestamp::now(), sample.ok());
    }
}

/// Asks for the backlog of each route.
pub(crate) async fn sample(app: &App) -> Result<Sample, Problem> {
    let mut sample = Sample::default();
    if let Some(stats) = app.relay.as_ref().map(RelayObserver::stats) {
        sample.delivered = Some(stats.delivered);
        (sample.batches, sample.waited) = (stats.batches, stats.waited);
    }
    for status in app.routes().await?.into_iter().take(MAX_ROUTES) {
        let backlog = app.backlog(&status.route).await?;
        sample.pending += backlog.pending;
        sample.parked += backlog.parked;
        sample.dead += backlog.dead;
        sample.failing_keys += backlog.retrying_keys + backlog.held_keys;
        sample.oldest = sample.oldest.max(backlog.oldest_age.unwrap_or_default());
    }
    Ok(sample)
}
