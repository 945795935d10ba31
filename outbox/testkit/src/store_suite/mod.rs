//! The suite that every store must pass: one named test for each thing that the traits [`Store`], [`Transactional`] and
//! [`Admin`](outbox_contract::Admin) promise.
//!
//! A backend's author writes a [`StoreHarness`] and calls [`store_conformance!`](crate::store_conformance); every test gets a fresh
//! store of it. The tests are plain functions as well (`store_suite::append::…`), for whoever wants to run one alone.
//!
//! The suite panics when a promise is broken, as tests do. Which tests there are is no part of the crate's compatibility: a
//! minor version may add some, for promises that were there before.
//!
//! [`Store`]: outbox_contract::Store
//! [`Transactional`]: outbox_contract::Transactional

pub mod append;
mod harness;
pub mod order;
mod support;

use std::time::Duration;

pub use harness::{Capabilities, StoreHarness};

/// How long a single test may take before it counts as hanging. In paused time a test that waits for nothing reaches it at once.
const MOST_TIME: Duration = Duration::from_secs(180);

/// Runs one test of the suite on a fresh store. What [`store_conformance!`](crate::store_conformance) expands to.
///
/// # Panics
///
/// When the store breaks the promise, when the test hangs, or when the backend can't be had and `REQUIRE_BACKENDS` is 1.
pub async fn run<H: StoreHarness>(name: &str, test: impl AsyncFnOnce(&H)) {
    if let Some(why) = H::skipped() {
        let required = std::env::var_os("REQUIRE_BACKENDS").is_some_and(|value| value == "1");
        assert!(!required, "{name} must not be skipped with REQUIRE_BACKENDS=1: {why}");
        eprintln!("skipped {name}: {why}");
        return;
    }
    let harness = H::fresh().await;
    let finished = tokio::time::timeout(MOST_TIME, test(&harness)).await;
    assert!(finished.is_ok(), "{name} hangs: it was not over after {MOST_TIME:?}");
}

/// Makes one `#[tokio::test]` of each property that a store must have, named after it.
///
/// Takes a [`StoreHarness`](crate::store_suite::StoreHarness), and after it what `#[tokio::test]` shall be given: by default two worker
/// threads; `start_paused = true` for a store whose clock is tokio's. The calling crate needs tokio with `macros` and `rt` (and
/// `rt-multi-thread`, or `test-util` for paused time).
///
/// ```ignore
/// outbox_testkit::store_conformance!(MyHarness);
/// ```
#[macro_export]
macro_rules! store_conformance {
    ($harness:ty $(,)?) => {
        $crate::store_conformance!($harness, flavor = "multi_thread", worker_threads = 2);
    };
    ($harness:ty, $($how:tt)+) => {
        $crate::__store_properties!($crate::__store_tests, $harness, ($($how)+));
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __store_tests {
    ($harness:ty, $how:tt, $($module:ident { $($name:ident)* })*) => {
        $(
            mod $module {
                #[allow(unused_imports)]
                use super::*;
                $crate::__store_tests!(@module $harness, $how, $module, $($name)*);
            }
        )*
    };
    (@module $harness:ty, $how:tt, $module:ident, $($name:ident)*) => {
        $( $crate::__store_tests!(@test $harness, $how, $module, $name); )*
    };
    (@test $harness:ty, ($($how:tt)+), $module:ident, $name:ident) => {
        #[tokio::test($($how)+)]
        async fn $name() {
            $crate::store_suite::run::<$harness>(stringify!($name), $crate::store_suite::$module::$name).await;
        }
    };
}

/// Every property, once: a test below compares this list with the functions of the suite.
#[doc(hidden)]
#[macro_export]
macro_rules! __store_properties {
    ($callback:path, $($arguments:tt)*) => {
        $callback! { $($arguments)*,
            append {
                a_committed_message_is_fetched_byte_for_byte
            }
            order {
            }
        }
    };
}
