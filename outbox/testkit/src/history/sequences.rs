//! The lean checker: sequence numbers from the writers define the order of commits, and a key costs
//! a few bytes.

use std::collections::HashMap;
use std::fmt;

/// Finds lost, repeated and out-of-order messages by sequence numbers. Writers number the messages
/// of each key 1, 2, 3 … in the order in which they commit (one writer a key, or a counter in the
/// writer's own transaction).
///
/// Keeps about 80 bytes for a key, and 8 for each gap in it, which exists only while a message is
/// overtaken or lost: a run of a hundred thousand orders fits in some megabytes. It trusts the
/// writers' numbers for the order. [`History`](super::History) checks that the *store* gets the
/// order right.
///
/// ```
/// use outbox_testkit::history::KeySequences;
///
/// let mut seen = KeySequences::new();
/// seen.committed("order-1", 2);
/// seen.delivered("order-1", 1);
/// assert_eq!(seen.lost(), 1);
/// seen.delivered("order-1", 2);
/// assert!(seen.is_exactly_once());
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeySequences {
    keys: HashMap<Box<str>, Sequence>,
    deliveries: u64,
    out_of_order: u64,
    stale_repeats: u64,
    duplicated: u64,
}

#[derive(Clone, Debug, Default)]
struct Sequence {
    committed: u32,
    newest: u32,
    // Ranges of numbers below `newest` that were not delivered yet, first and last of each,
    // ascending. Empty as long as nothing is overtaken.
    missing: Vec<(u32, u32)>,
}

impl Sequence {
    /// Removes a number from the missing ones; returns true if it was among them.
    fn found(&mut self, number: u32) -> bool {
        let at = self.missing.partition_point(|(_, last)| *last < number);
        let Some(&(first, last)) = self.missing.get(at).filter(|(first, _)| *first <= number) else {
            return false;
        };
        let before = (first < number).then(|| (first, number - 1));
        let behind = (number < last).then(|| (number + 1, last));
        self.missing.splice(at..=at, before.into_iter().chain(behind));
        true
    }

    /// Returns the number of missing messages up to this number.
    fn missing_up_to(&self, number: u32) -> u64 {
        let part = |(first, last): &(u32, u32)| {
            u64::from((*last).min(number).saturating_add(1).saturating_sub(*first))
        };
        self.missing.iter().map(part).sum()
    }
}

impl KeySequences {
    /// Creates a checker that has recorded nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that the messages of a key up to this number are committed.
    pub fn committed(&mut self, key: &str, up_to: u32) {
        let sequence = self.of(key);
        sequence.committed = sequence.committed.max(up_to);
    }

    /// Records that the message of this number, from 1, was received.
    pub fn delivered(&mut self, key: &str, number: u32) {
        self.deliveries += 1;
        let sequence = self.of(key);
        if number > sequence.newest {
            if number - sequence.newest > 1 {
                sequence.missing.push((sequence.newest + 1, number - 1));
            }
            sequence.newest = number;
        } else if sequence.found(number) {
            self.out_of_order += 1;
        } else if number < sequence.newest {
            self.stale_repeats += 1;
        } else {
            self.duplicated += 1;
        }
    }

    /// Returns the number of deliveries, repeats included.
    #[must_use]
    pub const fn deliveries(&self) -> u64 {
        self.deliveries
    }

    /// Returns the number of committed messages.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.keys.values().map(|sequence| u64::from(sequence.committed)).sum()
    }

    /// Returns the number of messages that are committed and have not arrived.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let of = |sequence: &Sequence| {
            let overtaken = sequence.missing_up_to(sequence.committed);
            overtaken + u64::from(sequence.committed.saturating_sub(sequence.newest))
        };
        self.keys.values().map(of).sum()
    }

    /// Returns the number of messages that arrived and are not committed.
    #[must_use]
    pub fn phantom(&self) -> u64 {
        let of = |sequence: &Sequence| {
            // Gaps above the last commit are numbers that were neither committed nor delivered.
            let never = sequence.missing_up_to(u32::MAX) - sequence.missing_up_to(sequence.committed);
            u64::from(sequence.newest.saturating_sub(sequence.committed)) - never
        };
        self.keys.values().map(of).sum()
    }

    /// Returns the number of first deliveries behind a newer message of their key.
    #[must_use]
    pub const fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// Returns the number of repeats behind a newer message of their key.
    #[must_use]
    pub const fn stale_repeats(&self) -> u64 {
        self.stale_repeats
    }

    /// Returns the number of other repeats.
    #[must_use]
    pub const fn duplicated(&self) -> u64 {
        self.duplicated
    }

    /// Returns true if everything arrived, in order, and nothing that was not committed. Repeats
    /// are allowed.
    #[must_use]
    pub fn is_at_least_once_in_order(&self) -> bool {
        self.lost() == 0 && self.phantom() == 0 && self.out_of_order == 0
    }

    /// Returns true if, in addition, nothing was delivered twice.
    #[must_use]
    pub fn is_exactly_once(&self) -> bool {
        self.is_at_least_once_in_order() && self.stale_repeats == 0 && self.duplicated == 0
    }

    fn of(&mut self, key: &str) -> &mut Sequence {
        // Two look-ups for a new key, one allocation; none for a known one, which most are.
        if !self.keys.contains_key(key) {
            self.keys.insert(key.into(), Sequence::default());
        }
        self.keys.get_mut(key).expect("it was put in just now")
    }
}

impl fmt::Display for KeySequences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} committed, {} deliveries: {} lost, {} phantoms, {} out of order, {} stale repeats, {} duplicates",
            self.commits(),
            self.deliveries,
            self.lost(),
            self.phantom(),
            self.out_of_order,
            self.stale_repeats,
            self.duplicated
        )
    }
}
