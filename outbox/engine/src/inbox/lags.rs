//! Backlogs of a consumer at the broker, as its transport last reported them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::backend::Lag;
use outbox_contract::{Consumer, Topic, metric};

/// Maximum number of units that the health check names.
const MAX_NAMED: usize = 20;

/// The lags of a subscription. Shared by who looks and who is asked.
#[derive(Debug)]
pub(crate) struct Lags {
    consumer: Consumer,
    // Held for a few instructions.
    now: Mutex<Vec<Lag>>,
}

impl Lags {
    pub(crate) fn new(consumer: Consumer) -> Self {
        Self { consumer, now: Mutex::default() }
    }

    fn now(&self) -> MutexGuard<'_, Vec<Lag>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the transport tells now.
    pub(crate) fn look(&self, told: &[Lag]) {
        let before = std::mem::replace(&mut *self.now(), told.to_vec());
        if before == told {
            return;
        }
        let stuck_before = |lag: &Lag| before.iter().any(|it| it.unit == lag.unit && it.stuck.is_some());
        for lag in told.iter().filter(|lag| !stuck_before(lag)) {
            if let Some(why) = &lag.stuck {
                let Lag { unit, messages, .. } = lag;
                tracing::warn!(consumer = %self.consumer, %unit, messages, "messages wait at the broker, and none can be received: {why}");
            }
        }
        self.measure(&before, told);
    }

    /// There is no subscription any more.
    pub(crate) fn forget(&self) {
        let before = std::mem::take(&mut *self.now());
        self.measure(&before, &[]);
    }

    fn measure(&self, before: &[Lag], told: &[Lag]) {
        // A unit that another member has now: its figure is that one's.
        let gone = before.iter().filter(|lag| told.iter().all(|it| it.unit != lag.unit));
        for (unit, messages) in
            gone.map(|lag| (&lag.unit, 0)).chain(told.iter().map(|lag| (&lag.unit, lag.messages)))
        {
            let labels = [
                ("consumer", self.consumer.as_str().to_owned()),
                ("topic", unit.topic.as_str().to_owned()),
                ("unit", unit.number.to_string()),
            ];
            #[expect(clippy::cast_precision_loss, reason = "a metric")]
            metrics::gauge!(metric::INBOX_LAG, &labels).set(messages as f64);
        }
        let mut topics: BTreeMap<&Topic, (Duration, u32)> = BTreeMap::new();
        for lag in before {
            topics.entry(&lag.unit.topic).or_default();
        }
        for lag in told {
            let (age, stuck) = topics.entry(&lag.unit.topic).or_default();
            *age = (*age).max(lag.age.unwrap_or_default());
            *stuck += u32::from(lag.stuck.is_some());
        }
        for (topic, (age, stuck)) in topics {
            let labels =
                [("consumer", self.consumer.as_str().to_owned()), ("topic", topic.as_str().to_owned())];
            metrics::gauge!(metric::INBOX_LAG_AGE, &labels).set(age.as_secs_f64());
            metrics::gauge!(metric::INBOX_STUCK, &labels).set(f64::from(stuck));
        }
    }

    pub(crate) fn all(&self) -> Vec<Lag> {
        self.now().clone()
    }

    /// Returns the messages of all units together, and the age of the oldest.
    pub(crate) fn total(&self) -> (u64, Option<Duration>) {
        let now = self.now();
        (now.iter().map(|lag| lag.messages).sum(), now.iter().filter_map(|lag| lag.age).max())
    }

    /// The units from which nothing can be received, as reasons of a health check.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let now = self.now();
        let stuck = now.iter().filter_map(|lag| Some((lag, lag.stuck.as_ref()?)));
        let words = |(lag, why): (&Lag, &String)| {
            let Lag { unit, messages, .. } = lag;
            format!(
                "consumer {}: {messages} messages wait in {unit}, and nothing can be received: {why}",
                self.consumer
            )
        };
        stuck.take(MAX_NAMED).map(words).collect()
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::backend::Unit;

    use super::*;

    #[test]
    fn the_whole_is_summed_and_what_is_stuck_is_a_reason() {
        let lags = Lags::new("billing".parse().unwrap());
        let unit = |number| Unit { topic: "orders".parse().unwrap(), number };
        let age = Some(Duration::from_secs(7));
        let stuck = Lag::new(unit(1), 5).with_stuck(Some("a transaction is open".to_owned()));
        lags.look(&[Lag::new(unit(0), 3).with_age(age), stuck]);
        assert_eq!((lags.total(), lags.all().len()), ((8, age), 2));
        let reasons = lags.reasons();
        assert!(reasons.len() == 1 && reasons[0].contains("orders/1"), "{reasons:?}");
        assert!(reasons[0].contains("a transaction is open"), "{reasons:?}");
        lags.forget();
        assert_eq!((lags.total(), lags.reasons().len()), ((0, None), 0));
    }
}
