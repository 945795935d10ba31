//! The simulation, at the size of a test; and that it finds mistakes.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering as Memory};

use super::{Plan, Ran, Sabotage, run};

/// Seeds of a test run. `OUTBOX_MODEL_SEEDS` sets another number.
const SEEDS: u64 = 5_000;
/// Seeds among which a mistake must be found.
const SABOTAGE_SEEDS: u64 = 20_000;

/// All that may happen.
const WHATS: &[&str] = &[
    "backup",
    "batch that is waited for beyond its time",
    "broker that begins to lose answers",
    "broker that begins to refuse",
    "broker that is away, or back",
    "broker that is silent, or not",
    "broker that is well",
    "counters restored from a backup, or lost",
    "database clock set back",
    "database clock set forward",
    "database restored from a backup",
    "key that hangs, or goes on",
    "key that is not attempted, or goes on",
    "key that is postponed, or goes on",
    "keys that are put off no more",
    "keys that all go on",
    "marks restored from a backup",
    "message",
    "message that always fails",
    "message that is rejected",
    "message that the transport refuses",
    "messages that arrive after their time",
    "operator discards a key",
    "operator holds a key",
    "operator pauses a topic",
    "operator pauses the route",
    "operator purges dead letters",
    "operator releases a key",
    "operator requeues dead letters",
    "operator resumes a topic",
    "operator resumes the route",
    "operator skips a message",
    "publish of unknown outcome",
    "publish that fails",
    "publish that hangs",
    "publish that is postponed",
    "publish to what is not available",
    "publisher that dies",
    "relay that is killed",
    "relay that is started",
    "relay that gives way",
    "relay that is stopped",
    "relay that stands still",
    "relay that stands still beyond its lease",
    "relay whose actors fail",
    "row that is no message",
    "rows put back by hand",
    "store call that fails after its effect",
    "store call that fails before its effect",
    "store call that hangs",
    "store call that has its effect after its time",
    "store that begins to fail",
    "topic that breaks, or is mended",
    "topic that the policy pauses",
    "transaction that is rolled back",
    "transitions that are slow",
    "batch that finds the leases over",
];

