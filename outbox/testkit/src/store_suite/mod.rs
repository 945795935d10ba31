//! The suite that every store must pass: one named test for each promise of the traits [`Store`],
//! [`Transactional`] and [`Admin`](outbox_contract::Admin).
//!
//! A backend's author writes a [`StoreHarness`] and calls
//! [`store_conformance!`](crate::store_conformance); every test gets a fresh store of it. The tests
//! are plain functions as well (`store_suite::append::…`) and can be run alone.
//!
//! The suite panics when a promise is broken, as tests do. The set of tests is no part of the
//! crate's compatibility: a minor version may add some, for promises that existed before.
//!
//! [`Store`]: outbox_contract::Store
//! [`Transactional`]: outbox_contract::Transactional

pub mod append;
pub mod audit;
pub mod cancellation;
pub mod dead_letters;
pub mod due;
pub mod failing;
pub mod fence;
pub mod fetch;
pub mod handled;
mod harness;
pub mod identity;
pub mod inbox;
pub mod lease;
pub mod operators;
pub mod order;
pub mod overview;
pub mod rules;
pub mod schedule;
pub mod settle;
pub mod stripes;
mod support;
pub mod upkeep;

pub(crate) use harness::has;
pub use harness::{Capability, StoreHarness};

use crate::suite;

/// Runs one test of the suite on a fresh store. [`store_conformance!`](crate::store_conformance)
/// expands to it.
///
/// # Panics
///
/// If the store breaks the promise, if the test hangs, or if the backend is unavailable and
/// `REQUIRE_BACKENDS` is 1.
pub async fn run<H: StoreHarness>(name: &str, test: impl AsyncFnOnce(&H)) {
    if suite::skips(name, H::skipped()) {
        return;
    }
    let harness = H::fresh().await;
    suite::within(harness.max_time(), name, test(&harness)).await;
}

