//! World of a seed: how much there is of everything, how the relays are set up, and how often
//! faults happen.

use std::time::Duration;

use fastrand::Rng;
use outbox_contract::backend::Ordering;
use outbox_contract::{Exhausted, RetryPolicy};
use outbox_engine::RelayConfig;
use outbox_testkit::{FaultRates, StoreFaultRates};

use super::line::Late;

/// A world, before it begins.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) topics: usize,
    pub(crate) keys: usize,
    pub(crate) writers: usize,
    /// Number of transactions of each writer.
    pub(crate) transactions: usize,
    /// Ordering of the store: one transaction writes at a time, or several do.
    pub(crate) ordering: Ordering,
    pub(crate) max_relays: usize,
    pub(crate) config: RelayConfig,
    pub(crate) transport: FaultRates,
    pub(crate) store: StoreFaultRates,
    pub(crate) writing: StoreFaultRates,
    pub(crate) late: Late,
    /// Duration of the chaos.
    pub(crate) chaos: Duration,
    pub(crate) scheduled: f64,
    /// Rate of commits that happen after their writer has given up.
    pub(crate) late_commits: f64,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let config = config(&mut rng);
        let lease = config.lease;
        // A third of all worlds is rough, a third is smooth in most respects, and one in twelve has
        // no fault at all.
        let rough = if rng.u8(..12) == 0 { 0.0 } else { [0.3, 1.0, 3.0][rng.usize(..3)] };
        Self {
            seed,
            topics: rng.usize(1..=4),
            keys: rng.usize(1..=12),
            writers: rng.usize(1..=5),
            transactions: rng.usize(5..=40),
            ordering: one_of(&mut rng, &[Ordering::Single, Ordering::Writers, Ordering::Stripes]),
            max_relays: rng.usize(1..=3),
            transport: transport(&mut rng, rough, lease),
            store: store(&mut rng, rough * 0.01),
            writing: store(&mut rng, rough * 0.02),
            late: Late {
                rate: one_of(&mut rng, &[0.0, 0.0, 0.02]) * rough,
                most: lease * 3,
                answer: one_of(
                    &mut rng,
                    &[Duration::ZERO, Duration::from_millis(4), Duration::from_millis(60)],
                ),
                panics: one_of(&mut rng, &[0.0, 0.0, 0.002]) * rough,
            },
            chaos: Duration::from_secs(rng.u64(10..=40)),
            scheduled: one_of(&mut rng, &[0.0, 0.0, 0.1]),
            late_commits: one_of(&mut rng, &[0.0, 0.0, 0.05]) * rough,
            config,
        }
    }

    /// Returns true if nothing ever counts as an attempt of a message: then every dead letter is an
    /// operator's doing.
    pub(crate) fn nothing_fails(&self) -> bool {
        let rates = &self.transport;
        rates.failed + rates.rejected + rates.panic_before + rates.panic_after == 0.0
    }

    /// Returns the time limit until all is quiet once the faults have stopped: calls that hang
    /// already, leases of the dead, and waits.
    pub(crate) fn patience(&self) -> Duration {
        self.config.store_timeout * 2 + self.late.most + self.config.lease * 3 + Duration::from_secs(30)
    }
}

fn config(rng: &mut Rng) -> RelayConfig {
    let lease = millis(rng, 1_500, 6_000);
    let publish_timeout = millis(rng, 100, 400);
    let batch = rng.usize(1..=40);
    let mut config = RelayConfig::default();
    config.lease = lease;
    config.publish_timeout = publish_timeout;
    config.heartbeat = (lease - publish_timeout) / rng.u32(2..=4);
    // Longer than a lease: then only the clock tells a relay that it stood still.
    config.store_timeout = one_of(rng, &[Duration::from_millis(300), Duration::from_secs(1), lease * 3]);
    config.fetch_batch = batch;
    config.max_in_flight = batch * rng.usize(1..=3);
    config.fetch_batch_bytes = rng.usize(1..=8_000);
    config.max_in_flight_bytes = rng.usize(1_000..=30_000);
    config.per_key = rng.usize(1..=10);
    config.max_unconfirmed_batches = rng.usize(1..=5) * rng.usize(1..=3);
    config.publish_batch = rng.usize(1..=10);
    config.publish_batch_bytes = rng.usize(1..=4_000);
    config.idle_poll = millis(rng, 50, 1_000);
    config.due_poll = millis(rng, 500, 3_000);
    config.maintain_every = millis(rng, 200, 2_000);
    config.observe_every = millis(rng, 500, 5_000);
    config.outage_first_delay = millis(rng, 10, 200);
    config.outage_max_delay = millis(rng, 200, 2_000);
    config.retry = RetryPolicy {
        max_attempts: rng.u32(1..=5),
        first_delay: millis(rng, 10, 300),
        max_delay: millis(rng, 300, 1_500),
        exhausted: if rng.bool() { Exhausted::Hold } else { Exhausted::DeadLetter },
        ..RetryPolicy::default()
    };
    config
}

fn transport(rng: &mut Rng, rough: f64, lease: Duration) -> FaultRates {
    let mut rate = |most: f64| if rng.bool() { 0.0 } else { rng.f64() * most * rough };
    FaultRates {
        failed: rate(0.05),
        rejected: rate(0.01),
        unknown_without_effect: rate(0.03),
        unknown_with_effect: rate(0.03),
        hang: rate(0.02),
        panic_before: rate(0.01),
        panic_after: rate(0.01),
        outage: rate(0.01),
        outage_lasts: lease / 2,
        delay: one_of(rng, &[Duration::ZERO, Duration::from_millis(5), Duration::from_millis(80)]),
    }
}

fn store(rng: &mut Rng, rate: f64) -> StoreFaultRates {
    let mut draw = || if rng.bool() { 0.0 } else { rng.f64() * rate };
    StoreFaultRates {
        before: draw(),
        after: draw(),
        hang_before: draw(),
        hang_after: draw(),
        delay: one_of(rng, &[Duration::ZERO, Duration::from_millis(3), Duration::from_millis(40)]),
    }
}

fn millis(rng: &mut Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(rng.u64(least..=most))
}

fn one_of<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}
