//! For authors of stores: a requeue of many dead letters, of which the database refuses some. Pure.

use std::fmt::Write as _;
use std::ops::Range;

use crate::error::{StoreError, StoreErrorKind};

/// Maximum number of refused messages that an error names.
const MAX_NAMED: usize = 10;

/// Dead letters on their way back: together; where one of them is refused, in halves, until each
/// that is refused is alone.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::{StoreError, StoreErrorKind};
/// use outbox::backend::Requeue;
///
/// let mut requeue = Requeue::new(vec![1, 2, 3, 4]);
/// let mut appended = Vec::new();
/// while let Some(rows) = requeue.next() {
///     if rows.contains(&2) {
///         requeue.refused("it is even", |row| row.to_string());
///     } else {
///         appended.extend(rows.iter().copied());
///         requeue.appended(rows.len() as u64);
///     }
/// }
/// assert_eq!(appended, [1, 3, 4], "in their order");
/// assert_eq!(requeue.count(), 3);
/// assert!(requeue.result().unwrap_err().to_string().contains("2 (it is even)"));
/// ```
#[derive(Clone, Debug)]
pub struct Requeue<T> {
    rows: Vec<T>,
    /// The first last.
    left: Vec<Range<usize>>,
    appended: u64,
    refused: Vec<(String, String)>,
}

impl<T> Requeue<T> {
    /// A requeue of these, in this order.
    #[must_use]
    pub fn new(rows: Vec<T>) -> Self {
        Self::in_steps(rows, <[T]>::len)
    }

    /// A requeue of these, in this order and no more at once than `most` says of what is left.
    #[must_use]
    pub fn in_steps(rows: Vec<T>, most: impl Fn(&[T]) -> usize) -> Self {
        let (mut left, mut rest) = (Vec::new(), &rows[..]);
        while !rest.is_empty() {
            let (start, step) = (rows.len() - rest.len(), most(rest).clamp(1, rest.len()));
            left.push(start..start + step);
            rest = &rest[step..];
        }
        left.reverse();
        Self { rows, left, appended: 0, refused: Vec::new() }
    }

    /// Remembers one that is not even tried.
    pub fn leave_out(&mut self, name: impl Into<String>, words: impl Into<String>) {
        self.refused.push((name.into(), words.into()));
    }

    /// Dead letters to be appended together next. None: nothing is left.
    #[must_use]
    pub fn next(&self) -> Option<&[T]> {
        self.rows.get(self.left.last()?.clone())
    }

    /// Records that this many of them were appended: all except those that another caller took.
    pub fn appended(&mut self, count: u64) {
        self.left.pop();
        self.appended += count;
    }

    /// The database refused these, and nothing was done with any of them. Where it is one alone, it
    /// is remembered by its name.
    pub fn refused(&mut self, words: impl Into<String>, name: impl Fn(&T) -> String) {
        let Some(range) = self.left.pop() else { return };
        let middle = range.start.midpoint(range.end);
        if range.len() > 1 {
            self.left.extend([middle..range.end, range.start..middle]);
        } else if let Some(row) = self.rows.get(range.start) {
            self.refused.push((name(row), words.into()));
        }
    }

    /// Number of dead letters that were appended.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.appended
    }

    /// Number of dead letters that were appended.
    ///
    /// # Errors
    ///
    /// See [`requeued`].
    pub fn result(self) -> Result<u64, StoreError> {
        requeued(self.appended, &self.refused)
    }
}

/// For authors of stores: the result of a requeue that appended this many messages. Refused ones
/// are given by name and reason.
///
/// # Errors
///
/// [`Invalid`](StoreErrorKind::Invalid) says how many were requeued, and names those that were
/// refused, if there are any.
pub fn requeued(appended: u64, refused: &[(String, String)]) -> Result<u64, StoreError> {
    if refused.is_empty() {
        return Ok(appended);
    }
    let mut words = format!(
        "{appended} dead letters were requeued, and {} refused by the database, which stay dead letters; correct them with requeue_edited, or \
         purge them: ",
        refused.len()
    );
    for (at, (name, why)) in refused.iter().take(MAX_NAMED).enumerate() {
        let separator = if at == 0 { "" } else { "; " };
        // Writing to a string does not fail.
        let _ = write!(words, "{separator}{name} ({why})");
    }
    if refused.len() > MAX_NAMED {
        let _ = write!(words, "; and {} more", refused.len() - MAX_NAMED);
    }
    Err(StoreError::new(StoreErrorKind::Invalid, "requeue", words))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appended rows of this many, of which these are refused, and the number of tries.
    fn run(rows: usize, bad: &[usize]) -> (Vec<usize>, usize, Requeue<usize>) {
        let mut requeue = Requeue::new((0..rows).collect());
        let (mut appended, mut tries) = (Vec::new(), 0);
        while let Some(some) = requeue.next() {
            tries += 1;
            if some.iter().any(|row| bad.contains(row)) {
                requeue.refused("it is bad", |row| row.to_string());
            } else {
                appended.extend_from_slice(some);
                requeue.appended(some.len() as u64);
            }
        }
        (appended, tries, requeue)
    }

    #[test]
    fn no_more_is_tried_at_once_than_there_may_be() {
        let mut requeue = Requeue::in_steps((0..10).collect(), |rows| rows.len().min(4));
        requeue.leave_out("10", "it is none");
        let mut tried = Vec::new();
        while let Some(rows) = requeue.next() {
            tried.push(rows.to_vec());
            requeue.appended(rows.len() as u64);
        }
        assert_eq!(tried, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
        assert!(requeue.result().unwrap_err().to_string().contains("10 (it is none)"));
    }

    #[test]
    fn nothing_is_an_answer_too() {
        let (appended, tries, requeue) = run(0, &[]);
        assert_eq!((appended.len(), tries, requeue.result().unwrap()), (0, 0, 0));
    }

    #[test]
    fn one_that_is_refused_costs_few_tries() {
        let (appended, tries, requeue) = run(1_000, &[613]);
        assert_eq!((appended.len(), requeue.count()), (999, 999));
        assert!(tries <= 21, "{tries}");
        let error = requeue.result().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Invalid);
        let words = error.to_string();
        assert!(
            words.contains("999 dead letters were requeued, and 1 refused")
                && words.contains("613 (it is bad)"),
            "{words}"
        );
    }

    #[test]
    fn an_error_is_no_longer_than_can_be_read() {
        let all: Vec<usize> = (0..1_000).collect();
        let words = run(1_000, &all).2.result().unwrap_err().to_string();
        assert!(
            words.contains("0 dead letters were requeued, and 1000 refused")
                && words.ends_with("; and 990 more [OBX-STORE-INVALID]"),
            "{words}"
        );
    }

    proptest::proptest! {
        #[test]
        fn all_others_are_appended_once_and_in_order(rows in 0_usize..80, bad in proptest::collection::vec(0_usize..80, 0..10)) {
            let (appended, tries, requeue) = run(rows, &bad);
            let good: Vec<usize> = (0..rows).filter(|row| !bad.contains(row)).collect();
            assert_eq!(appended, good);
            assert_eq!(requeue.refused.len(), rows - good.len());
            assert!(tries <= 2 * rows, "{tries}");
        }
    }
}
