//! Partitions of a member that did not begin where the group left them, and what was lost of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use outbox_contract::backend::{Loss, LossCause, Problem, Unit};
use rdkafka::topic_partition_list::Offset;

use crate::positions::Begin;

/// Pause after a commit that failed: the group is in a rebalance, or its coordinator moves.
const REST: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(crate) struct Begun {
    /// Partitions of which nothing is read, until somebody decides.
    refused: BTreeMap<Unit, Problem>,
    /// Beginnings of a new consumer, which the group is to be told: so that an offset that is
    /// missing later is one that was lost.
    starts: BTreeMap<Unit, i64>,
    /// Until then they are not told again: it went wrong.
    rests_until: Option<Instant>,
    /// Partitions that the client reads elsewhere than it wanted to, as their log was trimmed.
    trimmed: BTreeSet<Unit>,
    losses: Vec<Loss>,
}

impl Begun {
    /// Partitions are taken up.
    pub(crate) fn take_up(&mut self, units: &[Unit], begins: Vec<Begin>) {
        let before = std::mem::take(&mut self.refused);
        self.refused.extend(
            before
                .iter()
                .filter(|(unit, _)| !units.contains(unit))
                .map(|(unit, it)| (unit.clone(), it.clone())),
        );
        for Begin { unit, at, loss } in begins {
            if let (None, Some(Offset::Offset(at))) = (&loss, at) {
                self.starts.insert(unit, at);
                continue;
            }
            let Some(loss) = loss else { continue };
            if at.is_none() {
                let new = || Problem::new(unit.topic.clone(), Some(unit.number), loss.words.clone());
                let problem = before.get(&unit).cloned().unwrap_or_else(new);
                self.refused.insert(unit.clone(), problem);
            }
            // A rebalance finds it again.
            if at.is_some() || !before.contains_key(&unit) {
                self.losses.push(loss);
            }
        }
    }

    /// Partitions are given up.
    pub(crate) fn give_up(&mut self, units: &[Unit]) {
        for unit in units {
            self.refused.remove(unit);
            self.starts.remove(unit);
            self.trimmed.remove(unit);
        }
    }

    pub(crate) fn is_refused(&self, unit: &Unit) -> bool {
        self.refused.contains_key(unit)
    }

    pub(crate) fn problems(&self) -> impl Iterator<Item = Problem> + '_ {
        self.refused.values().cloned()
    }

    /// Returns the beginnings that the group is to be told now.
    pub(crate) fn starts(&self, now: Instant) -> BTreeMap<Unit, i64> {
        let rests = self.rests_until.is_some_and(|until| now < until);
        if rests { BTreeMap::new() } else { self.starts.clone() }
    }

    /// The group has offsets of what is finished of these: their beginnings are of no interest any
    /// more.
    pub(crate) fn finished<'u>(&mut self, units: impl Iterator<Item = &'u Unit>) {
        for unit in units {
            self.starts.remove(unit);
        }
    }

    /// The group was told, or could not be.
    pub(crate) fn told(&mut self, starts: &BTreeMap<Unit, i64>, well: bool, now: Instant) {
        self.rests_until = (!well).then(|| now + REST);
        if well {
            self.starts.retain(|unit, _| !starts.contains_key(unit));
        }
    }

    /// The client says that it reads a partition elsewhere, as its offset is not in the log.
    pub(crate) fn is_trimmed(&mut self, unit: Unit) {
        self.trimmed.insert(unit);
    }

    /// The next record of a partition came, in place of the one that was expected.
    pub(crate) fn came(&mut self, unit: &Unit, expected: Option<i64>, offset: i64) {
        if self.trimmed.is_empty() || !self.trimmed.remove(unit) {
            return;
        }
        if let Some(expected) = expected.filter(|expected| *expected < offset) {
            let words = format!(
                "the log now begins at offset {offset} (retention or a deletion), and the consumer was at {expected}"
            );
            self.losses.push(
                Loss::new(unit.clone(), LossCause::Trimmed, words).with_messages(offset.abs_diff(expected)),
            );
        }
    }

    pub(crate) fn take_losses(&mut self) -> Vec<Loss> {
        std::mem::take(&mut self.losses)
    }
}

/// The partition of which the client says in its log that it reads it elsewhere: its topic and
/// number.
pub(crate) fn reset_of(words: &str) -> Option<(&str, i32)> {
    let (partition, rest) = words.split_once("]: offset reset (at ")?;
    let (topic, number) = partition.rsplit_once(" [")?;
    rest.contains("Offset out of range").then_some(())?;
    Some((topic.rsplit(' ').next()?, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit() -> Unit {
        Unit { topic: "orders".parse().unwrap(), number: 1 }
    }

    fn refused() -> Begin {
        Begin { unit: unit(), at: None, loss: Some(Loss::new(unit(), LossCause::Position, "no offset")) }
    }

    #[test]
    fn what_is_refused_is_said_once_and_until_it_is_given_up() {
        let mut begun = Begun::default();
        begun.take_up(&[unit()], vec![refused()]);
        let since = begun.problems().next().unwrap().since;
        begun.take_up(&[unit()], vec![refused()]);
        assert_eq!(begun.problems().next().unwrap().since, since);
        assert_eq!(begun.take_losses().len(), 1);
        assert!(begun.is_refused(&unit()));
        begun.take_up(&[unit()], Vec::new());
        assert!(!begun.is_refused(&unit()), "it has an offset by now");
        begun.take_up(&[unit()], vec![refused()]);
        begun.give_up(&[unit()]);
        assert_eq!(begun.problems().count(), 0);
    }

    #[test]
    fn a_beginning_is_told_until_the_group_has_it_or_something_is_finished() {
        let (mut begun, now) = (Begun::default(), Instant::now());
        let start = || Begin { unit: unit(), at: Some(Offset::Offset(7)), loss: None };
        begun.take_up(&[unit()], vec![start()]);
        let starts = begun.starts(now);
        assert_eq!(starts[&unit()], 7);
        begun.told(&starts, false, now);
        assert!(begun.starts(now).is_empty() && begun.starts(now + REST) == starts);
        begun.finished([unit()].iter());
        assert!(begun.starts(now + REST).is_empty(), "that would put it back");
        begun.take_up(&[unit()], vec![start()]);
        begun.told(&starts, true, now);
        assert!(begun.starts(now + REST).is_empty());
    }

    #[test]
    fn a_gap_behind_an_offset_that_is_out_of_range_is_a_loss() {
        let words = "[thrd:main]: orders [1]: offset reset (at offset 4 (leader epoch 0), broker 1) to BEGINNING: fetch failed: Broker: Offset out of range";
        assert_eq!(reset_of(words), Some(("orders", 1)));
        assert_eq!(
            reset_of("orders [1]: offset reset (at offset 4, broker 1) to END: something: else"),
            None
        );
        let mut begun = Begun::default();
        begun.came(&unit(), Some(4), 10);
        assert!(begun.take_losses().is_empty(), "a log has gaps");
        begun.is_trimmed(unit());
        begun.came(&unit(), Some(4), 10);
        assert_eq!(begun.take_losses()[0].messages, Some(6));
        begun.came(&unit(), Some(11), 20);
        assert!(begun.take_losses().is_empty());
    }
}
