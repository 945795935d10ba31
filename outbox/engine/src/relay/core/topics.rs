//! Topics that are not published now: unavailable ones, which are retried after growing delays, and
//! those that an operator or the retry policy paused.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_contract::Topic;

use crate::pausing::Pausing;

/// Minimum interval of warnings about an unavailable topic. A warning for each retry would fill the
/// log.
const WARN_EVERY: Duration = Duration::from_secs(600);

/// Topics that are read apart from the others.
#[derive(Debug)]
pub(super) struct Topics {
    first_delay: Duration,
    max_delay: Duration,
    /// Time after its last retry from which a topic without news no longer counts as unavailable.
    /// It may have nothing left to publish.
    silence: Duration,
    apart: BTreeMap<Topic, Apart>,
}

#[derive(Clone, Debug, Default)]
struct Apart {
    paused: bool,
    /// Pause by the retry policy, until the store tells of it.
    pausing: Pausing,
    /// Number of the command that asked the store for it.
    asked: u64,
    /// Number of consecutive failures without a message published in between.
    failures: u32,
    /// Instant of the next retry. `None`: the retry is running, or the topic is paused.
    try_at: Option<Duration>,
    /// Instant of the last retry.
    tried_at: Duration,
    /// Instant of the last warning.
    warned_at: Option<Duration>,
}

impl Topics {
    /// Creates an empty set. `publish_timeout`: time until the outcome of a batch is known.
    pub(super) fn new(first_delay: Duration, max_delay: Duration, publish_timeout: Duration) -> Self {
        let silence = publish_timeout.saturating_add(max_delay);
        Self { first_delay, max_delay, silence, apart: BTreeMap::new() }
    }

    /// Records that a topic is unavailable. Returns true if a warning is due.
    pub(super) fn broken(&mut self, topic: &Topic, now: Duration) -> bool {
        let apart = self.apart.entry(topic.clone()).or_default();
        // Several batches meet the same fault, and share one delay.
        if apart.try_at.is_none() {
            let doublings = apart.failures.min(16);
            apart.failures = apart.failures.saturating_add(1);
            apart.try_at = Some(now + self.first_delay.saturating_mul(1 << doublings).min(self.max_delay));
        }
        let warns = apart.warned_at.is_none_or(|at| now.saturating_sub(at) >= WARN_EVERY);
        if warns {
            apart.warned_at = Some(now);
        }
        warns
    }

    /// Records that a message of a topic was published. Returns true if the topic counted as
    /// unavailable.
    pub(super) fn published(&mut self, topic: &Topic) -> bool {
        let Some(apart) = self.apart.get_mut(topic) else { return false };
        // Before the retry, this was a batch in flight when the topic failed.
        if apart.try_at.is_some() {
            return false;
        }
        apart.warned_at = None;
        std::mem::take(&mut apart.failures) > 0
    }

    /// Pauses a topic by the retry policy. `number`: of the command that asks the store for it.
    /// Returns false if one has asked already.
    pub(super) fn ask_to_pause(&mut self, topic: &Topic, number: u64) -> bool {
        let apart = self.apart.entry(topic.clone()).or_default();
        if apart.pausing.is_asked() {
            return false;
        }
        apart.pausing.ask();
        (apart.paused, apart.asked) = (true, number);
        true
    }

    /// Records that the store has the pause that this command asked for.
    pub(super) fn stored(&mut self, number: u64, now: Duration) {
        let asked = self.apart.values_mut().find(|apart| apart.asked == number);
        if let Some(apart) = asked {
            apart.pausing.stored(now);
        }
    }

    /// Sets the topics that are paused in the store, as a heartbeat tells that began at `begun`.
    /// Returns the newly paused ones, which are to be closed.
    pub(super) fn pause(&mut self, paused: &[Topic], begun: Duration) -> Vec<Topic> {
        for (topic, apart) in &mut self.apart {
            if !apart.pausing.look(paused.contains(topic), begun) && apart.paused {
                apart.paused = false;
                apart.try_at = Some(Duration::ZERO);
            }
        }
        let mut newly = Vec::new();
        for topic in paused {
            let apart = self.apart.entry(topic.clone()).or_default();
            if !apart.paused {
                apart.paused = true;
                newly.push(topic.clone());
            }
        }
        newly
    }

    /// Returns the topics whose retry is due, and starts it.
    pub(super) fn open_due(&mut self, now: Duration) -> Vec<Topic> {
        let mut open = Vec::new();
        for (topic, apart) in &mut self.apart {
            let due = apart.try_at.is_some_and(|at| at <= now);
            if due && !apart.paused {
                apart.try_at = None;
                apart.tried_at = now;
                open.push(topic.clone());
            }
        }
        open
    }

    /// Returns the instant of the next retry.
    pub(super) fn next(&self) -> Option<Duration> {
        self.apart.values().filter(|apart| !apart.paused).filter_map(|apart| apart.try_at).min()
    }

