//! Looks beside the deliveries of a member: what waits in its streams, and whether the server
//! evicts keys.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Lag, Loss, LossCause};
use redis::{Pipeline, Value};
use tokio::time::sleep;

use crate::connection::{list, text};
use crate::deliveries::Member;
use crate::durability::field;
use crate::error::Error;
use crate::scripts::Script;

/// Interval of the looks at the streams.
const EVERY: Duration = Duration::from_secs(5);
/// Number of those looks between two at the server.
const SERVER_EVERY: u32 = 4;

/// Looks until the transport is closed or the task is aborted. What can't be asked now is asked
/// again: other parts say what is wrong.
pub(crate) async fn watch(member: Arc<Member>) {
    let mut evicted = None;
    for round in 0_u32.. {
        if member.control.server().check_open().is_err() {
            return;
        }
        match member.measure().await {
            Ok(lags) => member.has_lags(lags),
            Err(error) => {
                member.has_lags(Vec::new());
                tracing::debug!(class = error.class, "could not measure the lag: {}", error.words);
            }
        }
        if round % SERVER_EVERY == 0
            && let Ok(now) = member.evicted().await
        {
            let before = evicted.replace(now);
            if before.is_some_and(|before| now > before) {
                let more = now - before.unwrap_or_default();
                let words = format!(
                    "redis has evicted {more} keys, as it is full (maxmemory): streams may be among them, with all that was in them. CONFIG SET \
                     maxmemory-policy noeviction, or raise maxmemory"
                );
                member.lost(Loss::of_broker(LossCause::Evicted, words));
            }
        }
        sleep(EVERY).await;
    }
}

impl Member {
    async fn measure(&self) -> Result<Vec<Lag>, Error> {
        let units = self.state().held();
        if units.is_empty() {
            return Ok(Vec::new());
        }
        let mut connection = self.control.connection().await?;
        let mut pipeline = Pipeline::new();
        for (unit, _) in &units {
            let call = connection.scripts.call(Script::Lag, &[&self.routing.stream(unit)], &mut pipeline);
            call.arg(self.consumer.as_str());
        }
        let answers = self.control.within(&mut connection, &pipeline, self.config.request_timeout).await?;
        let mut lags = Vec::with_capacity(units.len());
        for ((unit, _), answer) in units.into_iter().zip(&answers) {
            let Ok([Value::Int(pending), Value::Int(lag), Value::Int(age)]) = list(answer) else { continue };
            let waits = u64::try_from(pending.saturating_add(*lag)).unwrap_or(0);
            let age = u64::try_from(*age).ok().filter(|_| waits > 0);
            lags.push(Lag::new(unit, waits).with_age(age.map(Duration::from_millis)));
        }
        Ok(lags)
    }

    /// Returns the number of keys that the server has evicted since its start.
    async fn evicted(&self) -> Result<u64, Error> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("INFO").arg("stats");
        let answers = self.control.request(&pipeline, self.config.request_timeout).await?;
        let stats = text(answers.first().unwrap_or(&Value::Nil))?;
        let evicted = field(&stats, "evicted_keys").and_then(|number| number.parse().ok());
        evicted.ok_or_else(|| Error::unexpected("INFO"))
    }
}
