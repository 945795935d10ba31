//! Options that every store has: their defaults and limits.
//!
//! The options of a store repeat these as fields of their own, so that users find them in one
//! place, together with those of the database.

use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};

/// Minimum retention of delivered messages: a shorter one costs copies that nobody can replay.
const MIN_HISTORY: Duration = Duration::from_secs(1);

/// Minimum retention of records.
const MIN_KEPT: Duration = Duration::from_secs(60);

/// Minimum of rows to count: below it the figures of a small backlog would be lower bounds.
const MIN_COUNTING_LIMIT: u32 = 10_000;

/// Options that every store has. Exhaustive on purpose: a store has to take each of them.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::backend::rules::options::StoreOptions;
///
/// let options = StoreOptions { counting_limit: 1, ..StoreOptions::default() };
/// assert_eq!(options.problems("mysql"), ["mysql.counting_limit is 1; make it at least 10000"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Retention of delivered messages for replay, at least 1 s. Default: none are kept.
    pub history: Option<Duration>,
    /// Retention of the ids that a consumer has handled, at least 60 s. Default 7 days.
    pub handled_ids_kept: Duration,
    /// Retention of the record of admin operations, at least 60 s. Default 90 days. It can't be
    /// switched off: the record says what became of messages that an operator or a retry policy
    /// has deleted.
    pub audit_kept: Duration,
    /// Maximum age of the ids that a consumer has handled, at least `handled_ids_kept`. Default 90
    /// days.
    pub handled_ids_max_age: Duration,
    /// Maximum number of rows counted for the figures of the backlog, at least 10,000. Default
    /// 100,000.
    pub counting_limit: u32,
}

impl Default for StoreOptions {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3_600);
        Self {
            history: None,
            handled_ids_kept: DAY * 7,
            audit_kept: DAY * 90,
            handled_ids_max_age: DAY * 90,
            counting_limit: 100_000,
        }
    }
}

impl StoreOptions {
    /// Returns every problem with these options of a store; empty if there is none.
    #[must_use]
    pub fn problems(&self, store: &str) -> Vec<String> {
        let Self { history, handled_ids_kept, audit_kept, handled_ids_max_age, counting_limit } = *self;
        let mut problems = Vec::new();
        let mut problem = |text: std::fmt::Arguments<'_>| problems.push(format!("{store}.{text}"));
        if let Some(kept) = history
            && kept < MIN_HISTORY
        {
            problem(format_args!(
                "history is {kept:?}; make it at least {MIN_HISTORY:?}, or leave it out to keep no history"
            ));
        }
        if handled_ids_kept < MIN_KEPT {
            problem(format_args!(
                "handled_ids_kept is {handled_ids_kept:?}; make it at least {MIN_KEPT:?}: a repeat that arrives later would be handled \
                 twice"
            ));
        }
        if audit_kept < MIN_KEPT {
            problem(format_args!(
                "audit_kept is {audit_kept:?}; make it at least {MIN_KEPT:?}: the record of an operation would be gone before anyone can \
                 read it"
            ));
        }
        if handled_ids_max_age < handled_ids_kept {
            problem(format_args!(
                "handled_ids_max_age is {handled_ids_max_age:?}, less than handled_ids_kept ({handled_ids_kept:?}); raise it, or lower the \
                 other"
            ));
        }
        if counting_limit < MIN_COUNTING_LIMIT {
            problem(format_args!(
                "counting_limit is {counting_limit}; make it at least {MIN_COUNTING_LIMIT}"
            ));
        }
        problems
    }
}

/// Refuses options with problems: one error that names them all.
///
/// # Errors
///
/// `Invalid`, if there is a problem.
pub fn refuse(operation: &'static str, problems: &[String]) -> Result<(), StoreError> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(StoreError::new(StoreErrorKind::Invalid, operation, problems.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(options: StoreOptions) -> Vec<String> {
        options.problems("toy")
    }

    #[test]
    fn the_default_has_no_problems() {
        let options = StoreOptions::default();
        assert_eq!(problems(options), Vec::<String>::new());
        assert!(refuse("open", &problems(options)).is_ok());
    }

    #[test]
    fn the_least_of_each_option_is_taken() {
        let least = StoreOptions {
            history: Some(MIN_HISTORY),
            handled_ids_kept: MIN_KEPT,
            audit_kept: MIN_KEPT,
            handled_ids_max_age: MIN_KEPT,
            counting_limit: MIN_COUNTING_LIMIT,
        };
        assert_eq!(problems(least), Vec::<String>::new());
    }

    #[test]
    fn every_problem_is_reported_at_once_and_names_its_option() {
        let below = Duration::from_micros(1);
        let wrong = StoreOptions {
            history: Some(MIN_HISTORY - below),
            handled_ids_kept: MIN_KEPT - below,
            audit_kept: MIN_KEPT - below,
            handled_ids_max_age: MIN_KEPT - below * 2,
            counting_limit: MIN_COUNTING_LIMIT - 1,
        };
        let found = problems(wrong);
        let names = ["history", "handled_ids_kept", "audit_kept", "handled_ids_max_age", "counting_limit"];
        assert_eq!(found.len(), names.len(), "{found:?}");
        for (problem, name) in found.iter().zip(names) {
            assert!(problem.starts_with(&format!("toy.{name} is ")), "{problem}");
        }
        let error = refuse("open", &found).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Invalid);
        assert!(found.iter().all(|problem| error.to_string().contains(problem)), "{error}");
    }
}