/// Runs seeds on all processors; returns the first that failed.
fn first_failure(of: &Plan, seeds: Range<u64>) -> Option<(Plan, Ran)> {
    let (next, lowest) = (AtomicU64::new(seeds.start), AtomicU64::new(u64::MAX));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Memory::Relaxed);
            if seed >= seeds.end || seed > lowest.load(Memory::Relaxed) {
                return;
            }
            if run(&Plan { seed, ..of.clone() }, false).violation.is_some() {
                lowest.fetch_min(seed, Memory::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let seed = lowest.into_inner();
    (seed < u64::MAX).then(|| {
        let plan = Plan { seed, ..of.clone() };
        let ran = run(&plan, false);
        (plan, ran)
    })
}

#[test]
fn every_message_arrives_once_in_order_whatever_happens() {
    let seeds = std::env::var("OUTBOX_MODEL_SEEDS").ok().and_then(|text| text.parse().ok());
    if let Some((plan, ran)) = first_failure(&Plan::new(0), 0..seeds.unwrap_or(SEEDS)) {
        let small = plan.shrunk(&ran);
        let ran = run(&small, true);
        ran.lines().iter().for_each(|line| println!("{line}"));
        panic!(
            "seeds failed, the first is {}: {:?}\n  again: cargo run -p outbox-engine --features _simulation --example simulate -- {}",
            plan.seed,
            ran.violation,
            small.arguments()
        );
    }
}

/// Seeds that failed once, by what was wrong then.
macro_rules! holds {
    ($($name:ident: $($seed:literal)*;)*) => {$(
        #[test]
        fn $name() {
            for seed in [$($seed),*] {
                let violation = run(&Plan::new(seed), false).violation;
                assert!(violation.is_none(), "seed {seed}: {violation:?}");
            }
        }
    )*};
}

holds! {
    a_fetch_while_leases_seem_over_has_seen_nothing: 136_148 688_456 954_704;
    a_look_in_pieces_judges_all_of_them_by_the_same_marks: 1_092_229;
    what_two_batches_delivered_is_removed_twice: 492_632 596_504 767_439;
    an_attempt_counts_though_the_message_was_mended_since: 900_733;
    a_key_whose_shard_went_back_to_an_older_counter_is_read_though_it_has_a_window_of_its_own: 104 382 611;
    a_topic_that_catches_up_waits_with_its_shard_whose_counter_went_back: 465 927 2_040;
    a_shard_whose_counter_went_back_and_on_to_the_next_number_is_read_whole: 30_904 32_895 35_975 51_123 59_835 69_014;
    a_mark_covers_no_row_above_its_position: 157_784 261_763;
    a_lease_that_was_over_comes_back_under_another_epoch: 486_763;
    a_bucket_that_comes_back_waits_for_the_batches_from_before: 90_180;
}

/// All that a test run is to meet, or nothing is known of it.
#[test]
fn everything_goes_wrong_that_may() {
    let mut counts = std::collections::BTreeMap::new();
    for seed in 0..400 {
        for (what, count) in run(&Plan::new(seed), false).counts {
            *counts.entry(what).or_insert(0) += count;
        }
    }
    for what in WHATS {
        assert!(counts.contains_key(what), "{what} never happened; what did: {counts:?}");
    }
    let unknown: Vec<_> = counts.keys().filter(|what| !WHATS.contains(what)).collect();
    assert!(unknown.is_empty(), "not listed: {unknown:?}");
}

#[test]
fn a_seed_is_the_same_run_each_time_and_a_step_that_is_left_out_changes_no_draw_of_the_others() {
    let story = |plan: &Plan| run(plan, true).story;
    let plan = Plan { kept: Some((0..200).collect()), ..Plan::new(11) };
    assert_eq!(story(&plan), story(&plan));
    let draws = |step| plan.random(step).u64(..);
    assert_ne!(draws(1), draws(2));
    let other = Plan { kept: Some((0..200).filter(|step| step % 3 > 0).collect()), ..plan.clone() };
    assert_eq!(plan.random(7).u64(..), other.random(7).u64(..));
}

/// The printed steps of a failing seed are few, and fail in the same way.
#[test]
fn a_failure_is_shrunk_to_few_steps_and_replays_from_its_arguments() {
    let (plan, ran) = first_failure(&Plan::sabotaged(0, Sabotage::FollowersGoOn), 0..SABOTAGE_SEEDS).unwrap();
    let small = plan.shrunk(&ran);
    let kept = small.kept.clone().unwrap();
    assert!(kept.len() < 120, "{} steps of {}", kept.len(), plan.steps);
    let words = small.arguments();
    let steps = words.split("--kept ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert_eq!(super::steps_of(steps).unwrap(), kept);
    let again = run(&small, true);
    assert_eq!(again.violation.as_ref().unwrap().kind, ran.violation.unwrap().kind);
    assert!(
        again.lines().len() < again.story.len() || again.story.len() < 100,
        "only what is about the key is told"
    );
}

/// Mistakes that show only after hundreds of seeds are looked for from shortly before the first
/// one on: `cargo simulate --sabotages` looks from the beginning.
macro_rules! finds {
    ($($name:ident: $sabotage:ident $(from $first:literal)?,)*) => {
        $(#[test]
        fn $name() {
            let plan = Plan::sabotaged(0, Sabotage::$sabotage);
            let first: u64 = 0 $(+ $first)?;
            let Some((plan, ran)) = first_failure(&plan, first..first + SABOTAGE_SEEDS) else {
                panic!("no seed found that {} in {SABOTAGE_SEEDS} seeds", Sabotage::$sabotage.words());
            };
            println!("{}: seed {}: {}", Sabotage::$sabotage.name(), plan.seed, ran.violation.unwrap());
        })*

        #[test]
        fn every_mistake_has_a_test() {
            assert_eq!(Sabotage::ALL, [$(Sabotage::$sabotage),*]);
        }
    };
}

finds! {
    finds_lapse_counts: LapseCounts,
    finds_fetch_fence: FetchFence,
    finds_useless_fetch_counts: UselessFetchCounts,
    finds_rows_above_marks: RowsAboveMarks,
    finds_windows_overlap: WindowsOverlap from 5500,
    finds_transitions_forgotten: TransitionsForgotten,
    finds_contradiction_taken: ContradictionTaken,
    finds_key_window_ends_early: KeyWindowEndsEarly,
    finds_gap_ends_early: GapEndsEarly,
    finds_not_read_again: NotReadAgain,
    finds_hot_key_passed: HotKeyPassed,
    finds_failing_key_passed: FailingKeyPassed from 2950,
    finds_passed_forgotten: PassedForgotten from 2950,
    finds_plain_cursor_of_writers: PlainCursorOfWriters,
    finds_plain_cursor_of_shards: PlainCursorOfShards,
    finds_horizon_at_once: HorizonAtOnce,
    finds_horizon_of_cut_fetch: HorizonOfCutFetch,
    finds_last_read_last: LastReadLast,
    finds_cursor_passes_late_commits: CursorPassesLateCommits,
    finds_base_not_confirmed: BaseNotConfirmed,
    finds_base_at_once: BaseAtOnce,
    finds_base_of_cut_fetch: BaseOfCutFetch,
    finds_gap_at_base: GapAtBase,
    finds_news_ignored: NewsIgnored,
    finds_marks_read_last: MarksReadLast,
    finds_last_append_only: LastAppendOnly,
    finds_cursor_of_cut_fetch: CursorOfCutFetch,
    finds_takeover_at_lowest: TakeoverAtLowest,
    finds_gap_at_main: GapAtMain,
    finds_below_without_marks: BelowWithoutMarks,
    finds_only_main_waits: OnlyMainWaits,
    finds_never_looks_below: NeverLooksBelow,
    finds_unknown_is_delivered: UnknownIsDelivered,
    finds_blocked_is_delivered: BlockedIsDelivered from 700,
    finds_part_is_whole: PartIsWhole,
    finds_followers_go_on: FollowersGoOn,
    finds_outage_counts: OutageCounts,
    finds_blocked_counts: BlockedCounts from 700,
    finds_silence_counts: SilenceCounts,
    finds_postponed_counts: PostponedCounts,
    finds_stays_mixed: StaysMixed,
    finds_removes_what_stopped: RemovesWhatStopped,
    finds_settles_without_id: SettlesWithoutId from 550,
    finds_publishes_without_lease: PublishesWithoutLease from 850,
    finds_pause_ignored: PauseIgnored,
    finds_rest_forever: RestForever,
    finds_retry_overtakes: RetryOvertakes,
    finds_dead_letter_unblocks_early: DeadLetterUnblocksEarly,
    finds_stale_is_done: StaleIsDone from 3000,
    finds_resume_takes_next: ResumeTakesNext,
    finds_retry_lost_on_pause: RetryLostOnPause,
    finds_release_unseen: ReleaseUnseen,
    finds_held_is_due: HeldIsDue,
    finds_never_pauses_topic: NeverPausesTopic,
    finds_paused_topic_goes_on: PausedTopicGoesOn,
    finds_forget_flag_lost: ForgetFlagLost,
    finds_topic_stays_closed: TopicStaysClosed,
    finds_close_forgets_windows: CloseForgetsWindows,
    finds_closed_topic_forgets: ClosedTopicForgets,
    finds_gives_back_unconfirmed: GivesBackUnconfirmed,
    finds_gives_back_unsettled: GivesBackUnsettled,
    finds_gives_up_and_goes_on: GivesUpAndGoesOn,
    finds_given_up_is_taken: GivenUpIsTaken,
    finds_takeover_at_cursor: TakeoverAtCursor,
    finds_mark_passes_in_flight: MarkPassesInFlight,
    finds_mark_before_gone: MarkBeforeGone,
    finds_mark_ignores_key_windows: MarkIgnoresKeyWindows,
    finds_mark_ignores_given_up: MarkIgnoresGivenUp,
    finds_mark_of_drain_late: MarkOfDrainLate,
    finds_mark_covers_all: MarkCoversAll from 8900,
    finds_life_ignored: LifeIgnored from 2050,
    finds_credit_leaks: CreditLeaks,
    finds_lost_keys_keep_credit: LostKeysKeepCredit,
    finds_owed_forgotten: OwedForgotten,
    finds_budget_ignored: BudgetIgnored,
    finds_waiting_leaks: WaitingLeaks,
}
