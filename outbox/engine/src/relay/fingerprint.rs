//! Fingerprint of the settings that relays of a route share.

use std::time::Duration;

use outbox_contract::{Exhausted, RetryPolicy, RetryRule};

/// Returns a number that relays share if they publish under the same source, treat failing messages
/// alike and keep delivered ones for as long: what a message meets must not depend on the relay
/// that owns its key.
///
/// Relays of different builds compare it through the database. So it must not depend on the
/// version of Rust, which neither a derived `Debug` nor a `DefaultHasher` promises.
pub(crate) fn fingerprint(source: &str, policy: &RetryPolicy, history_kept: Option<Duration>) -> i64 {
    let mut hash = Fnv::new();
    hash.write(source.as_bytes());
    hash.write_policy(policy);
    if let Some(kept) = history_kept {
        hash.write(&kept.as_nanos().to_le_bytes());
    }
    hash.0.cast_signed()
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

    /// Hashes a setting that may be missing.
    fn write_some<const N: usize>(&mut self, part: Option<[u8; N]>) {
        self.write(part.as_ref().map_or(&[], |part| &part[..]));
    }

    fn write_policy(&mut self, policy: &RetryPolicy) {
        // Taken apart, so that a new setting can't be forgotten here.
        let RetryPolicy { max_attempts, first_delay, factor, max_delay, exhausted, rules } = policy;
        self.write(&max_attempts.to_le_bytes());
        self.write(&first_delay.as_nanos().to_le_bytes());
        self.write(&factor.to_bits().to_le_bytes());
        self.write(&max_delay.as_nanos().to_le_bytes());
        self.write(exhausted.name().as_bytes());
        self.write(&(rules.len() as u64).to_le_bytes());
        for rule in rules {
            self.write_rule(rule);
        }
    }

    fn write_rule(&mut self, rule: &RetryRule) {
        let RetryRule { class, topic, max_attempts, first_delay, factor, max_delay, exhausted } = rule;
        self.write(class.as_deref().unwrap_or_default().as_bytes());
        self.write(topic.as_deref().unwrap_or_default().as_bytes());
        self.write_some(max_attempts.map(u32::to_le_bytes));
        self.write_some(first_delay.map(|delay| delay.as_nanos().to_le_bytes()));
        self.write_some(factor.map(|factor| factor.to_bits().to_le_bytes()));
        self.write_some(max_delay.map(|delay| delay.as_nanos().to_le_bytes()));
        self.write(exhausted.map_or("", Exhausted::name).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn with_rules(rules: impl Into<Vec<RetryRule>>) -> RetryPolicy {
        RetryPolicy { rules: rules.into(), ..RetryPolicy::default() }
    }

    fn attempts(class: &str, max_attempts: u32) -> RetryRule {
        RetryRule { class: Some(class.into()), max_attempts: Some(max_attempts), ..RetryRule::default() }
    }

    #[test]
    fn a_fingerprint_stays_the_same_in_every_build() {
        let of_topic = RetryRule {
            topic: Some("orders.*".into()),
            factor: Some(1.5),
            exhausted: Some(Exhausted::PauseTopic),
            ..RetryRule::default()
        };
        let policy = with_rules([attempts("timeout", 1), attempts("no-leader", 3), of_topic]);
        assert_eq!(fingerprint("/shop", &policy, None), PINNED);
    }

    /// Another value here makes relays of two versions report each other during an upgrade.
    const PINNED: i64 = -4_694_842_391_208_941_988;

    #[test]
    fn every_setting_that_decides_about_messages_changes_it() {
        let default = RetryPolicy::default;
        let rule = RetryRule::default;
        let policies = [
            default(),
            RetryPolicy { max_attempts: 3, ..default() },
            RetryPolicy { first_delay: S * 2, ..default() },
            RetryPolicy { factor: 3.0, ..default() },
            RetryPolicy { max_delay: S * 2, ..default() },
            RetryPolicy { exhausted: Exhausted::Hold, ..default() },
            RetryPolicy { exhausted: Exhausted::Discard, ..default() },
            RetryPolicy { exhausted: Exhausted::PauseTopic, ..default() },
            with_rules([rule()]),
            with_rules([attempts("timeout", 1)]),
            with_rules([attempts("timeout", 2)]),
            with_rules([attempts("a", 1), attempts("b", 2)]),
            with_rules([attempts("b", 2), attempts("a", 1)]),
            with_rules([RetryRule { topic: Some("orders".into()), ..attempts("timeout", 1) }]),
            with_rules([RetryRule { topic: Some("timeout".into()), ..rule() }]),
            with_rules([RetryRule { class: Some("timeout".into()), ..rule() }]),
            with_rules([RetryRule { first_delay: Some(S), ..rule() }]),
            with_rules([RetryRule { max_delay: Some(S), ..rule() }]),
            with_rules([RetryRule { factor: Some(1.0), ..rule() }]),
            with_rules([RetryRule { exhausted: Some(Exhausted::Hold), ..rule() }]),
        ];
        let all: Vec<i64> = policies
            .iter()
            .flat_map(|policy| ["/shop", "/store"].map(|of| fingerprint(of, policy, None)))
            .chain([S, S * 2].map(|kept| fingerprint("/shop", &default(), Some(kept))))
            .collect();
        let different: std::collections::BTreeSet<&i64> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "{all:?}");
    }
}
