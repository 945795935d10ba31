//! Shared parts of the suites: a named test for each property of a list, run with a time limit, and
//! the check that the list has every property.

use std::future::Future;
use std::time::Duration;

/// Returns true if a test can't run here, for this reason, and reports that it is skipped.
///
/// # Panics
///
/// If there is a reason, and `REQUIRE_BACKENDS` is 1.
pub(crate) fn skips(test: &str, why: Option<String>) -> bool {
    let Some(why) = why else { return false };
    let required = std::env::var_os("REQUIRE_BACKENDS").is_some_and(|value| value == "1");
    assert!(!required, "{test} must not be skipped with REQUIRE_BACKENDS=1: {why}");
    eprintln!("skipped {test}: {why}");
    true
}

/// Runs a test to its end, or panics when it takes longer than this.
pub(crate) async fn within(most: Duration, test: &str, running: impl Future<Output = ()>) {
    let finished = tokio::time::timeout(most, running).await;
    assert!(finished.is_ok(), "{test} hangs: it was not over after {most:?}");
}

/// Makes a `#[tokio::test]` of each property in the list of a suite.
#[doc(hidden)]
#[macro_export]
macro_rules! __suite_tests {
    ($suite:ident, $harness:ty, $how:tt, $($module:ident { $($name:ident)* })*) => {
        $(
            mod $module {
                #[allow(unused_imports)]
                use super::*;
                $crate::__suite_tests!(@module $suite, $harness, $how, $module, $($name)*);
            }
        )*
    };
    (@module $suite:ident, $harness:ty, $how:tt, $module:ident, $($name:ident)*) => {
        $( $crate::__suite_tests!(@test $suite, $harness, $how, $module, $name); )*
    };
    (@test $suite:ident, $harness:ty, ($($how:tt)+), $module:ident, $name:ident) => {
        #[tokio::test($($how)+)]
        async fn $name() {
            $crate::$suite::run::<$harness>(stringify!($name), $crate::$suite::$module::$name).await;
        }
    };
}

/// Makes a constant of the list of a suite, as text: its modules, each with its properties.
#[cfg(test)]
macro_rules! listed {
    ((), $($module:ident { $($name:ident)* })*) => {
        const LISTED: &[(&str, &[&str])] = &[$((stringify!($module), &[$(stringify!($name)),*])),*];
    };
}

/// The modules of a suite, each with its source.
#[cfg(test)]
macro_rules! sources {
    ($($module:literal)*) => { &[$(($module, include_str!(concat!($module, ".rs")))),*] };
}

#[cfg(test)]
pub(crate) use {listed, sources};

/// Asserts that the list of a suite names every property that is written in its modules, in the
/// order in which they are written.
#[cfg(test)]
#[track_caller]
pub(crate) fn assert_listed(listed: &[(&str, &[&str])], sources: &[(&str, &str)]) {
    assert_eq!(listed.len(), sources.len());
    for ((module, names), (file, source)) in listed.iter().zip(sources) {
        let written: Vec<&str> = source
            .lines()
            .filter_map(|line| line.strip_prefix("pub async fn "))
            .filter_map(|rest| rest.split('<').next())
            .collect();
        assert_eq!((module, *names), (file, &written[..]));
    }
}
