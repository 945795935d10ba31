//! State that all parts of an inbox share.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::Transport;
use outbox_contract::backend::{Clock, Paused, Subscription};

use super::config::InboxConfig;
use super::consumed::Consumed;
use super::core::Limits;
use super::credit::Credit;
use super::foreign::Mapper;
use super::lags::Lags;
use super::losses::Losses;
use super::outage::Outage;
use super::problems::Problems;
use super::process::Process;
use super::stats::{Counters, InboxStats};
use super::steps::Steps;
use crate::pausing::Pausing;
use crate::transport_check::TransportCheck;

/// Pauses as the store told them last, and the beginning of the heartbeat that asked.
pub(crate) type PausedInStore = Box<dyn Fn() -> (Paused, Duration) + Send + Sync>;

pub(crate) struct Context {
    pub(crate) process: Arc<dyn Process>,
    pub(crate) transport: Arc<dyn Transport>,
    /// Makes messages of records that are none.
    pub(crate) mapper: Option<Mapper>,
    pub(crate) subscription: Subscription,
    pub(crate) config: InboxConfig,
    pub(crate) limits: Limits,
    /// The longest time that any handler may take.
    pub(crate) slowest: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) seed: u64,
    pub(crate) counters: Arc<Counters>,
    pub(crate) steps: Steps,
    /// Counts what is in memory. Nothing asks it for room: the prefetch is the bound.
    pub(crate) credit: Arc<Credit>,
    // Pauses asked of this process. The handle and the health check write it; held for a few
    // instructions.
    pub(crate) pausing: Mutex<Pausing>,
    /// Pauses of the consumer, as the store told them last. None: this process handles nothing.
    pub(crate) paused_in_store: Option<PausedInStore>,
    /// True while there is a subscription.
    pub(crate) subscribed: AtomicBool,
    /// True if the last acknowledgement failed.
    pub(crate) untold: AtomicBool,
    /// Errors that the subscription gives in place of deliveries.
    pub(crate) outage: Outage,
    /// Topics and units of it that give nothing, while others do.
    pub(crate) problems: Problems,
    /// Topics that were handled, as the store knows.
    pub(crate) consumed: Consumed,
    /// Backlogs at the broker.
    pub(crate) lags: Lags,
    /// Losses at the broker.
    pub(crate) losses: Losses,
    /// Settings of the broker.
    pub(crate) checked: TransportCheck,
}

impl Context {
    pub(crate) fn stats(&self) -> InboxStats {
        let mut stats = self.counters.snapshot(self.credit.out(), self.problems.count());
        (stats.lag, stats.lag_age) = self.lags.total();
        (stats.losses, stats.missing) = self.losses.counts();
        stats
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Returns what is not to be handled now: the whole consumer, or single topics of it.
    pub(crate) fn paused(&self) -> Paused {
        let Some(in_store) = &self.paused_in_store else { return Paused::default() };
        let (mut paused, begun) = in_store();
        paused.route = self.pausing().look(paused.route, begun);
        paused
    }

    /// Pauses that were asked of this process.
    pub(crate) fn pausing(&self) -> MutexGuard<'_, Pausing> {
        self.pausing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maximum time until a transaction on its way is over, one way or the other.
    pub(crate) fn longest_job(&self) -> Duration {
        let messages = u32::try_from(self.config.batch).unwrap_or(u32::MAX);
        let one = self.slowest.saturating_add(self.config.store_timeout.saturating_mul(4));
        one.saturating_mul(messages.saturating_add(1))
    }
}
