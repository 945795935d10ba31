//! Timeout of a batch: time for which its partitions are waited for. Pure.
//!
//! A batch that is given up is sent again, and with it all that is under way on the same producer:
//! a broker that is slow, or that holds a client back by a quota, would have everything to carry
//! twice. So a partition is waited for while it comes nearer to its next answer. What hangs is not,
//! whatever goes on beside it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::gapless::Partition;
use crate::under_way::Ahead;

/// Number of looks at a batch in its time.
const LOOKS: u32 = 10;
/// After so many looks without progress a partition is given up. The rest of the time is for
/// finding out why.
const QUIET: u32 = 7;

/// Progress of the partitions of a batch.
#[derive(Debug)]
pub(crate) struct PublishTimeout<'c> {
    began: Instant,
    time: Duration,
    // Only of those that were looked at: mostly all is answered before.
    watched: BTreeMap<&'c Partition, Watched>,
}

#[derive(Debug)]
struct Watched {
    ahead: Option<Ahead>,
    /// Time of its last progress, or else of the batch's beginning.
    since: Instant,
}

impl<'c> PublishTimeout<'c> {
    /// Creates the timeout of a batch that has so much time from then on.
    pub(crate) const fn new(began: Instant, time: Duration) -> Self {
        Self { began, time, watched: BTreeMap::new() }
    }

    /// Returns the interval of looks.
    pub(crate) fn every(&self) -> Duration {
        (self.time / LOOKS).max(Duration::from_millis(1))
    }

    /// Returns the time of the first look.
    pub(crate) fn first(&self) -> Instant {
        self.began + self.every()
    }

    /// Looks at the partitions that are not answered. `ahead`: what stands before the next answer
    /// of each, where anything was handed over.
    pub(crate) fn look(
        &mut self,
        open: impl IntoIterator<Item = &'c Partition>,
        ahead: &BTreeMap<Partition, Ahead>,
        now: Instant,
    ) {
        for partition in open {
            let ahead = ahead.get(partition).copied();
            let watched = self.watched.entry(partition).or_insert(Watched { ahead: None, since: self.began });
            // That the first of it was handed over is no answer.
            if watched.ahead.is_some() && watched.ahead != ahead {
                watched.since = now;
            }
            watched.ahead = ahead;
        }
    }

    /// Returns the time since which a partition has not come nearer to its answer.
    pub(crate) fn since(&self, partition: &Partition) -> Instant {
        self.watched.get(partition).map_or(self.began, |watched| watched.since)
    }

    /// Returns true if a partition is to be given up.
    pub(crate) fn is_silent(&self, partition: &Partition, now: Instant) -> bool {
        now >= self.given_up(self.since(partition))
    }

    /// Returns the time at which what is quiet since then is given up.
    pub(crate) fn given_up(&self, since: Instant) -> Instant {
        since + self.every() * QUIET
    }

    /// Returns the time at which it has to be known why.
    pub(crate) fn over(&self, since: Instant) -> Instant {
        since + self.time
    }

    /// Returns the time at which the batch began.
    pub(crate) const fn began(&self) -> Instant {
        self.began
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Topic;

    use super::*;
    use crate::flight::{Flight, Flights};

    /// After how many looks a partition is given up, in whose way so much stands at each look.
    fn looks(ahead: impl Fn(u32) -> Option<Ahead>) -> u32 {
        let partition = (Topic::new("orders").unwrap(), 0);
        let began = Instant::now();
        let mut publish_timeout = PublishTimeout::new(began, Duration::from_secs(LOOKS.into()));
        let silent = |look: &u32| {
            let now = began + publish_timeout.every() * *look;
            let ahead = ahead(*look).map(|ahead| (partition.clone(), ahead));
            publish_timeout.look([&partition], &ahead.into_iter().collect(), now);
            publish_timeout.is_silent(&partition, now)
        };
        (1..1_000).find(silent).unwrap()
    }

    /// Returns the distance of a flight of which so many messages are open.
    fn open(messages: usize) -> Option<Ahead> {
        let flights = Flights::default();
        let flight = Flight::new((Topic::new("orders").unwrap(), 0), vec![0; messages]);
        flights.add(&flight);
        flights.sending(&flight);
        flights.ahead().into_values().next()
    }

    #[test]
    fn what_hangs_is_given_up_in_time_also_where_it_was_handed_over_late() {
        assert_eq!(looks(|_| open(5)), QUIET);
        assert_eq!(looks(|_| None), QUIET);
        assert_eq!(looks(|look| if look < 4 { None } else { open(5) }), QUIET);
    }

    #[test]
    fn what_comes_nearer_to_its_answer_is_waited_for() {
        assert_eq!(looks(|look| open(100_usize.saturating_sub(look as usize).max(40))), 60 + QUIET);
        assert_eq!(looks(|look| open(10 - (look as usize / 6).min(9))), 54 + QUIET, "a bit in six looks");
        assert_eq!(looks(|look| open(10 - (look as usize / 8).min(9))), QUIET, "too little");
        assert_eq!(
            looks(|look| if look < 5 { open(3) } else { None }),
            5 + QUIET,
            "then nothing is under way"
        );
    }
}