    /// Drops topics that have caught up: something was published since the failure, or there was no
    /// news for long.
    pub(super) fn keep(&mut self, now: Duration, is_apart: impl Fn(&Topic) -> bool) {
        let silence = self.silence;
        self.apart.retain(|topic, apart| {
            let is_tried = apart.failures > 0 && now.saturating_sub(apart.tried_at) < silence;
            apart.paused || apart.try_at.is_some() || is_tried || is_apart(topic)
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.apart.is_empty()
    }

    /// Returns the names of the topics.
    pub(super) fn names(&self) -> Vec<String> {
        self.apart.keys().map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn topic() -> Topic {
        Topic::new("orders").unwrap()
    }

    fn topics() -> Topics {
        Topics::new(S, S * 8, S * 5)
    }

    #[test]
    fn a_broken_topic_is_tried_again_once_for_all_batches_that_meet_its_fault() {
        let mut topics = topics();
        assert!(topics.broken(&topic(), S));
        assert!(!topics.broken(&topic(), S), "another batch meets the same fault");
        assert!(topics.open_due(S).is_empty());
        assert_eq!(topics.open_due(S * 2), [topic()]);
        assert_eq!(topics.next(), None, "it is being tried");
        topics.broken(&topic(), S * 2);
        assert_eq!(topics.next(), Some(S * 4));
        topics.keep(S * 3, |_| false);
        assert_eq!(topics.names(), ["orders"], "it waits to be tried");
    }

    #[test]
    fn waits_grow_to_their_bound_and_warnings_are_rare_until_something_is_published() {
        let mut topics = topics();
        let (mut now, mut waits, mut warnings) = (S, Vec::new(), Vec::new());
        while now < S * 1_300 {
            if topics.broken(&topic(), now) {
                warnings.push(now.as_secs());
            }
            let at = topics.next().unwrap();
            waits.push((at - now).as_secs());
            assert!(!topics.published(&topic()), "that was on its way");
            now = at;
            assert_eq!(topics.open_due(now), [topic()]);
            // Its few messages are all in memory at once.
            topics.keep(now + S, |_| false);
            assert_eq!(topics.names(), ["orders"], "nothing of it is published");
        }
        assert_eq!(waits[..5], [1, 2, 4, 8, 8]);
        assert!(waits[5..].iter().all(|wait| *wait == 8));
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(topics.published(&topic()));
        assert!(!topics.published(&topic()), "said once");
        topics.keep(now, |_| true);
        assert_eq!(topics.names(), ["orders"], "it catches up");
        topics.keep(now, |_| false);
        assert!(topics.names().is_empty());
        assert!(topics.broken(&topic(), now), "it is news again");
        assert_eq!(topics.next(), Some(now + S));
    }

    #[test]
    fn a_topic_with_nothing_left_to_publish_is_broken_no_more_after_a_while() {
        let mut topics = topics();
        topics.broken(&topic(), S);
        topics.open_due(S * 2);
        topics.keep(S * 14, |_| false);
        assert_eq!(topics.names(), ["orders"], "its try may be under way");
        topics.keep(S * 15, |_| false);
        assert!(topics.names().is_empty());
    }

    #[test]
    fn a_topic_that_the_policy_pauses_waits_for_a_heartbeat_that_can_show_its_end() {
        let mut topics = topics();
        assert!(topics.ask_to_pause(&topic(), 7));
        assert!(!topics.ask_to_pause(&topic(), 8), "one command has asked");
        // The store may not have it yet.
        assert!(topics.pause(&[], S).is_empty() && topics.open_due(S * 100).is_empty());
        topics.stored(6, S);
        topics.pause(&[], S * 9);
        assert!(topics.open_due(S * 100).is_empty(), "the answer to another command");
        topics.stored(7, S * 10);
        topics.pause(&[], S * 9);
        assert!(topics.open_due(S * 100).is_empty(), "a heartbeat that began before");
        assert!(topics.pause(&[topic()], S * 11).is_empty(), "it is closed already");
        topics.pause(&[], S * 12);
        assert_eq!(topics.open_due(S * 100), [topic()], "an operator has resumed it");
        assert!(topics.ask_to_pause(&topic(), 9), "it can be paused again");
    }

    #[test]
    fn a_paused_topic_is_not_tried_until_it_is_resumed() {
        let mut topics = topics();
        assert_eq!(topics.pause(&[topic()], S), [topic()]);
        assert!(topics.pause(&[topic()], S).is_empty(), "it is paused already");
        assert!(topics.open_due(S * 100).is_empty());
        topics.pause(&[], S);
        assert_eq!(topics.open_due(S), [topic()]);
        topics.keep(S, |_| false);
        assert!(topics.names().is_empty());
    }
}
