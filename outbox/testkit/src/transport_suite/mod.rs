//! The suite that every transport must pass: one named test for each promise of the traits
//! [`Transport`] and [`Deliveries`].
//!
//! A backend's author writes a [`TransportHarness`] and calls
//! [`transport_conformance!`](crate::transport_conformance); every test gets a fresh harness. The
//! tests are plain functions as well (`transport_suite::order::…`) and can be run alone.
//!
//! A minimal relay sends the messages: it resends every undelivered message, key by key in order,
//! as the real one does. It runs beside the receiving side, because a transport within the process
//! may confirm only acknowledged messages. The suite requires only *at least once*: it checks first
//! deliveries, unless the contract excludes a redelivery.
//!
//! The suite panics when a promise is broken, as tests do. The set of tests is no part of the
//! crate's compatibility: a minor version may add some, for promises that existed before.
//!
//! [`Transport`]: outbox_contract::backend::Transport
//! [`Deliveries`]: outbox_contract::backend::Deliveries

pub mod acknowledge;
pub mod fidelity;
pub mod flow;
mod harness;
pub mod members;
pub mod order;
pub mod outcome;
mod receiver;
mod sender;

use std::time::Duration;

use harness::has;
pub use harness::{Capability, TransportHarness};

use crate::suite;

/// Time limit after which a single test counts as hanging.
const MAX_TIME: Duration = Duration::from_secs(180);

/// Time limit for one thing that must happen. Long: brokers take seconds to assign units.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs one test of the suite on a fresh harness.
/// [`transport_conformance!`](crate::transport_conformance) expands to it.
///
/// # Panics
///
/// If the transport breaks the promise, if the test hangs, or if the backend is unavailable and
/// `REQUIRE_BACKENDS` is 1.
pub async fn run<H: TransportHarness>(name: &str, test: impl AsyncFnOnce(&H)) {
    if suite::skips(name, H::skipped()) {
        return;
    }
    let harness = H::fresh().await;
    suite::within(MAX_TIME, name, test(&harness)).await;
}

/// Makes one `#[tokio::test]` of each property that a transport must have, named after it.
///
/// Takes a [`TransportHarness`](crate::transport_suite::TransportHarness), and after it the
/// arguments of `#[tokio::test]`: by default two worker threads; `start_paused = true` for a
/// transport that waits for nothing outside of the process. The calling crate needs tokio with
/// `macros` and `rt` (and `rt-multi-thread`, or `test-util` for paused time).
///
/// ```ignore
/// outbox_testkit::transport_conformance!(MyHarness);
/// ```
#[macro_export]
macro_rules! transport_conformance {
    ($harness:ty $(,)?) => {
        $crate::transport_conformance!($harness, flavor = "multi_thread", worker_threads = 2);
    };
    ($harness:ty, $($how:tt)+) => {
        $crate::__transport_properties!($crate::__suite_tests, transport_suite, $harness, ($($how)+));
    };
}

/// Every property, once: a test below compares this list with the functions of the suite.
#[doc(hidden)]
#[macro_export]
macro_rules! __transport_properties {
    ($callback:path, $($arguments:tt)*) => {
        $callback! { $($arguments)*,
            fidelity {
                what_is_published_arrives_byte_for_byte
                a_tombstone_is_told_from_an_empty_payload
                an_empty_and_a_large_payload_arrive
                a_delivery_says_where_it_came_from
            }
            order {
                messages_of_a_key_keep_their_order_within_a_batch
                messages_of_a_key_keep_their_order_across_batches
                batches_of_different_keys_can_be_published_at_once
            }
            outcome {
                every_message_of_a_batch_gets_an_outcome
                an_unroutable_topic_is_unavailable_and_holds_up_no_other
                a_message_that_is_too_large_is_rejected_and_blocks_its_key_alone
                what_arrives_of_a_dropped_publish_is_a_prefix_of_each_key
                a_closed_transport_takes_nothing_more
                a_diagnosis_has_remedies_and_changes_nothing
            }
            acknowledge {
                what_was_not_acknowledged_comes_again_in_order_after_a_crash
                what_was_acknowledged_does_not_come_again
                acknowledging_out_of_order_loses_nothing
                a_stale_acknowledgement_is_ignored
            }
            members {
                two_consumers_each_get_everything
                members_share_the_units_and_each_unit_has_one_owner
                first_deliveries_keep_their_order_while_members_come_and_crash
                a_polite_stop_with_a_full_prefetch_loses_and_reorders_nothing
                what_was_revoked_is_said_before_the_end
                nothing_is_said_behind_the_end
                a_subscribe_that_is_dropped_leaves_no_member
            }
            flow {
                a_prefetch_of_zero_is_refused
                a_subscription_without_topics_is_refused
                no_more_than_the_prefetch_is_unacknowledged
                the_prefetch_is_bounded_in_bytes_too
                a_paused_unit_delivers_nothing_and_loses_nothing
                a_paused_unit_leaves_room_for_the_others
                an_acknowledgement_makes_room_for_a_next_that_waits
                a_resumed_unit_wakes_a_next_that_waits
                a_drain_ends_a_next_that_waits
                a_next_that_is_dropped_loses_nothing
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::suite::{assert_listed, listed, sources};

    crate::__transport_properties!(listed, ());

    #[test]
    fn every_property_of_the_suite_is_in_the_list() {
        let sources = sources! { "fidelity" "order" "outcome" "acknowledge" "members" "flow" };
        assert_listed(LISTED, sources);
    }
}
