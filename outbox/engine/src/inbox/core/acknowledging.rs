//! Acknowledgements: what is finished and the broker was not told of yet, and when it is told.
//!
//! Several deliveries at a time, since to most brokers many cost as much as one. What could not be
//! told is kept, and told again: as long as the subscription lasts the broker may send nothing in
//! its place.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Tag, Unit};

use super::event::{Command, Limits};
use super::{Core, sabotaged};

#[derive(Debug, Default)]
pub(super) struct Acknowledging {
    /// Time that the first of several waits for the others.
    delay: Duration,
    /// Finished deliveries, in the order in which they were finished.
    finished: Vec<Tag>,
    /// The command that is under way, and its deliveries.
    asked: Option<(u64, Arc<Vec<Tag>>)>,
    /// Time to tell, unless there is much to tell before.
    tell_at: Option<Duration>,
    /// Number of failures in a row.
    away: u32,
}

impl Acknowledging {
    pub(super) fn new(delay: Duration) -> Self {
        Self { delay, ..Self::default() }
    }

    pub(super) fn finished(&mut self, tag: Tag) {
        self.finished.push(tag);
    }

    /// Time at which the broker is to be told.
    pub(super) fn at(&self) -> Option<Duration> {
        self.tell_at.filter(|_| self.asked.is_none())
    }

    /// Plans when to tell, if there is something to tell.
    fn plan(&mut self, now: Duration, limits: &Limits) {
        if self.finished.is_empty() || self.tell_at.is_some() {
            return;
        }
        let (first, longest) = limits.outage_delays;
        let doublings = self.away.checked_sub(1);
        let wait = doublings
            .map_or(self.delay, |doublings| first.saturating_mul(1 << doublings.min(16)).min(longest));
        self.tell_at = Some(now + wait);
    }

    /// Returns true if there is so much that the broker is told at once; not while it is away.
    fn is_much(&self, limits: &Limits) -> bool {
        self.away == 0 && !self.finished.is_empty() && self.finished.len() >= limits.told_at_once
    }
}

/// Progress of a drain.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Draining {
    /// Jobs are out, or the broker is being told.
    Waits,
    /// The broker is told for the last time, by the command of this number.
    Tells(u64),
    Over,
}

impl Core {
    /// Tells the broker what is finished, if it is time. `is_tick`: what has come meanwhile is
    /// known, too.
    pub(super) fn acknowledge(&mut self, is_tick: bool) {
        self.acknowledging.plan(self.now, &self.limits);
        let is_due = is_tick && self.acknowledging.at().is_some_and(|at| at <= self.now);
        if self.acknowledging.asked.is_none() && (is_due || self.acknowledging.is_much(&self.limits)) {
            self.tell();
        }
    }

    fn tell(&mut self) -> u64 {
        let number = self.next_number();
        let tags = Arc::new(std::mem::take(&mut self.acknowledging.finished));
        self.acknowledging.tell_at = None;
        self.acknowledging.asked = Some((number, Arc::clone(&tags)));
        self.commands.push(Command::Acknowledge { number, tags });
        number
    }

    /// The broker was told, or could not be told now.
    pub(super) fn acknowledged(&mut self, number: u64, told: bool) {
        let known = self
            .acknowledging
            .asked
            .take_if(|(asked, _)| *asked == number || sabotaged!(self, AnyAnswerCounts));
        let Some((_, tags)) = known else { return };
        if told || sabotaged!(self, UntoldForgotten) {
            self.acknowledging.away = 0;
        } else {
            self.acknowledging.away = self.acknowledging.away.saturating_add(1);
            let later = std::mem::replace(&mut self.acknowledging.finished, tags.to_vec());
            self.acknowledging.finished.extend(later);
            forget_stale(&mut self.acknowledging.finished);
            // Planned anew: the wait is another one now.
            self.acknowledging.tell_at = None;
        }
        if self.draining == Some(Draining::Tells(number)) {
            self.drained(self.acknowledging.finished.is_empty());
        }
    }

    /// Goes on with a drain: when nothing is being handled any more, the broker is told once, and
    /// then it is over.
    pub(super) fn go_on_draining(&mut self) {
        let is_idle = self.jobs.is_empty() || sabotaged!(self, DrainsTooEarly);
        if self.draining != Some(Draining::Waits) || !is_idle || self.acknowledging.asked.is_some() {
            return;
        }
        if self.acknowledging.finished.is_empty() {
            self.drained(true);
        } else {
            self.draining = Some(Draining::Tells(self.tell()));
        }
    }

    fn drained(&mut self, is_clean: bool) {
        self.draining = Some(Draining::Over);
        self.commands.push(Command::Drained { is_clean });
    }
}

/// Drops what belongs to an earlier ownership of its unit: it means nothing any more, and must not
/// pile up.
fn forget_stale(tags: &mut Vec<Tag>) {
    let mut latest: BTreeMap<Unit, u64> = BTreeMap::new();
    for tag in tags.iter() {
        let seen = latest.entry(tag.unit.clone()).or_default();
        *seen = tag.incarnation.max(*seen);
    }
    tags.retain(|tag| latest.get(&tag.unit) == Some(&tag.incarnation));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_ownership_of_each_unit_is_told_again() {
        let tag = |unit, incarnation, number| {
            let unit = Unit { topic: "orders".parse().unwrap(), number: unit };
            Tag { unit, incarnation, number }
        };
        let mut tags = vec![tag(0, 1, 5), tag(1, 1, 1), tag(0, 2, 5), tag(0, 1, 6), tag(0, 2, 7)];
        forget_stale(&mut tags);
        assert_eq!(tags, [tag(1, 1, 1), tag(0, 2, 5), tag(0, 2, 7)]);
    }
}
