//! Topics of which a consumer has handled messages, as the store knows them.
//!
//! The broker keeps a consumer's position. When it has none, the consumer is new, or its position
//! is lost: the store tells. Among the handled ids stand marks: one for each topic and day, and one
//! for each topic and hour, in which the consumer had a position there. They are kept as long as
//! ids are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::backend::{Lag, Problem, Tag};
use outbox_contract::{Message, MessageId, Timestamp, Topic};

/// Type of the messages that are noted as handled, and source of their ids.
const MARK: &str = "outbox.consumed";

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;

/// Number of days for which a mark is looked for: longer than ids are mostly kept.
const DAYS: i64 = 35;

/// Time for which nothing is noted after the store failed.
const PAUSE: Duration = Duration::from_secs(30);

/// Returns the id of the mark of a topic, in a span of time of this length.
pub(crate) fn mark(topic: &Topic, span: i64, at: Timestamp) -> MessageId {
    let number = at.as_micros().div_euclid(span);
    MessageId::of_event(MARK, &format!("{topic}\n{}\n{number}", span / HOUR))
}

/// Returns the marks of topics at an instant, as messages to be noted as handled.
pub(crate) fn marks(topics: &[Topic], at: Timestamp) -> Vec<Message> {
    let spans = |topic| [DAY, HOUR].map(|span| Message::of(mark(topic, span, at), Topic::clone(topic), MARK));
    topics.iter().flat_map(spans).collect()
}

/// Returns the instants to look for marks at, the latest first: the days, then the hours of the one
/// that was found. Of ids that are kept for less than a day, only hours are there.
pub(crate) fn days(now: Timestamp) -> impl Iterator<Item = Timestamp> {
    // The first: by another clock it may be tomorrow.
    (-1..=DAYS).map(move |back| Timestamp::from_micros(now.as_micros() - back * DAY))
}

/// Returns the hours of the day of an instant, the latest first.
pub(crate) fn hours_of(day: Timestamp) -> impl Iterator<Item = Timestamp> {
    let begin = day.as_micros().div_euclid(DAY) * DAY;
    (0..24).rev().map(move |hour| Timestamp::from_micros(begin + hour * HOUR))
}

/// Returns the last hours before an instant, the latest first.
pub(crate) fn last_hours(now: Timestamp) -> impl Iterator<Item = Timestamp> {
    let begin = hour_of(now) * HOUR;
    (-1..24).map(move |back| Timestamp::from_micros(begin - back * HOUR))
}

pub(crate) const fn of_day(topic: &Topic, at: Timestamp) -> Asked<'_> {
    Asked { topic, span: DAY, at }
}

pub(crate) const fn of_hour(topic: &Topic, at: Timestamp) -> Asked<'_> {
    Asked { topic, span: HOUR, at }
}

/// A mark that is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'t> {
    topic: &'t Topic,
    span: i64,
    at: Timestamp,
}

impl Asked<'_> {
    pub(crate) fn id(self) -> MessageId {
        mark(self.topic, self.span, self.at)
    }
}

const fn hour_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(HOUR)
}

/// Knowledge of the topics of a subscription.
#[derive(Debug, Default)]
pub(crate) struct Consumed {
    // Held for a few instructions.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The store was asked.
    is_known: bool,
    /// Topics that were handled, and when they last were.
    handled: BTreeMap<Topic, Timestamp>,
    /// Topics in which the consumer has a position now, and the hour in which that was noted last.
    present: BTreeMap<Topic, Option<i64>>,
    quiet_until: Duration,
}

