//! The suite is on trial: stores with a bug put in on purpose, and the tests that must notice.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test, also in its helpers")]

use std::panic::AssertUnwindSafe;

use crate::broken_store::{Broken, Bug};
use futures_util::FutureExt;
use outbox_testkit::store_suite::{
    append, audit, cancellation, dead_letters, due, failing, fence, fetch, handled, identity, inbox, lease,
    operators, order, overview, schedule, settle, stripes, upkeep,
};

/// Asserts that a test of the suite fails on the store with this bug. It must pass on the same
/// store without one, so that it fails for the bug and for nothing else.
macro_rules! catches {
    ($store:ident: $($name:ident: $bug:ident, $module:ident::$property:ident;)*) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            $module::$property(&Broken::$store(None)).await;
            let harness = Broken::$store(Some(Bug::$bug));
            let outcome = AssertUnwindSafe($module::$property(&harness)).catch_unwind().await;
            assert!(outcome.is_err(), "{} passes a store that {:?}", stringify!($property), Bug::$bug);
        }
    )*};
}

catches! { fresh_with:
    the_suite_catches_an_identity_that_is_made_anew_for_everybody:
        MakesIdentitiesAtWill, identity::programs_that_start_at_once_find_one_identity;
    the_suite_catches_an_identity_that_is_renewed_for_one_program_only:
        RenewsForItselfOnly, identity::a_renewed_identity_replaces_the_old_one_for_all;
    the_suite_catches_an_append_that_keeps_no_order:
        SwapsAppended, order::messages_of_one_append_keep_their_order;
    the_suite_catches_an_edit_that_is_forgotten:
        EditsNothing, dead_letters::an_edited_dead_letter_joins_its_new_key_at_the_end;
    the_suite_catches_a_requeue_that_takes_every_type:
        RequeuesEveryType, overview::a_filter_selects_messages_of_a_type;
    the_suite_catches_a_requeue_of_what_is_wrong_all_the_same:
        EditsNothing, dead_letters::an_edit_that_makes_no_message_changes_nothing;
    the_suite_catches_a_dead_letter_that_is_lost_with_a_refused_edit:
        LosesRefusedEdits, dead_letters::an_edit_that_makes_no_message_changes_nothing;
    the_suite_catches_an_append_that_is_no_part_of_the_transaction:
        AppendsOutside, append::a_rolled_back_message_never_exists;
    the_suite_catches_an_append_that_writes_before_it_has_validated_all:
        ValidatesOneByOne, append::all_messages_are_validated_before_the_first_is_written;
    the_suite_catches_a_payload_that_is_cut:
        CutsPayloads, append::a_large_payload_is_kept;
    the_suite_catches_a_schedule_that_is_forgotten:
        IgnoresDueTime, append::a_scheduled_message_is_not_fetched_before_it_is_due;
    the_suite_catches_a_delay_by_the_clock_of_the_sender:
        DelaysByTheSendersClock, schedule::a_delay_is_counted_by_the_databases_clock;
    the_suite_catches_a_writer_that_overtakes_another_of_its_key:
        WritesAtCommit, order::a_second_writer_of_a_key_does_not_overtake_the_first;
    the_suite_catches_writers_out_of_order_under_load:
        ReversesKeys, order::concurrent_writers_of_a_key_are_in_commit_order;
    the_suite_catches_writers_that_are_not_told:
        HidesWriters, order::an_open_transaction_hides_nothing_that_others_commit;
    the_suite_catches_a_last_position_that_nobody_has_taken:
        CountsAhead, order::what_is_appended_later_stands_above_the_last_position;
    the_suite_catches_a_fetch_that_filters_what_is_in_flight_afterwards:
        FiltersInFlightAfterwards, fetch::rows_in_flight_count_for_nothing;
    the_suite_catches_a_fetch_that_shows_what_was_settled:
        SettlesLate, fetch::a_fetch_sees_every_settle_that_returned_before_it;
    the_suite_catches_a_fetch_that_mutes_nothing:
        ForgetsMuted, fetch::muted_rows_come_bare_and_count_as_rows;
    the_suite_catches_a_lease_that_steals:
        StealsLeases, lease::two_relays_come_to_share_fairly;
    the_suite_catches_a_low_water_mark_that_is_lost:
        ForgetsLowWater, lease::the_low_water_mark_is_handed_over;
    the_suite_catches_a_low_water_mark_that_is_believed_after_the_lease:
        BelievesLateMarks, lease::an_expired_lease_keeps_its_mark;
    the_suite_catches_an_expired_lease_that_comes_back_under_its_epoch:
        KeepsEpochs, lease::a_relay_that_slept_through_its_lease_acquires_again;
    the_suite_catches_a_failing_key_that_is_not_muted:
        ForgetsMuted, fetch::rows_of_failing_keys_are_muted_with_their_scope;
    the_suite_catches_a_fetch_that_says_it_has_read_what_is_yet_to_come:
        ReachesTheEnd, fetch::a_fetch_says_how_far_it_has_looked;
    the_suite_catches_a_fetch_that_hides_a_missing_lease:
        HidesMissingLeases, fetch::a_fetch_says_when_a_lease_is_missing;
    the_suite_catches_a_cut_fetch_that_hides_a_missing_lease:
        HidesMissingLeasesOfCutPages, fetch::a_fetch_says_when_a_lease_is_missing;
    the_suite_catches_a_low_water_mark_that_is_believed_of_every_lease:
        MarksEverything, lease::a_low_water_mark_holds_for_the_leases_that_it_covers;
    the_suite_catches_marks_that_are_lost_when_a_relay_begins_anew:
        MarksEverything, lease::a_relay_that_begins_anew_is_told_its_marks;
    the_suite_catches_a_relay_that_never_leaves:
        NeverLeaves, lease::a_relay_that_leaves_counts_no_more;
    the_suite_catches_a_settle_that_ignores_ids:
        SettlesByPosition, settle::a_row_is_settled_by_position_and_id_together;
    the_suite_catches_a_transition_that_ignores_the_lease:
        TransitionsWithoutLease, fence::a_relay_that_was_replaced_can_transition_nothing;
    the_suite_catches_a_transition_that_ignores_an_expired_lease:
        TransitionsWithoutLease, fence::an_expired_lease_is_refused;
    the_suite_catches_a_transition_that_ignores_the_end_of_what_is_given_up:
        TransitionsWithoutLease, fence::a_bucket_that_is_given_up_is_owned_no_longer_than_was_promised;
    the_suite_catches_a_heartbeat_that_promises_more_of_what_is_given_up:
        PromisesMoreOfWhatIsGivenUp, fence::a_bucket_that_is_given_up_is_owned_no_longer_than_was_promised;
    the_suite_catches_leases_that_count_however_late_they_end:
        BelievesEveryEnd, fence::a_lease_that_ends_implausibly_late_is_none;
    the_suite_catches_a_transition_that_ignores_the_version:
        TransitionsAnyVersion, fence::an_old_version_of_a_key_is_refused;
    the_suite_catches_a_transition_that_ignores_an_operator:
        TransitionsAnyVersion, fence::a_relay_is_refused_after_an_operator_changed_its_key;
    the_suite_catches_attempts_that_are_added:
        AddsAttempts, failing::a_second_failure_sets_the_attempts;
    the_suite_catches_parked_messages_that_are_given_out_of_order:
        GivesParkedBackwards, failing::later_messages_are_parked_behind_the_earlier_ones;
    the_suite_catches_parking_that_forgets_rows:
        ParksFirstOnly, failing::parking_passes_over_rows_that_are_not_there;
    the_suite_catches_followers_that_are_parked_behind_nothing:
        ParksBehindTheGone, failing::a_message_that_is_gone_is_neither_parked_nor_buried;
    the_suite_catches_a_step_that_is_done_by_halves:
        StepsByHalves, cancellation::a_step_that_is_dropped_half_way_is_whole_or_nothing;
    the_suite_catches_a_commit_that_is_done_by_halves:
        CommitsByHalves, cancellation::a_commit_that_is_dropped_half_way_is_whole_or_nothing;
    the_suite_catches_a_failure_that_ends_a_hold:
        FailsThroughHolds, operators::a_hold_survives_a_failure;
    the_suite_catches_a_discarded_message_that_is_kept:
        BuriesDiscarded, audit::a_discarded_message_is_gone_and_recorded;
    the_suite_catches_due_keys_that_are_not_muted:
        ForgetsMuted, due::muted_parts_are_not_due;
    the_suite_catches_a_key_that_is_left_out_and_due_all_the_same:
        CountsWhatIsLeftOut, due::a_key_that_is_left_out_is_not_due_next;
    the_suite_catches_attempts_that_a_skip_forgets:
        ForgetsAttempts, operators::a_skipped_message_makes_way_for_the_next;
    the_suite_catches_attempts_that_a_discard_forgets:
        ForgetsAttempts, operators::a_discarded_key_flows_again;
    the_suite_catches_parked_messages_that_are_counted_as_pending:
        CountsParkedTwice, upkeep::the_backlog_counts_everything_by_its_name;
    the_suite_catches_admin_operations_that_are_never_invalid:
        AllowsEveryVerb, operators::admin_operations_on_a_key_that_flows_are_invalid;
    the_suite_catches_a_deduplication_that_is_no_part_of_the_transaction:
        DeduplicatesOutside, inbox::a_deduplication_that_was_rolled_back_never_was;
    the_suite_catches_a_deduplication_that_looks_at_no_backlog:
        PassesBacklog, inbox::a_message_goes_behind_those_that_wait_for_its_consumer;
    the_suite_catches_a_repeat_that_passes_a_hold:
        PassesBacklog, inbox::a_repeat_of_a_held_message_is_not_handled;
    the_suite_catches_a_handling_that_is_not_fenced:
        FencesNothing, fence::a_stored_message_that_others_have_finished_is_found_out;
    the_suite_catches_a_fence_that_does_not_last:
        FencesForAMoment, fence::what_is_handled_behind_a_fence_is_not_finished_by_others;
    the_suite_catches_ids_that_are_removed_while_their_consumer_is_away:
        ForgetsEarly, handled::ids_outlive_the_absence_of_their_consumer;
    the_suite_catches_ids_of_consumers_that_are_gone_for_ever:
        RemembersTheGone, handled::ids_have_a_maximum_age;
    the_suite_catches_ids_that_are_not_forgotten:
        CountsAndForgetsNothing, handled::a_forgotten_message_is_new_once_more;
    the_suite_catches_other_consumers_that_forget_too:
        ForgetsOfEverybody, handled::a_forgotten_message_is_new_once_more;
    the_suite_catches_other_topics_and_keys_that_are_forgotten_too:
        ForgetsWholeConsumers, handled::a_forgotten_message_is_new_once_more;
    the_suite_catches_messages_that_are_forgotten_whenever_they_were_handled:
        ForgetsAtAnyTime, handled::messages_are_forgotten_by_the_time_of_their_handling;
    the_suite_catches_a_forgotten_message_that_is_held_to_its_old_place:
        RemembersTheOrder, handled::a_forgotten_message_takes_its_turn;
    the_suite_catches_a_forgotten_message_that_passes_others:
        PassesBacklog, handled::a_forgotten_message_takes_its_turn;
    the_suite_catches_an_election_that_everybody_wins:
        ElectsEverybody, upkeep::one_relay_is_elected_until_its_time_is_over;
    the_suite_catches_a_route_that_is_forgotten_when_nobody_serves_it:
        ForgetsUnserved, upkeep::a_route_that_no_relay_serves_is_found;
    the_suite_catches_relays_that_serve_however_late_their_lives_end:
        BelievesEveryEnd, upkeep::a_route_whose_relay_lives_implausibly_long_is_found;
    the_suite_catches_parked_messages_that_are_forgotten_when_nobody_serves_their_route:
        ForgetsUnserved, upkeep::a_route_whose_messages_are_all_parked_is_found_when_nobody_serves_it;
    the_suite_catches_wakeups_that_do_not_come:
        KeepsSilent, upkeep::an_append_and_a_commit_wake_the_relays_of_the_process;
}

