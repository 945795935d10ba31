//! What all parts of an inbox share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_contract::lease::Paused;
use outbox_contract::{Clock, Subscription, Transport};

use super::config::InboxConfig;
use super::dispatcher::Limits;
use super::process::Process;
use super::stats::Counters;
use super::steps::Steps;
use crate::relay::credit::Credit;

pub(crate) struct Context {
    pub(crate) process: Arc<dyn Process>,
    pub(crate) transport: Arc<dyn Transport>,
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
    /// Whether this process was asked to pause and the store has not told so yet. Written by the handle, cleared when the store does.
    pub(crate) paused_here: AtomicBool,
    /// What is paused of the consumer, as the store told last.
    pub(crate) paused_in_store: Box<dyn Fn() -> Paused + Send + Sync>,
    /// Whether there is a subscription now.
    pub(crate) subscribed: AtomicBool,
}

impl Context {
    pub(crate) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// What is not to be handled now: the whole consumer, or single topics of it.
    pub(crate) fn paused(&self) -> Paused {
        let mut paused = (self.paused_in_store)();
        if paused.route {
            // From here on the store says when it is over, whoever ends it.
            self.paused_here.store(false, Ordering::Release);
        } else {
            paused.route = self.paused_here.load(Ordering::Acquire);
        }
        paused
    }

    /// How long a transaction on its way may take until it is over, one way or the other.
    pub(crate) fn longest_job(&self) -> Duration {
        let messages = u32::try_from(self.config.batch).unwrap_or(u32::MAX);
        (self.slowest + self.config.store_timeout * 4).saturating_mul(messages.saturating_add(1))
    }
}
