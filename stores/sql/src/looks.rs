//! Looks: what the relays of this process know of the outbox, so that they are woken for nothing
//! else. Pure.
//!
//! A store that can't be notified asks the database every few milliseconds for messages of other
//! processes. It need not while a relay looks as often, nor for messages that a relay has seen, nor
//! for those of buckets that another process relays.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outbox_contract::Route;
use outbox_contract::backend::{Bucket, BucketSet, FetchedRow, Position};

/// Looks of this process's relays, by route.
#[derive(Debug, Default)]
pub struct Looks(Mutex<BTreeMap<Route, Look>>);

/// Knowledge of a route.
#[derive(Debug)]
struct Look {
    /// Start of the last look.
    at: Instant,
    /// Buckets that relays have looked into, and when they did last.
    buckets: Vec<(BucketSet, Instant)>,
    /// Messages that a relay has seen, or was woken for, the latest last.
    known: VecDeque<Position>,
    /// The highest of all of these.
    newest: Position,
}

/// Number of messages that are remembered. One that is forgotten costs a look for nothing.
const KNOWN: usize = 256;

/// Number of messages of a route that are worth a comparison.
pub const NEWEST: usize = 64;

/// Time after which buckets that are not looked into any more are forgotten, once a relay looks
/// into others.
const PASSED: Duration = Duration::from_secs(10);

/// Part of the time since the last message for which a watch pauses, as one to so many: what it adds
/// to the wait of a message is little beside the gap in front of it.
const PART: u32 = 100;

/// Longest pause of an idle watch, in intervals.
const LONGEST: u32 = 10;

/// Pace of a watch for messages of other processes: it slows down while none come.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    interval: Duration,
    /// The highest position that was known.
    latest: Position,
    /// Time at which it changed.
    since: Instant,
}

impl Pace {
    /// Creates the pace of a watch that begins now.
    #[must_use]
    pub const fn new(interval: Duration, latest: Position, now: Instant) -> Self {
        Self { interval, latest, since: now }
    }

    /// Returns the pause until the next question, given the [latest](Looks::latest) position.
    pub fn pause(&mut self, latest: Position, now: Instant) -> Duration {
        if latest != self.latest {
            (self.latest, self.since) = (latest, now);
        }
        let idle = now.saturating_duration_since(self.since);
        (idle / PART).clamp(self.interval, self.interval * LONGEST)
    }
}

impl Looks {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Route, Look>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a relay begins to look for messages in these buckets.
    pub fn begins(&self, route: &Route, buckets: &BucketSet, now: Instant) {
        let mut all = self.all();
        let Some(look) = all.get_mut(route) else {
            let (known, newest) = (VecDeque::new(), Position::START);
            let buckets = vec![(*buckets, now)];
            all.insert(route.clone(), Look { at: now, buckets, known, newest });
            return;
        };
        look.at = now;
        look.buckets.retain(|(set, at)| set != buckets && now.saturating_duration_since(*at) < PASSED);
        look.buckets.push((*buckets, now));
    }

    /// Records what a fetch of a route has returned.
    pub fn found(&self, route: &Route, rows: &[FetchedRow]) {
        if let Some(look) = self.all().get_mut(route) {
            let first = rows.len().saturating_sub(KNOWN);
            rows[first..].iter().for_each(|row| look.know(row.position()));
        }
    }

    /// Returns the routes into which nobody has looked for this long, out of those that relays of
    /// this process serve.
    #[must_use]
    pub fn quiet(&self, for_long: Duration, now: Instant) -> Vec<Route> {
        let is_quiet = |look: &Look| now.saturating_duration_since(look.at) >= for_long;
        self.all().iter().filter(|(_, look)| is_quiet(look)).map(|(route, _)| route.clone()).collect()
    }

    /// Returns the highest position that is known of a route.
    #[must_use]
    pub fn newest(&self, route: &Route) -> Position {
        self.all().get(route).map_or(Position::START, |look| look.newest)
    }

    /// Returns the highest position that is known of any route. It changes with each new message.
    #[must_use]
    pub fn latest(&self) -> Position {
        self.all().values().map(|look| look.newest).max().unwrap_or(Position::START)
    }

