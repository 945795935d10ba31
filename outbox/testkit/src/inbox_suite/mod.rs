//! The suite that an inbox on a store must pass: effects happen once and in order, despite
//! redeliveries by the broker, failures of the handler and losses of the database.
//!
//! [`store_suite`](crate::store_suite) tests a store against its trait; this suite tests that all
//! parts together run handlers as promised. The author of a backend writes an [`InboxHarness`]: how
//! a handler writes its effect in the store's transactions, and how effects are read. Each property
//! is tested in direct and in stored mode, and with one and with several messages in a transaction.
//! The broker is a [`Feed`](crate::Feed), and faults come from a [`ChaosStore`](crate::ChaosStore).
//!
//! The suite asserts only what holds at any speed: no test has a time limit except for its end,
//! after minutes.

pub mod commits;
pub mod emitted;
pub mod failing;
mod harness;
pub mod life;
pub mod once;
pub mod operators;
pub mod pauses;
pub mod retention;
pub mod turns;
pub mod types;
mod world;

use std::time::Duration;

use outbox_contract::backend::rules::options::StoreOptions;

pub use harness::{Effect, EffectError, Effects, InboxHarness};

use crate::store_suite::{Capability, StoreHarness, has};
use crate::suite;

/// Time limit after which a single test counts as hanging, in addition to its waits for ids to be
/// forgotten.
const MAX_TIME: Duration = Duration::from_secs(900);

/// Runs one test of the suite on a fresh store. [`inbox_conformance!`](crate::inbox_conformance)
/// expands to it.
///
/// # Panics
///
/// If a promise is broken, if the test hangs, or if the backend is unavailable and
/// `REQUIRE_BACKENDS` is 1.
pub async fn run<H: InboxHarness>(name: &str, test: impl AsyncFnOnce(&H)) {
    if suite::skips(name, H::skipped()) {
        return;
    }
    let harness = <H as StoreHarness>::fresh().await;
    let waits = if has::<H>(Capability::ExpiredIds) {
        StoreOptions::default().handled_ids_max_age * 2
    } else {
        Duration::ZERO
    };
    suite::within(MAX_TIME + waits, name, test(&harness)).await;
}

/// Makes one `#[tokio::test]` of each property that inboxes on a store must have, named after it.
///
/// Takes an [`InboxHarness`](crate::inbox_suite::InboxHarness), and after it the arguments of
/// `#[tokio::test]`, as [`store_conformance!`](crate::store_conformance) does.
///
/// ```ignore
/// outbox_testkit::inbox_conformance!(MyHarness);
/// ```
#[macro_export]
macro_rules! inbox_conformance {
    ($harness:ty $(,)?) => {
        $crate::inbox_conformance!($harness, flavor = "multi_thread", worker_threads = 2);
    };
    ($harness:ty, $($how:tt)+) => {
        $crate::__inbox_properties!($crate::__suite_tests, inbox_suite, $harness, ($($how)+));
    };
}

/// Every property, once: a test below compares this list with the functions of the suite.
#[doc(hidden)]
#[macro_export]
macro_rules! __inbox_properties {
    ($callback:path, $($arguments:tt)*) => {
        $callback! { $($arguments)*,
            once {
                every_message_is_handled_once_in_the_order_of_its_key
                messages_without_a_key_are_handled_once
                the_same_id_of_two_sources_is_two_messages
                a_repeat_has_no_second_effect
                an_old_message_behind_newer_ones_has_no_second_effect
                keys_keep_their_order_however_they_are_mixed_and_handed_over
                each_consumer_handles_every_message_itself
                nothing_is_acknowledged_before_it_is_committed
            }
            failing {
                a_failing_key_waits_in_the_store_and_the_others_flow
                a_batch_in_which_one_fails_is_done_again_one_by_one
                a_handler_that_takes_too_long_is_rolled_back_and_never_a_success
                a_handler_that_panics_is_rolled_back_and_tried_again
                a_rejected_message_is_a_dead_letter_and_its_key_goes_on
                a_message_that_always_fails_is_a_dead_letter_in_the_end
                a_conflict_is_tried_again_and_never_counts
            }
            operators {
                a_held_key_waits_until_it_is_released
                a_skipped_message_makes_way_for_its_followers
                a_discarded_key_goes_on_with_what_comes_next
                requeued_dead_letters_are_handled_in_their_old_order
                a_key_that_an_operator_holds_waits_though_nothing_of_it_failed
                what_was_skipped_comes_back_in_its_old_order
                what_is_replayed_has_no_second_effect
            }
            pauses {
                a_consumer_that_is_paused_handles_nothing_until_it_is_resumed
                a_topic_that_is_paused_waits_and_the_others_flow
            }
            types {
                a_message_of_an_unknown_type_can_be_a_dead_letter
                a_message_that_an_older_program_gave_up_comes_behind_its_followers
                a_message_that_no_program_knows_is_a_dead_letter_in_the_end
                a_message_of_an_unknown_type_can_be_ignored
                a_message_of_an_unknown_type_waits_for_a_program_that_knows_it
                a_message_of_an_unknown_type_goes_to_a_member_that_knows_it
                what_is_no_message_is_a_dead_letter
                a_record_that_is_no_message_is_one_dead_letter
                the_attributes_of_an_event_reach_its_handler
                a_record_that_is_mapped_is_handled_once
            }
            commits {
                a_commit_whose_result_is_unknown_is_found_out
                a_commit_that_happens_after_it_was_given_up_has_its_effect_once
                when_it_can_not_be_found_out_the_message_comes_again
                a_store_that_comes_and_goes_loses_nothing_and_repeats_nothing
                a_store_that_hangs_holds_nothing_up_for_good
            }
            life {
                a_stopped_inbox_leaves_the_rest_to_another_in_order
                an_inbox_that_dies_behind_any_step_has_each_effect_once
                receiving_and_handling_are_apart_in_stored_mode
            }
            emitted {
                what_a_handler_emits_is_committed_with_its_effect_or_not_at_all
            }
            turns {
                slow_handlers_queue_and_lose_nothing
                others_that_have_every_transaction_are_waited_for
            }
            retention {
                a_repeat_is_known_after_the_store_was_cleaned_up
                ids_are_forgotten_when_their_time_is_over
                what_is_forgotten_is_handled_once_more
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::suite::{assert_listed, listed, sources};

    crate::__inbox_properties!(listed, ());

    #[test]
    fn every_property_of_the_suite_is_in_the_list() {
        let sources = sources! { "once" "failing" "operators" "pauses" "types" "commits" "life" "emitted" "turns" "retention" };
        assert_listed(LISTED, sources);
    }
}
