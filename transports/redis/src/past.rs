//! Past of a consumer: where it begins on a stream whose group is not there any more. Pure.

use std::collections::BTreeMap;

use outbox_contract::backend::{OffsetReset, Subscription};
use outbox_contract::{Timestamp, Topic};

#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    handled: BTreeMap<Topic, Timestamp>,
    reset: OffsetReset,
}

impl Past {
    pub(crate) fn of(subscription: &Subscription) -> Self {
        Self { handled: subscription.handled.clone(), reset: subscription.offset_reset }
    }

    /// Returns true if the consumer has handled messages of a topic: then its groups were made
    /// before.
    pub(crate) fn has_handled(&self, topic: &Topic) -> bool {
        self.handled.contains_key(topic)
    }

    /// Returns the entry behind which a group begins that was lost. None: nothing is read of its
    /// stream.
    pub(crate) fn start(&self, topic: &Topic) -> Option<String> {
        // A new consumer has lost nothing but what came since it subscribed.
        let Some(last) = self.handled.get(topic) else { return Some("0".to_owned()) };
        match self.reset {
            OffsetReset::None => None,
            OffsetReset::Earliest => Some("0".to_owned()),
            OffsetReset::Latest => Some("$".to_owned()),
            OffsetReset::LastHandled => Some(format!("{}-0", last.as_micros().div_euclid(1_000).max(0))),
        }
    }

    pub(crate) const fn reset(&self) -> OffsetReset {
        self.reset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_topic_that_was_handled_can_be_refused() {
        let topic = |name: &str| Topic::new(name).unwrap();
        let start = |reset, name: &str| {
            let handled = BTreeMap::from([(topic("orders"), Timestamp::from_micros(7_000_000))]);
            Past { handled, reset }.start(&topic(name))
        };
        for (reset, begins) in [
            (OffsetReset::None, None),
            (OffsetReset::Earliest, Some("0")),
            (OffsetReset::Latest, Some("$")),
            (OffsetReset::LastHandled, Some("7000-0")),
        ] {
            assert_eq!(start(reset, "orders").as_deref(), begins);
            assert_eq!(start(reset, "bills").as_deref(), Some("0"), "a new consumer of it");
        }
    }
}
