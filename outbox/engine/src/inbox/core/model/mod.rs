//! A simulation of the core without a runtime: members of a consumer on a broker and a store that
//! are plain tables, and a seeded scheduler of events and faults, judged by what the cores command,
//! by the order of effects, and by what the broker was told.
//!
//! Safety holds in every step (lost, out of order, one key twice at once, bounds, counted, not
//! owned, paused, draining), liveness after healing (stuck, permits or credit leaked). A seed
//! replays: `OUTBOX_MODEL_SEED=7 cargo test ... -- --nocapture` tells what happens in it;
//! `OUTBOX_MODEL_SEEDS` is the number of seeds that each test runs.

mod judge;
mod member;
mod tables;
mod world;

use world::World;

/// Steps of one run.
const STEPS: usize = 1_500;

/// Nothing, or what went wrong.
type Judged = Result<(), String>;

#[derive(Clone, Copy, Debug, Default)]
struct Case {
    stores_all: bool,
    sabotage: Option<Sabotage>,
}

/// A part of the core that is left out; each of which the model must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sabotage {
    /// A key stands in line while some of its messages are in a job.
    BusyKeysStand,
    /// The followers of a message that is not finished go before it.
    FollowersGoOn,
    /// Messages that were not handled are acknowledged.
    UnfinishedIsTold,
    /// A job that is over keeps its permits.
    PermitsLeak,
    /// Handlers and suspects have no bounds.
    Unbounded,
    /// A message that failed goes together with others.
    SuspectsRideAlong,
    /// A failure counts for whatever comes next of the key.
    FailuresStay,
    /// Deliveries that wait stay when their unit is taken away.
    RevokedGoesOn,
    /// Deliveries in a job are tried again though their unit was taken away.
    LostIsTriedAgain,
    /// Keys of a paused topic go on.
    PausedTopicsGoOn,
    /// Keys of a paused topic do not go on after the pause.
    WaitsForEver,
    /// A key that rests is not woken.
    RestNeverEnds,
    /// Acknowledgements that failed are forgotten.
    UntoldForgotten,
    /// The answer to an earlier acknowledgement counts for the next one.
    AnyAnswerCounts,
    /// The messages of a worker that died are not given back.
    BrokenJobsStay,
    /// Jobs are begun during a drain.
    BeginsWhileDraining,
    /// A drain is over while jobs are out.
    DrainsTooEarly,
    /// Several transactions store deliveries at once.
    StoresAtOnce,
}

impl World {
    /// One thing happens.
    fn step(&mut self) -> Judged {
        match self.random.u32(0..100) {
            0..12 => self.send(),
            12..24 => self.now += world::MS * self.random.u32(0..60),
            24..27 => return self.fault(),
            27..32 => self.drain_store(),
            _ => {
                let at = self.random.usize(..self.members.len());
                return self.act(at);
            }
        }
        Ok(())
    }

    fn fault(&mut self) -> Judged {
        let at = self.random.usize(..self.members.len());
        match self.random.u32(0..12) {
            0..3 => self.broker.rebalance(&mut self.random),
            3 => self.pause_topic(),
            4 => self.pause_route(),
            5..7 => self.broker.is_away ^= true,
            7 => self.kill(at),
            8..11 => self.kill_part(at),
            _ => return self.begin_drain(at),
        }
        Ok(())
    }
}

fn run(case: Case, seed: u64, is_loud: bool) -> Judged {
    let mut world = World::new(case, seed, is_loud);
    for _ in 0..STEPS {
        world.step()?;
    }
    world.heal()
}

/// Runs many seeds; says how the first one failed, if one did.
fn first_failure(case: Case, seeds: u64) -> Option<String> {
    if let Some(seed) = setting("OUTBOX_MODEL_SEED") {
        return run(case, seed, true).err();
    }
    (0..seeds).find_map(|seed| Some(format!("seed {seed}: {}", run(case, seed, false).err()?)))
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_message_has_its_effect_once_in_order_whatever_happens() {
    for stores_all in [false, true] {
        let failed =
            first_failure(Case { stores_all, sabotage: None }, setting("OUTBOX_MODEL_SEEDS").unwrap_or(200));
        assert_eq!(failed, None, "stores all: {stores_all}");
    }
}

macro_rules! finds {
    ($($name:ident: $sabotage:ident => $word:literal,)*) => {$(
        #[test]
        fn $name() {
            let sabotage = Some(Sabotage::$sabotage);
            let stores_all = sabotage == Some(Sabotage::StoresAtOnce);
            let found = first_failure(Case { stores_all, sabotage }, 2_000);
            let found = found.unwrap_or_else(|| panic!("{sabotage:?} is not found"));
            println!("{sabotage:?}: {found}");
            assert!(found.contains($word), "{found}");
        }
    )*};
}

finds! {
    finds_a_key_that_stands_in_line_while_it_is_busy: BusyKeysStand => "at once",
    finds_followers_that_go_on: FollowersGoOn => "",
    finds_unfinished_messages_that_are_acknowledged: UnfinishedIsTold => "",
    finds_permits_that_leak: PermitsLeak => "",
    finds_handlers_without_bounds: Unbounded => "bound",
    finds_suspects_that_ride_along: SuspectsRideAlong => "alone",
    finds_failures_that_stay: FailuresStay => "counted",
    finds_revoked_units_that_go_on: RevokedGoesOn => "not owned",
    finds_lost_deliveries_that_are_tried_again: LostIsTriedAgain => "not owned",
    finds_paused_topics_that_go_on: PausedTopicsGoOn => "paused",
    finds_keys_that_wait_for_ever: WaitsForEver => "stuck",
    finds_rests_that_never_end: RestNeverEnds => "stuck",
    finds_untold_acknowledgements_that_are_forgotten: UntoldForgotten => "stuck",
    finds_answers_that_count_whatever_they_answer: AnyAnswerCounts => "",
    finds_broken_jobs_that_stay: BrokenJobsStay => "stuck",
    finds_jobs_that_begin_during_a_drain: BeginsWhileDraining => "drain",
    finds_drains_that_are_over_too_early: DrainsTooEarly => "drain",
    finds_transactions_that_store_at_once: StoresAtOnce => "at once",
}
