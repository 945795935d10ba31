//! Retry policies, by topic.

use std::collections::BTreeMap;

use outbox_contract::{Exhausted, RetryPolicy, Topic};

/// Retry policy of a route, and those of topics that have their own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies {
    pub(crate) default: RetryPolicy,
    pub(crate) by_topic: BTreeMap<Topic, RetryPolicy>,
}

impl Policies {
    /// Returns the policy of a topic.
    pub(crate) fn of(&self, topic: &Topic) -> &RetryPolicy {
        self.by_topic.get(topic).unwrap_or(&self.default)
    }
    /// Returns a number that relays share if they publish under the same source and treat failing
    /// messages alike: what a message meets must not depend on the relay that owns its key.
    ///
    /// Relays of different builds compare it through the database. So it must not depend on the
    /// version of Rust, which neither a derived `Debug` nor a `DefaultHasher` promises.
    pub(crate) fn fingerprint(&self, source: &str) -> i64 {
        let mut hash = Fnv::new();
        hash.write(source.as_bytes());
        hash.write_policy(&self.default);
        for (topic, policy) in &self.by_topic {
            hash.write(topic.as_str().as_bytes());
            hash.write_policy(policy);
        }
        hash.0.cast_signed()
    }
}

/// FNV-1a with 64 bits. Each part is hashed with its length, so that no two sequences of parts read
/// alike.
struct Fnv(u64);

impl Fnv {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn write(&mut self, part: &[u8]) {
        for byte in (part.len() as u64).to_le_bytes().iter().chain(part) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn write_policy(&mut self, policy: &RetryPolicy) {
        // Taken apart, so that a new setting can't be forgotten here.
        let RetryPolicy { max_attempts, first_delay, max_delay, exhausted, by_class } = policy;
        self.write(&max_attempts.to_le_bytes());
        self.write(&first_delay.as_nanos().to_le_bytes());
        self.write(&max_delay.as_nanos().to_le_bytes());
        self.write(match exhausted {
            Exhausted::DeadLetter => b"dead_letter",
            Exhausted::Hold => b"hold",
        });
        // The first entry of a class counts, wherever it stands.
        let mut classes: Vec<_> = by_class.iter().collect();
        classes.sort_by_key(|(class, _)| class);
        self.write(&(classes.len() as u64).to_le_bytes());
        for (class, attempts) in classes {
            self.write(class.as_bytes());
            self.write(&attempts.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn policies(default: RetryPolicy, by_topic: &[(&str, u32)]) -> Policies {
        let by_topic = by_topic.iter().map(|(topic, max_attempts)| {
            let policy = RetryPolicy { max_attempts: *max_attempts, ..RetryPolicy::default() };
            (Topic::new(*topic).unwrap(), policy)
        });
        Policies { default, by_topic: by_topic.collect() }
    }

    fn with_classes(classes: &[(&'static str, u32)]) -> RetryPolicy {
        let by_class = classes.iter().map(|(class, attempts)| ((*class).into(), *attempts)).collect();
        RetryPolicy { by_class, ..RetryPolicy::default() }
    }

    #[test]
    fn a_fingerprint_stays_the_same_in_every_build() {
        let policies = policies(with_classes(&[("timeout", 1), ("no-leader", 3)]), &[("orders", 5)]);
        assert_eq!(policies.fingerprint("/shop"), PINNED);
    }

    /// Another value here makes relays of two versions report each other during an upgrade.
    const PINNED: i64 = 5_171_251_080_101_323_445;

    #[test]
    fn every_setting_that_decides_about_messages_changes_it_and_nothing_else() {
        let default = RetryPolicy::default;
        let all = [
            policies(default(), &[]).fingerprint("/shop"),
            policies(default(), &[]).fingerprint("/store"),
            policies(RetryPolicy { max_attempts: 3, ..default() }, &[]).fingerprint("/shop"),
            policies(RetryPolicy { first_delay: S * 2, ..default() }, &[]).fingerprint("/shop"),
            policies(RetryPolicy { max_delay: S * 2, ..default() }, &[]).fingerprint("/shop"),
            policies(RetryPolicy { exhausted: Exhausted::Hold, ..default() }, &[]).fingerprint("/shop"),
            policies(with_classes(&[("timeout", 1)]), &[]).fingerprint("/shop"),
            policies(with_classes(&[("timeout", 2)]), &[]).fingerprint("/shop"),
            policies(default(), &[("orders", 12)]).fingerprint("/shop"),
            policies(default(), &[("orders", 5)]).fingerprint("/shop"),
            policies(default(), &[("invoices", 5)]).fingerprint("/shop"),
        ];
        let different: std::collections::BTreeSet<i64> = all.into_iter().collect();
        assert_eq!(different.len(), all.len(), "{all:?}");

        let (one, other) = ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)]);
        let order_of_classes = |classes| policies(with_classes(classes), &[]).fingerprint("/shop");
        assert_eq!(order_of_classes(&one), order_of_classes(&other));
    }
}
