//! Tests of the suite of all transports: a transport breaks one promise at a time, and the property
//! named after it must fail, for the given reason.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod broken;

use outbox_testkit::transport_suite::{
    self, TransportHarness, acknowledge, fidelity, flow, members, order, outcome,
};

macro_rules! caught {
    ($($(#[$doc:meta])* $name:ident: $sabotage:ident, by $module:ident::$property:ident, saying $words:literal;)*) => {$(
        $(#[$doc])*
        #[tokio::test(start_paused = true)]
        #[should_panic(expected = $words)]
        async fn $name() {
            struct Harness(broken::BrokenHarness);

            impl TransportHarness for Harness {
                async fn fresh() -> Self {
                    Self(broken::BrokenHarness::new(broken::Sabotage::$sabotage))
                }

                fn transport(&self) -> std::sync::Arc<dyn outbox_contract::backend::Transport> {
                    self.0.transport()
                }

                async fn topic(&self) -> outbox_contract::Topic {
                    self.0.topic()
                }

                fn unroutable_topic(&self) -> outbox_contract::Topic {
                    outbox_contract::Topic::new("nobody-subscribes-to-this").unwrap()
                }

                fn too_large(&self) -> usize {
                    broken::LIMIT
                }
            }

            transport_suite::run::<Harness>(stringify!($property), $module::$property).await;
        }
    )*};
}

caught! {
    a_payload_that_is_cut_is_caught: CutsPayloads,
        by fidelity::what_is_published_arrives_byte_for_byte, saying "what arrived is what was sent";
    a_large_payload_that_is_cut_is_caught: CutsPayloads,
        by fidelity::an_empty_and_a_large_payload_arrive, saying "what arrived is what was sent";
    a_tombstone_that_arrives_as_an_empty_payload_is_caught: ForgetsTombstones,
        by fidelity::a_tombstone_is_told_from_an_empty_payload, saying "what arrived is what was sent";
    an_origin_that_is_left_out_is_caught: LeavesOutTheOrigin,
        by fidelity::a_delivery_says_where_it_came_from, saying "says where it came from";
    two_swapped_messages_of_a_key_are_caught: SwapsTwoOfAKey,
        by order::messages_of_a_key_keep_their_order_within_a_batch, saying "first deliveries of key";
    a_message_that_is_lost_is_caught: LosesOneOfEachBatch,
        by order::messages_of_a_key_keep_their_order_across_batches, saying "nothing came within";
    a_batch_that_is_lost_beside_another_is_caught: LosesWhatComesBeside,
        by order::batches_of_different_keys_can_be_published_at_once, saying "nothing came within";
    a_slot_that_is_left_empty_is_caught: LeavesASlotEmpty,
        by outcome::every_message_of_a_batch_gets_an_outcome, saying "left == right";
    an_unroutable_message_that_is_confirmed_is_caught: ConfirmsTheUnroutable,
        by outcome::an_unroutable_topic_is_unavailable_and_holds_up_no_other, saying "is unavailable or blocked";
    going_on_after_a_failure_is_caught: GoesOnAfterAFailure,
        by outcome::a_message_that_is_too_large_is_rejected_and_blocks_its_key_alone, saying "was delivered behind an undelivered one";
    sending_out_of_turn_when_dropped_is_caught: SendsTheLastWhenDropped,
        by outcome::what_arrives_of_a_dropped_publish_is_a_prefix_of_each_key, saying "first deliveries of key";
    a_transport_that_stays_open_is_caught: StaysOpen,
        by outcome::a_closed_transport_takes_nothing_more, saying "check";
    a_finding_without_a_remedy_is_caught: FindsWithoutARemedy,
        by outcome::a_diagnosis_has_remedies_and_changes_nothing, saying "a finding has a text and a remedy";
    a_diagnosis_that_makes_a_topic_is_caught: MakesWhatItExamines,
        by outcome::a_diagnosis_has_remedies_and_changes_nothing, saying "the topic was made";
    deliveries_that_are_never_repeated_are_caught: ForgetsRedelivery,
        by acknowledge::what_was_not_acknowledged_comes_again_in_order_after_a_crash, saying "nothing came within";
    acknowledgements_that_are_lost_are_caught: LosesAcknowledgements,
        by acknowledge::what_was_acknowledged_does_not_come_again, saying "acknowledged messages came again";
    acknowledging_everything_before_is_caught: AcknowledgesAllBefore,
        by acknowledge::acknowledging_out_of_order_loses_nothing, saying "nothing came within";
    a_stale_acknowledgement_that_counts_is_caught: TakesStaleAcknowledgements,
        by acknowledge::a_stale_acknowledgement_is_ignored, saying "a stale acknowledgement took";
    consumers_that_share_are_caught: MakesOneConsumerOfAll,
        by members::two_consumers_each_get_everything, saying "nothing came within";
    two_owners_of_a_unit_are_caught: MakesAConsumerOfEachMember,
        by members::members_share_the_units_and_each_unit_has_one_owner, saying "has one owner";
    a_crash_that_loses_is_caught: ForgetsRedelivery,
        by members::first_deliveries_keep_their_order_while_members_come_and_crash, saying "nothing came within";
    a_takeover_that_starts_with_the_newest_is_caught: StartsWithTheNewest,
        by members::first_deliveries_keep_their_order_while_members_come_and_crash, saying "the numbers of deliveries grow along a unit";
    units_that_move_before_the_acknowledgement_are_caught: LeavesWhenDrained,
        by members::a_polite_stop_with_a_full_prefetch_loses_and_reorders_nothing, saying "came again";
    a_prefetch_that_is_exceeded_is_caught: IgnoresThePrefetch,
        by flow::no_more_than_the_prefetch_is_unacknowledged, saying "left == right";
    bytes_that_are_exceeded_are_caught: IgnoresThePrefetch,
        by flow::the_prefetch_is_bounded_in_bytes_too, saying "bytes together are unacknowledged";
    a_pause_that_is_ignored_is_caught: IgnoresPauses,
        by flow::a_paused_unit_delivers_nothing_and_loses_nothing, saying "the unit is paused";
    a_prefetch_of_zero_that_is_taken_is_caught: TakesAnySubscription,
        by flow::a_prefetch_of_zero_is_refused, saying "but it was taken";
    a_subscription_without_topics_that_is_taken_is_caught: TakesAnySubscription,
        by flow::a_subscription_without_topics_is_refused, saying "but it was taken";
    an_end_before_a_revocation_is_caught: EndsBeforeRevocations,
        by members::what_was_revoked_is_said_before_the_end, saying "the end was said before the revocation";
    a_word_behind_the_end_is_caught: SpeaksBehindTheEnd,
        by members::nothing_is_said_behind_the_end, saying "the end is the last word";
    a_member_that_stays_when_its_subscribe_is_dropped_is_caught: StaysWhenDropped,
        by members::a_subscribe_that_is_dropped_leaves_no_member, saying "messages did not arrive";
    a_revocation_that_is_not_said_is_caught: KeepsRevocationsToItself,
        by acknowledge::a_stale_acknowledgement_is_ignored, saying "nothing came within";
    numbers_that_fall_along_a_unit_are_caught: NumbersBackwards,
        by order::messages_of_a_key_keep_their_order_within_a_batch, saying "the numbers of deliveries grow along a unit";
    an_acknowledgement_that_waits_for_a_next_is_caught: TakesOneCallAtATime,
        by flow::an_acknowledgement_makes_room_for_a_next_that_waits, saying "the acknowledgment made room beside a next";
    a_resume_that_waits_for_a_next_is_caught: TakesOneCallAtATime,
        by flow::a_resumed_unit_wakes_a_next_that_waits, saying "the unit was resumed beside a next";
    a_drain_that_waits_for_a_next_is_caught: TakesOneCallAtATime,
        by flow::a_drain_ends_a_next_that_waits, saying "the subscription was drained beside a next";
    a_next_that_loses_when_dropped_is_caught: LosesADroppedNext,
        by flow::a_next_that_is_dropped_loses_nothing, saying "nothing came within";
}