impl Consumed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the store has told.
    pub(crate) fn is_known(&self) -> bool {
        self.state().is_known
    }

    /// The store has told.
    pub(crate) fn know(&self, handled: BTreeMap<Topic, Timestamp>) {
        let mut state = self.state();
        state.is_known = true;
        state.handled = handled;
    }

    /// Returns the topics that were handled.
    pub(crate) fn handled(&self) -> BTreeMap<Topic, Timestamp> {
        self.state().handled.clone()
    }

    /// Begins another subscription: what its positions are is yet to be seen.
    pub(crate) fn forget_positions(&self) {
        self.state().present.clear();
    }

    /// Deliveries were acknowledged: the consumer has a position in their topics.
    pub(crate) fn acknowledged(&self, tags: &[Tag], now: Timestamp) {
        let mut state = self.state();
        let mut last: Option<&Topic> = None;
        for Tag { unit, .. } in tags {
            if last == Some(&unit.topic) {
                continue;
            }
            last = Some(&unit.topic);
            if !state.present.contains_key(&unit.topic) {
                state.present.insert(unit.topic.clone(), None);
                state.handled.entry(unit.topic.clone()).or_insert(now);
            }
        }
    }

    /// These units are read, and those have problems: a topic that was handled before still has its
    /// position, also where nothing comes.
    pub(crate) fn look(&self, lags: &[Lag], problems: &[Problem]) {
        let mut state = self.state();
        let ill: BTreeSet<&Topic> = problems.iter().map(|problem| &problem.topic).collect();
        for Lag { unit, .. } in lags {
            let topic = &unit.topic;
            if !ill.contains(topic) && state.handled.contains_key(topic) && !state.present.contains_key(topic)
            {
                state.present.insert(topic.clone(), None);
            }
        }
    }

    /// Returns the topics that are to be noted now.
    pub(crate) fn to_note(&self, elapsed: Duration, now: Timestamp) -> Vec<Topic> {
        let state = self.state();
        if elapsed < state.quiet_until {
            return Vec::new();
        }
        let due = state.present.iter().filter(|(_, noted)| **noted != Some(hour_of(now)));
        due.map(|(topic, _)| topic.clone()).collect()
    }

    /// Topics were noted.
    pub(crate) fn noted(&self, topics: &[Topic], now: Timestamp) {
        let mut state = self.state();
        for topic in topics {
            if let Some(noted) = state.present.get_mut(topic) {
                *noted = Some(hour_of(now));
            }
            state.handled.insert(topic.clone(), Timestamp::from_micros(hour_of(now) * HOUR));
        }
    }

    /// They could not be noted: it is tried again after a while.
    pub(crate) fn not_noted(&self, elapsed: Duration) {
        self.state().quiet_until = elapsed + PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::backend::Unit;

    use super::*;

    fn topic(name: &str) -> Topic {
        Topic::new(name).unwrap()
    }

    fn unit(name: &str) -> Unit {
        Unit { topic: topic(name), number: 0 }
    }

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_micros(hours * HOUR + 17)
    }

    #[test]
    fn a_mark_is_of_its_topic_and_its_span() {
        let orders = topic("orders");
        let id = |hours| of_hour(&orders, at(hours)).id();
        assert_eq!(id(5), of_hour(&orders, Timestamp::from_micros(6 * HOUR - 1)).id());
        assert!(id(5) != id(6) && id(5) != of_hour(&topic("bills"), at(5)).id());
        assert_eq!(of_day(&orders, at(25)).id(), of_day(&orders, at(47)).id());
        let noted: Vec<MessageId> =
            marks(std::slice::from_ref(&orders), at(25)).into_iter().map(|mark| mark.id).collect();
        assert_eq!(noted, [of_day(&orders, at(30)).id(), id(25)]);
        assert!(hours_of(at(30)).any(|hour| of_hour(&orders, hour).id() == id(25)));
        assert!(days(at(25 + 24 * 34)).any(|day| of_day(&orders, day).id() == noted[0]));
        assert!(last_hours(at(30)).any(|hour| of_hour(&orders, hour).id() == id(25)));
    }

    #[test]
    fn what_has_a_position_is_noted_once_an_hour() {
        let consumed = Consumed::default();
        let due = |hours| consumed.to_note(Duration::ZERO, at(hours));
        assert!(due(1).is_empty());
        let tag = Tag { unit: unit("orders"), incarnation: 1, number: 1 };
        consumed.acknowledged(&[tag.clone(), tag], at(1));
        assert_eq!(due(1), [topic("orders")]);
        consumed.noted(&due(1), at(1));
        assert!(due(1).is_empty());
        assert_eq!(due(2), [topic("orders")]);
        assert_eq!(consumed.handled()[&topic("orders")], Timestamp::from_micros(HOUR));
        consumed.not_noted(Duration::ZERO);
        assert!(due(2).is_empty());
        assert_eq!(consumed.to_note(PAUSE, at(2)), [topic("orders")]);
    }

    #[test]
    fn a_topic_where_nothing_comes_keeps_its_mark_unless_it_is_refused() {
        let consumed = Consumed::default();
        consumed.know(BTreeMap::from([(topic("orders"), at(1)), (topic("bills"), at(1))]));
        let lags = ["orders", "bills", "new"].map(|name| Lag::new(unit(name), 0));
        consumed.look(&lags, &[Problem::new(topic("bills"), Some(0), "its position is lost")]);
        assert_eq!(consumed.to_note(Duration::ZERO, at(9)), [topic("orders")]);
        consumed.forget_positions();
        assert!(consumed.to_note(Duration::ZERO, at(9)).is_empty());
    }
}
