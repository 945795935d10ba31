//! Time and identity under a test's control: a clock that follows tokio's, ids from a seed, and
//! waits with a limit.

use std::future::Future;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use outbox_contract::backend::{Clock, LeaseRequest, Leased, RelayId};
use outbox_contract::{MessageId, Store, Timestamp};
use tokio::time::Instant;

/// A clock that follows tokio's: in paused time it stands still until every task waits, and then
/// jumps to the next timer.
///
/// The wall clock starts at an instant that the seed chooses, so that nothing depends on today's
/// date.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// use std::time::Duration;
/// use outbox_contract::backend::Clock;
/// use outbox_testkit::time::TestClock;
///
/// let clock = TestClock::new(42);
/// tokio::time::sleep(Duration::from_secs(3_600)).await; // over at once
/// assert_eq!(clock.elapsed(), Duration::from_secs(3_600));
/// clock.suspend(Duration::from_secs(60)); // no timer has run in these
/// assert_eq!(clock.elapsed(), Duration::from_secs(3_660));
/// # });
/// ```
#[derive(Debug)]
pub struct TestClock {
    started: Instant,
    wall: Timestamp,
    // Microseconds that passed without tokio's clock noticing. Only ever grows; read and written by
    // any thread.
    suspended: AtomicU64,
    // Microseconds by which the wall clock was set back. Only ever grows.
    set_back: AtomicU64,
}

impl TestClock {
    /// Starts a clock now. Its wall clock shows some instant between 2020 and 2050.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        const FIRST: i64 = 1_577_836_800_000_000;
        const LAST: i64 = 2_524_608_000_000_000;
        Self::starting_at(Timestamp::from_micros(Rng::with_seed(seed).i64(FIRST..LAST)))
    }

    /// Starts a clock now, whose wall clock shows this.
    #[must_use]
    pub fn starting_at(wall: Timestamp) -> Self {
        Self { started: Instant::now(), wall, suspended: AtomicU64::new(0), set_back: AtomicU64::new(0) }
    }

    /// Lets time pass that no timer sees, as when the machine sleeps.
    pub fn suspend(&self, span: Duration) {
        self.suspended.fetch_add(micros(span), Ordering::SeqCst);
    }

    /// Sets the wall clock back, as an operator does, or a failover to a machine whose clock is
    /// behind. Elapsed time is not affected.
    pub fn set_back(&self, by: Duration) {
        self.set_back.fetch_add(micros(by), Ordering::SeqCst);
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl Clock for TestClock {
    fn elapsed(&self) -> Duration {
        self.started.elapsed() + Duration::from_micros(self.suspended.load(Ordering::SeqCst))
    }

    fn now(&self) -> Timestamp {
        let set_back = i64::try_from(self.set_back.load(Ordering::SeqCst)).unwrap_or(i64::MAX);
        Timestamp::from_micros(self.wall.plus(self.elapsed()).as_micros().saturating_sub(set_back))
    }
}

/// Generates ids from a seed, so that a run can be repeated to the last byte.
#[derive(Debug)]
pub struct Ids {
    // A plain mutex: locked for one draw.
    rng: Mutex<Rng>,
}

impl Ids {
    /// Creates a generator of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { rng: Mutex::new(Rng::with_seed(seed)) }
    }

    /// Returns the next message id. It has the form of version 7; its order means nothing.
    pub fn message(&self) -> MessageId {
        MessageId::from_uuid(self.next())
    }

    /// Returns the next relay id.
    pub fn relay(&self) -> RelayId {
        RelayId::from_uuid(self.next())
    }

    fn next(&self) -> uuid::Uuid {
        let bits = self.rng.lock().unwrap_or_else(PoisonError::into_inner).u128(..);
        let mut bytes = bits.to_be_bytes();
        // Version and variant, as RFC 9562 places them.
        bytes[6] = 0x70 | bytes[6] & 0x0f;
        bytes[8] = 0x80 | bytes[8] & 0x3f;
        uuid::Uuid::from_bytes(bytes)
    }
}

/// Polls a condition until it is true, at most for this long; returns true if it became true.
///
/// For conditions without a signal to wait for: files, processes, real servers. Polls every few
/// milliseconds, less often the longer it takes.
pub async fn eventually<F: Future<Output = bool>>(within: Duration, mut ask: impl FnMut() -> F) -> bool {
    let deadline = Instant::now() + within;
    let mut pause = Duration::from_millis(2);
    loop {
        if ask().await {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(pause.min(deadline - Instant::now())).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Sends heartbeats until one owns so many buckets, and returns it. Each is sent when the answer
/// before asks for it.
///
/// For stores that see that a relay has died: its buckets are free long before its lease is over.
///
/// # Panics
///
/// If the store fails, asks for no other look, or the buckets are not owned within two minutes.
pub async fn until_owned(store: &impl Store, heartbeat: &LeaseRequest, buckets: usize) -> Leased {
    let asking = async {
        loop {
            let leased = store.lease(heartbeat).await.expect("a heartbeat is answered");
            if leased.leases.len() == buckets {
                return leased;
            }
            tokio::time::sleep(leased.recheck.expect("a session was lost, and is looked at again")).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), asking)
        .await
        .expect("the buckets of a dead relay are free long before its lease is over")
}
