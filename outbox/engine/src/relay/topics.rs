//! Topics that are not published now: broken ones, which are tried again by and by, and those that an operator paused. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_contract::Topic;

/// The topics that are apart from the others.
#[derive(Debug)]
pub(crate) struct Topics {
    first_delay: Duration,
    most_delay: Duration,
    lanes: usize,
    apart: BTreeMap<Topic, Apart>,
}

#[derive(Clone, Debug, Default)]
struct Apart {
    paused: bool,
    /// How often in a row it turned out to be broken.
    failures: u32,
    /// When it is tried again. None: it is being tried, or paused.
    try_at: Option<Duration>,
    /// Lanes that have not yet said that they have dropped it: it may not be read before all have.
    lanes_left: usize,
}

impl Topics {
    pub(crate) fn new(first_delay: Duration, most_delay: Duration, lanes: usize) -> Self {
        Self { first_delay, most_delay, lanes, apart: BTreeMap::new() }
    }

    /// A topic turned out to be broken. Says whether that is news.
    pub(crate) fn broken(&mut self, topic: &Topic, now: Duration) -> bool {
        let news = !self.apart.contains_key(topic);
        let apart = self.apart.entry(topic.clone()).or_default();
        // Several lanes meet the same fault: one wait for all of them.
        if apart.try_at.is_none() {
            let doublings = apart.failures.min(16);
            apart.failures = apart.failures.saturating_add(1);
            apart.try_at = Some(now + self.first_delay.saturating_mul(1 << doublings).min(self.most_delay));
        }
        news
    }

    /// Lanes are being told to drop a topic.
    pub(crate) fn closing(&mut self, topic: &Topic) {
        self.apart.entry(topic.clone()).or_default().lanes_left += self.lanes;
    }

    /// A lane has dropped it.
    pub(crate) fn forgotten(&mut self, topic: &Topic) {
        if let Some(apart) = self.apart.get_mut(topic) {
            apart.lanes_left = apart.lanes_left.saturating_sub(1);
        }
    }

    /// What operators have paused now. Returns what is newly paused, to be closed.
    pub(crate) fn pause(&mut self, paused: &[Topic]) -> Vec<Topic> {
        for (topic, apart) in &mut self.apart {
            if apart.paused && !paused.contains(topic) {
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

    /// Topics that are to be tried now.
    pub(crate) fn open_due(&mut self, now: Duration) -> Vec<Topic> {
        let mut open = Vec::new();
        for (topic, apart) in &mut self.apart {
            let due = apart.try_at.is_some_and(|at| at <= now);
            if due && !apart.paused && apart.lanes_left == 0 {
                apart.try_at = None;
                open.push(topic.clone());
            }
        }
        open
    }

    /// When the next topic is to be tried.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.apart.values().filter(|apart| !apart.paused).filter_map(|apart| apart.try_at).min()
    }

    /// Drops topics that have caught up.
    pub(crate) fn keep(&mut self, is_apart: impl Fn(&Topic) -> bool) {
        self.apart.retain(|topic, apart| apart.paused || apart.try_at.is_some() || is_apart(topic));
    }

    /// Their names.
    pub(crate) fn names(&self) -> Vec<String> {
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

    #[test]
    fn a_broken_topic_is_tried_again_ever_more_seldom_once_all_lanes_have_dropped_it() {
        let mut topics = Topics::new(S, S * 4, 2);
        assert!(topics.broken(&topic(), S));
        topics.closing(&topic());
        assert!(!topics.broken(&topic(), S), "another lane meets the same fault");
        topics.forgotten(&topic());
        assert!(topics.open_due(S * 2).is_empty(), "one lane has not dropped it");
        topics.forgotten(&topic());
        assert_eq!(topics.open_due(S * 2), [topic()]);
        assert_eq!(topics.next(), None, "it is being tried");
        topics.broken(&topic(), S * 2);
        assert_eq!(topics.next(), Some(S * 4));
        topics.keep(|_| false);
        assert_eq!(topics.names(), ["orders"], "it waits to be tried");
    }

    #[test]
    fn a_paused_topic_is_not_tried_until_it_is_resumed() {
        let mut topics = Topics::new(S, S * 4, 0);
        assert_eq!(topics.pause(&[topic()]), [topic()]);
        assert!(topics.pause(&[topic()]).is_empty(), "it is paused already");
        assert!(topics.open_due(S * 100).is_empty());
        topics.pause(&[]);
        assert_eq!(topics.open_due(S), [topic()]);
        topics.keep(|_| false);
        assert!(topics.names().is_empty());
    }
}