    /// Returns true if a message is among these that the relays of this process are to be woken
    /// for, and have not been. Without a bucket, it may be in any.
    pub fn is_news(&self, route: &Route, rows: &[(Position, Option<Bucket>)]) -> bool {
        let mut all = self.all();
        let Some(look) = all.get_mut(route) else { return false };
        let mut is_news = false;
        for (position, bucket) in rows {
            if look.known.contains(position) {
                continue;
            }
            look.know(*position);
            let may_be_in =
                |(buckets, _): &(BucketSet, Instant)| bucket.is_none_or(|bucket| buckets.contains(bucket));
            is_news |= look.buckets.iter().any(may_be_in);
        }
        is_news
    }
}

impl Look {
    fn know(&mut self, position: Position) {
        if self.known.len() == KNOWN {
            self.known.pop_front();
        }
        self.known.push_back(position);
        self.newest = self.newest.max(position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rows(positions: impl IntoIterator<Item = i64>) -> Vec<(Position, Option<Bucket>)> {
        positions.into_iter().map(|position| (Position(position), Some(Bucket(7)))).collect()
    }

    #[test]
    fn a_route_is_quiet_when_no_relay_has_looked_for_as_long() {
        let (looks, route, now) = (Looks::default(), Route::default(), Instant::now());
        assert!(looks.quiet(Duration::ZERO, now).is_empty(), "no relay serves it");
        looks.begins(&route, &BucketSet::ALL, now);
        assert!(looks.quiet(MS * 10, now + MS * 9).is_empty());
        assert_eq!(looks.quiet(MS * 10, now + MS * 10), [route]);
    }

    #[test]
    fn a_message_is_news_once_and_not_if_a_relay_has_seen_it() {
        let (looks, route, now) = (Looks::default(), Route::default(), Instant::now());
        assert!(!looks.is_news(&route, &rows([1])), "no relay serves it");
        looks.begins(&route, &BucketSet::ALL, now);
        looks.found(&route, &[FetchedRow::Muted(Position(5))]);
        assert!(!looks.is_news(&route, &rows([5])));
        assert!(looks.is_news(&route, &rows([5, 4])), "one that was committed late");
        assert!(!looks.is_news(&route, &rows([5, 4])));
        assert_eq!(looks.newest(&route), Position(5));
    }

    #[test]
    fn a_message_of_another_relays_bucket_is_no_news() {
        let (looks, route, now) = (Looks::default(), Route::default(), Instant::now());
        let (one, two) = (BucketSet::from_iter([Bucket(7)]), BucketSet::from_iter([Bucket(8)]));
        looks.begins(&route, &one, now);
        looks.begins(&route, &two, now);
        assert!(looks.is_news(&route, &rows([1])), "two relays of this process");
        looks.begins(&route, &two, now + PASSED);
        assert!(!looks.is_news(&route, &rows([2])), "one has gone");
        assert!(looks.is_news(&route, &[(Position(3), None)]));
    }

    #[test]
    fn an_idle_watch_asks_less_often_until_a_message_comes() {
        let began = Instant::now();
        let mut pace = Pace::new(MS * 10, Position(7), began);
        let mut paused = |latest, at| pace.pause(Position(latest), began + MS * at).as_millis();
        assert_eq!(
            [0, 1_000, 2_000, 5_000, 10_000, 60_000].map(|at| paused(7, at)),
            [10, 10, 20, 50, 100, 100]
        );
        assert_eq!(paused(8, 61_000), 10, "a message has come");
        assert_eq!([62_000, 66_000].map(|at| paused(8, at)), [10, 50]);
    }

    #[test]
    fn a_message_of_any_route_is_the_latest() {
        let (looks, now) = (Looks::default(), Instant::now());
        assert_eq!(looks.latest(), Position::START);
        let [one, other] = [Route::default(), Route::new("other").unwrap()];
        looks.begins(&one, &BucketSet::ALL, now);
        looks.begins(&other, &BucketSet::ALL, now);
        looks.found(&other, &[FetchedRow::Muted(Position(5))]);
        assert_eq!(looks.latest(), Position(5));
        assert!(looks.is_news(&one, &rows([6])));
        assert_eq!(looks.latest(), Position(6));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (looks, route) = (Looks::default(), Route::default());
        looks.begins(&route, &BucketSet::ALL, Instant::now());
        let many: Vec<FetchedRow> = (1..=1_000).map(|n| FetchedRow::Muted(Position(n))).collect();
        looks.found(&route, &many);
        assert!(!looks.is_news(&route, &rows(937..=1_000)));
        assert!(looks.all()[&route].known.len() <= KNOWN);
        assert!(looks.is_news(&route, &rows([1])), "forgotten");
    }
}