catches! { striped_with:
    the_suite_catches_rows_without_numbers:
        GivesNoNumbers, stripes::only_stores_with_stripes_have_marks;
    the_suite_catches_numbers_with_gaps:
        LeavesGapsInNumbers, stripes::numbers_of_a_stripe_have_no_gaps;
    the_suite_catches_positions_against_the_order_of_a_stripe:
        ReversesKeys, stripes::numbers_of_a_stripe_have_no_gaps;
    the_suite_catches_marks_that_are_ahead_of_the_rows:
        MarksAhead, stripes::every_row_up_to_a_mark_can_be_fetched;
    the_suite_catches_marks_that_go_with_their_rows:
        MarksOfRowsOnly, stripes::a_mark_tells_the_last_append;
    the_suite_catches_marks_that_forget_the_first_row_of_an_append:
        MarksWithoutFirstRow, stripes::a_mark_tells_the_last_append;
    the_suite_catches_marks_that_forget_where_they_were_before:
        MarksWithoutThePrevious, stripes::a_mark_tells_the_last_append;
    the_suite_catches_marks_of_what_is_not_committed:
        MarksOfOpenTransactions, stripes::a_mark_moves_with_the_commit_and_not_before;
    the_suite_catches_marks_of_another_route:
        MarksOfEveryRoute, stripes::marks_are_of_a_route_and_the_buckets_asked_for;
    the_suite_catches_marks_of_other_buckets:
        MarksOfEveryBucket, stripes::marks_are_of_a_route_and_the_buckets_asked_for;
    the_suite_catches_late_writers_that_overtake:
        WritesAtCommit, order::a_second_writer_of_a_key_does_not_overtake_the_first;
}
