//! The inbox suite on trial: stores with a bug put in on purpose, and the tests that must notice.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test, also in its helpers")]

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use crate::broken_store::{Broken, BrokenStore, Bug};
use futures_util::FutureExt;
use outbox_store_memory::MemoryTx;
use outbox_testkit::inbox_suite::{
    Effect, EffectError, Effects, InboxHarness, commits, emitted, failing, once, operators, pauses,
};

/// Effects that happen at the very instant of the commit.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Vec<Effect>>>);

impl Effects<BrokenStore> for Ledger {
    async fn write(&self, tx: &mut MemoryTx, effect: Effect) -> Result<(), EffectError> {
        let ledger = Arc::clone(&self.0);
        tx.on_commit(move || ledger.lock().unwrap().push(effect));
        Ok(())
    }

    async fn read(&self) -> Result<Vec<Effect>, EffectError> {
        Ok(self.0.lock().unwrap().clone())
    }
}

impl InboxHarness for Broken {
    type Effects = Ledger;

    async fn effects(&self) -> Ledger {
        Ledger::default()
    }
}

/// Asserts that a test of the suite fails on the store with this bug. It must pass on the same
/// store without one, so that it fails for the bug and for nothing else.
macro_rules! catches {
    ($($name:ident: $bug:ident, $module:ident::$property:ident;)*) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            $module::$property(&Broken::fresh_with(None)).await;
            let harness = Broken::fresh_with(Some(Bug::$bug));
            let outcome = AssertUnwindSafe($module::$property(&harness)).catch_unwind().await;
            assert!(outcome.is_err(), "{} passes a store that {:?}", stringify!($property), Bug::$bug);
        }
    )*};
}

catches! {
    the_suite_catches_a_deduplication_that_is_no_part_of_the_transaction:
        DeduplicatesOutside, failing::a_handler_that_panics_is_rolled_back_and_tried_again;
    the_suite_catches_a_deduplication_outside_of_a_commit_that_was_lost:
        DeduplicatesOutside, commits::a_commit_whose_result_is_unknown_is_found_out;
    the_suite_catches_a_deduplication_that_looks_at_no_backlog:
        PassesBacklog, failing::a_failing_key_waits_in_the_store_and_the_others_flow;
    the_suite_catches_an_append_that_is_no_part_of_the_transaction:
        AppendsOutside, emitted::what_a_handler_emits_is_committed_with_its_effect_or_not_at_all;
    the_suite_catches_an_append_that_keeps_no_order:
        SwapsAppended, once::every_message_is_handled_once_in_the_order_of_its_key;
    the_suite_catches_a_hold_that_is_forgotten:
        IgnoresHolds, operators::a_key_that_an_operator_holds_waits_though_nothing_of_it_failed;
    the_suite_catches_dead_letters_that_are_requeued_backwards:
        RequeuesBackwards, operators::what_was_skipped_comes_back_in_its_old_order;
    the_suite_catches_a_replay_under_new_ids:
        ReplaysUnderNewIds, operators::what_is_replayed_has_no_second_effect;
    the_suite_catches_a_pause_of_a_consumer_that_is_forgotten:
        IgnoresPauses, pauses::a_consumer_that_is_paused_handles_nothing_until_it_is_resumed;
    the_suite_catches_a_pause_of_a_topic_that_is_forgotten:
        IgnoresPauses, pauses::a_topic_that_is_paused_waits_and_the_others_flow;
}