/// Makes one `#[tokio::test]` of each property that a store must have, named after it.
///
/// Takes a [`StoreHarness`](crate::store_suite::StoreHarness), and after it the arguments of
/// `#[tokio::test]`: by default two worker threads; `start_paused = true` for a store whose clock
/// is tokio's. The calling crate needs tokio with `macros` and `rt` (and `rt-multi-thread`, or
/// `test-util` for paused time).
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
        $crate::__store_properties!($crate::__suite_tests, store_suite, $harness, ($($how)+));
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
                unicode_is_kept_in_every_text
                the_longest_names_are_kept
                a_large_payload_is_kept
                an_empty_payload_is_kept
                a_message_without_a_key_stays_without_one
                the_extremes_of_numbers_are_kept
                a_rolled_back_message_never_exists
                a_message_of_a_dropped_transaction_never_exists
                a_begin_that_is_dropped_half_way_leaves_nothing_open
                a_message_appears_with_its_commit_and_not_before
                what_is_begun_with_a_commit_is_another_transaction
                all_messages_are_validated_before_the_first_is_written
                appending_nothing_is_allowed
                a_batch_of_thousands_is_written_whole_and_in_order
                a_message_on_two_routes_is_two_rows
                a_scheduled_message_is_not_fetched_before_it_is_due
                the_time_of_appending_is_kept
            }
            order {
                messages_of_one_append_keep_their_order
                several_appends_of_one_transaction_keep_their_order
                positions_ascend_along_a_key
                positions_do_not_come_back_when_everything_is_settled
                concurrent_writers_of_a_key_are_in_commit_order
                a_second_writer_of_a_key_does_not_overtake_the_first
                an_open_transaction_hides_nothing_that_others_commit
                a_rollback_leaves_no_hole_that_blocks
                what_is_appended_later_stands_above_the_last_position
                a_reader_that_follows_the_last_position_misses_nothing
                keys_that_read_alike_are_different_keys
            }
            stripes {
                only_stores_with_stripes_have_marks
                numbers_of_a_stripe_have_no_gaps
                a_mark_tells_the_last_append
                a_mark_moves_with_the_commit_and_not_before
                marks_are_of_a_route_and_the_buckets_asked_for
                what_admin_operations_append_has_numbers_too
                every_row_up_to_a_mark_can_be_fetched
                a_late_commit_is_found_by_its_mark
            }
            fetch {
                a_fetch_stops_at_its_limit_of_rows
                a_fetch_stops_at_its_limit_of_bytes
                the_first_row_comes_whatever_it_has
                a_fetch_says_how_far_it_has_looked
                a_fetch_behind_the_last_row_is_complete
                rows_in_flight_count_for_nothing
                thousands_of_rows_in_flight_are_left_out
                a_window_leaves_out_what_is_before_and_behind_it
                a_scope_reads_only_its_topic_or_key
                a_message_without_a_key_is_read_by_its_id
                muted_rows_come_bare_and_count_as_rows
                rows_of_failing_keys_are_muted_with_their_scope
                only_the_owner_of_a_bucket_reads_it
                two_relays_read_disjoint_parts
                an_expired_lease_reads_nothing
                a_fetch_says_when_a_lease_is_missing
                a_fetch_reads_only_the_buckets_asked_for
                rows_of_failing_keys_are_flagged
                a_fetch_sees_every_settle_that_returned_before_it
                routes_do_not_see_each_other
                a_fetch_repeated_gives_the_same_rows
            }
            lease {
                a_relay_alone_acquires_every_bucket
                two_relays_come_to_share_fairly
                three_relays_come_to_share_fairly
                relays_that_start_at_once_share_without_overlap
                an_expired_bucket_is_taken_under_the_next_epoch
                a_relay_that_slept_through_its_lease_acquires_again
                a_relay_that_was_replaced_is_told_so
                a_heartbeat_renews_every_lease
                a_released_bucket_is_taken_at_once
                only_the_owner_gives_a_bucket_back
                a_yielded_bucket_is_not_acquired_again
                a_relay_that_leaves_counts_no_more
                a_relay_without_transport_is_counted_out
                relays_keep_their_shares_when_no_transport_is_available
                the_low_water_mark_is_handed_over
                an_expired_lease_keeps_its_mark
                a_low_water_mark_holds_for_the_leases_that_it_covers
                what_stands_below_a_saved_mark_is_shown_and_counted
                a_relay_that_begins_anew_is_told_its_marks
                relays_are_told_whether_they_agree
                relays_of_another_route_count_in_no_share
                a_heartbeat_tells_what_is_paused
            }
            settle {
                settled_rows_are_gone_and_no_others
                a_row_is_settled_by_position_and_id_together
                a_message_at_the_position_of_a_parked_one_is_another
                a_message_that_is_hot_and_parked_is_one
                a_relay_that_lost_its_lease_may_still_settle
                settling_again_does_nothing
                thousands_of_rows_are_settled_at_once
                delivered_messages_go_to_the_history
            }
            failing {
                a_failing_message_and_those_behind_it_are_parked_in_order
                parked_messages_come_back_byte_for_byte
                a_failing_key_is_due_when_its_time_has_come
                a_second_failure_sets_the_attempts
                later_messages_are_parked_behind_the_earlier_ones
                parking_passes_over_rows_that_are_not_there
                a_step_repeated_has_no_second_effect
                a_key_resumes_in_part_and_then_flows
                a_key_that_resumes_in_part_is_due_at_once
                a_key_keeps_its_order_through_failure_and_recovery
                other_keys_flow_past_a_failing_one
                a_held_key_is_never_due
                a_first_failure_may_hold_the_key
                a_hot_message_is_buried_and_its_key_flows
                a_parked_message_is_buried_and_the_next_is_due
                a_key_whose_last_parked_message_is_buried_flows
                a_message_that_is_gone_is_neither_parked_nor_buried
                parking_without_a_failing_key_strands_nothing
                many_steps_in_one_call_are_answered_one_by_one
            }
            rules {
                failing_keys_follow_the_rule
                leases_follow_the_rule
            }
            fence {
                an_expired_lease_is_refused
                a_bucket_that_is_given_up_is_owned_no_longer_than_was_promised
                a_lease_that_ends_implausibly_late_is_none
                a_relay_that_was_replaced_can_transition_nothing
                another_epoch_is_refused
                another_relay_is_refused
                a_released_lease_is_refused
                an_old_version_of_a_key_is_refused
                a_version_of_a_key_that_flows_is_refused
                a_relay_is_refused_after_an_operator_changed_its_key
                a_version_does_not_come_back
                a_stored_message_that_others_have_finished_is_found_out
                what_is_handled_behind_a_fence_is_not_finished_by_others
            }
            due {
                the_longest_due_key_comes_first
                keys_that_are_worked_on_are_left_out
                muted_parts_are_not_due
                a_key_that_is_left_out_is_not_due_next
                no_more_keys_are_given_than_asked_for
                the_oldest_parked_messages_are_given
                due_messages_stop_at_the_limit_of_bytes
                keys_of_large_messages_come_one_by_one
                only_the_owner_of_a_key_is_given_it
                a_key_that_was_released_by_hand_is_due
                unreadable_keys_hold_up_no_others
            }
            operators {
                a_held_key_waits_for_the_operator
                holding_again_changes_nothing
                a_hold_survives_a_failure
                a_released_key_with_nothing_parked_flows
                a_released_key_is_tried_now
                admin_operations_on_a_key_that_flows_are_invalid
                a_skipped_message_makes_way_for_the_next
                a_skip_does_not_wait_for_the_next_attempt
                a_key_skipped_to_its_end_flows
                a_discarded_key_flows_again
                failing_keys_are_filtered_and_paged
                every_list_begins_at_either_end
                pauses_of_a_route_and_its_topics_are_apart
            }
            dead_letters {
                dead_letters_are_filtered_and_paged
                requeued_dead_letters_join_at_the_end_in_their_old_order
                dead_letters_are_requeued_to_their_own_route
                purged_dead_letters_are_gone
                a_requeued_message_can_die_again
                an_edited_dead_letter_joins_its_new_key_at_the_end
                an_edit_that_makes_no_message_changes_nothing
                the_oldest_dead_letter_is_edited_and_no_other
                replayed_messages_join_at_the_end_in_their_old_order
                a_long_history_is_replayed_call_by_call
                a_filter_that_means_nothing_changes_nothing
                the_history_is_filtered_and_paged
            }
            schedule {
                due_messages_join_in_the_order_of_their_due_times
                nothing_joins_before_its_time
                a_delay_is_counted_by_the_databases_clock
                a_due_message_is_what_was_scheduled
                a_message_may_be_due_since_ever
                a_due_message_stands_behind_what_was_committed_before
                a_round_moves_no_more_than_its_limit
                rounds_at_once_move_each_message_once
                a_rolled_back_schedule_never_exists
                scheduled_messages_are_listed
                a_cancelled_message_never_comes
                a_message_due_on_a_failing_key_waits_behind_it
            }
            inbox {
                a_message_is_new_once
                a_deduplication_that_was_rolled_back_never_was
                each_consumer_handles_a_message_itself
                a_batch_is_answered_one_by_one
                a_message_given_twice_in_one_call_is_new_the_first_time
                of_handlers_at_once_exactly_one_commits
                what_a_handler_emits_commits_with_its_deduplication
                a_message_goes_behind_those_that_wait_for_its_consumer
                a_repeat_further_back_lets_nothing_in_front_of_it_pass
                a_message_goes_behind_those_that_are_parked_for_its_consumer
                a_repeat_of_a_held_message_is_not_handled
                a_handled_message_is_a_duplicate_even_when_others_wait
            }
            handled {
                ids_outlive_the_absence_of_their_consumer
                ids_have_a_maximum_age
                the_longest_recorded_retention_counts
                a_recorded_retention_counts_until_its_ids_are_over_their_age
                a_forgotten_message_is_new_once_more
                messages_are_forgotten_by_the_time_of_their_handling
                a_forgotten_message_takes_its_turn
                thousands_are_forgotten_call_by_call
            }
            cancellation {
                a_step_that_is_dropped_half_way_is_whole_or_nothing
                a_commit_that_is_dropped_half_way_is_whole_or_nothing
            }
            identity {
                programs_that_start_at_once_find_one_identity
                another_outbox_has_another_identity
                a_renewed_identity_replaces_the_old_one_for_all
            }
            overview {
                waiting_messages_are_filtered_and_paged
                a_filter_selects_messages_of_a_type
                only_what_is_to_be_published_waits
                each_bucket_tells_its_owner
                a_relay_that_is_gone_owns_nothing
                routes_tell_their_relays_and_pauses
                figures_of_topics_count_everything_by_its_name
                a_diagnosis_has_remedies_and_changes_nothing
            }
            audit {
                operations_on_a_key_are_recorded
                a_discarded_message_is_gone_and_recorded
                operations_on_messages_are_recorded
                a_replay_is_recorded
                pauses_and_a_new_identity_are_recorded
                what_changes_nothing_is_not_recorded
                an_operation_that_can_not_be_recorded_has_no_effect
                recorded_operations_are_filtered_and_paged
                any_text_names_an_actor
                operators_at_once_are_recorded_apart
            }
            upkeep {
                a_check_tells_whether_the_tables_are_there
                migrating_again_keeps_what_is_there
                programs_that_migrate_at_once_all_succeed
                one_relay_is_elected_until_its_time_is_over
                of_candidates_at_once_one_is_elected
                the_backlog_counts_everything_by_its_name
                the_backlog_counts_what_is_to_be_published
                the_age_of_the_oldest_message_is_known
                the_age_of_what_is_overdue_is_known
                buckets_that_nobody_works_on_are_counted
                buckets_with_parked_messages_that_nobody_works_on_are_counted
                a_route_that_no_relay_serves_is_found
                a_route_whose_relay_is_gone_is_found
                a_route_whose_relay_lives_implausibly_long_is_found
                a_route_whose_messages_are_all_parked_is_found_when_nobody_serves_it
                a_route_whose_messages_are_overdue_is_found_when_nobody_serves_it
                a_route_that_no_relay_serves_is_found_among_many
                an_append_and_a_commit_wake_the_relays_of_the_process
                a_commit_without_an_append_wakes_no_relay
                every_listener_is_woken_by_a_commit
                a_listener_that_is_dropped_hinders_nobody
                an_error_says_what_was_attempted
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::suite::{assert_listed, listed, sources};

    crate::__store_properties!(listed, ());

    #[test]
    fn every_property_of_the_suite_is_in_the_list() {
        let sources = sources! { "append" "order" "stripes" "fetch" "lease" "settle" "failing" "rules" "fence" "due" "operators" "dead_letters" "schedule" "inbox" "handled" "cancellation" "identity" "overview" "audit" "upkeep" };
        assert_listed(LISTED, sources);
    }
}
