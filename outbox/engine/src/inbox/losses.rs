//! Losses at the broker, as the transport told them: each in the log and in the figures, and for an
//! hour in the health check.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::backend::{Loss, LossCause, Unit};
use outbox_contract::{Consumer, metric};
use tokio::time::Instant;

/// Time for which the health check reports a loss.
const TOLD_FOR: Duration = Duration::from_secs(3_600);
/// Maximum number of losses that the health check names.
const MAX_NAMED: usize = 20;

/// Losses, by unit and cause. Shared by the task that looks and the handle.
#[derive(Debug)]
pub(crate) struct Losses {
    consumer: Consumer,
    // Held for a few instructions.
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    count: u64,
    missing: u64,
    recent: BTreeMap<(Option<Unit>, LossCause), (Instant, Loss)>,
}

impl Losses {
    pub(crate) fn new(consumer: Consumer) -> Self {
        Self { consumer, found: Mutex::default() }
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the transport found since the last look.
    pub(crate) fn look(&self, told: Vec<Loss>, now: Instant) {
        for loss in told {
            let cause = loss.cause.name();
            let (consumer, messages) = (&self.consumer, loss.messages);
            tracing::warn!(%consumer, cause, messages, "the broker has lost messages, or the position of this consumer: {loss}");
            let topic = loss.unit.as_ref().map(|unit| unit.topic.as_str().to_owned()).unwrap_or_default();
            let labels =
                [("consumer", consumer.as_str().to_owned()), ("topic", topic), ("cause", cause.to_owned())];
            metrics::counter!(metric::INBOX_LOSSES, &labels).increment(1);
            metrics::counter!(metric::INBOX_MISSING, &labels).increment(messages.unwrap_or_default());
            let mut found = self.found();
            found.count += 1;
            found.missing += messages.unwrap_or_default();
            found.recent.insert((loss.unit.clone(), loss.cause), (now, loss));
        }
    }

    /// Returns the number of losses, and of the messages that are known to be missing.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let found = self.found();
        (found.count, found.missing)
    }

    /// The losses of the last hour, as reasons of a health check.
    pub(crate) fn reasons(&self, now: Instant) -> Vec<String> {
        let mut found = self.found();
        found.recent.retain(|_, (at, _)| now.saturating_duration_since(*at) < TOLD_FOR);
        let words = |(_, loss): &(Instant, Loss)| {
            let gone = loss.messages.map(|messages| format!(" ({messages} messages are gone)"));
            format!(
                "consumer {}: the broker has lost messages, or the position: {loss}{}",
                self.consumer,
                gone.unwrap_or_default()
            )
        };
        found.recent.values().take(MAX_NAMED).map(words).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_counted_and_told_for_an_hour() {
        let (losses, start) = (Losses::new("billing".parse().unwrap()), Instant::now());
        let unit = Unit { topic: "orders".parse().unwrap(), number: 3 };
        let trimmed = Loss::new(unit.clone(), LossCause::Trimmed, "the log was trimmed").with_messages(7);
        losses.look(vec![trimmed.clone(), Loss::new(unit, LossCause::Position, "no offset")], start);
        losses.look(vec![trimmed], start + TOLD_FOR / 2);
        assert_eq!(losses.counts(), (3, 14));
        let reasons = losses.reasons(start + TOLD_FOR / 2);
        assert!(reasons.len() == 2 && reasons[1].contains("7 messages are gone"), "{reasons:?}");
        assert_eq!(losses.reasons(start + TOLD_FOR).len(), 1);
        assert!(losses.reasons(start + TOLD_FOR * 2).is_empty());
    }
}
