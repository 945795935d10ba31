//! What a lane decided: to be carried out by the actor around it.

use std::time::Duration;

use outbox_contract::{Bucket, Failure, KeyId, Position, Topic};

use super::key::{Ask, Delivered};

/// Decisions of [`Keys`](super::keys::Keys), collected while it takes an event.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Rows of the hot table that were delivered: to the settler.
    pub(crate) delivered: Vec<Delivered>,
    /// Steps for the store: to the diverter.
    pub(crate) asks: Vec<Ask>,
    /// Positions that left the hot table by a step: to the poller.
    pub(crate) left: Vec<Position>,
    /// Keys that were dropped from memory with these rows unsent: to the poller, which has them read again.
    pub(crate) forgotten: Vec<(KeyId, Vec<Position>)>,
    /// Topics that can't be published now: to the poller.
    pub(crate) broken: Vec<(Topic, Failure)>,
    /// Topics of which nothing is in memory any more, as the poller asked: to the poller.
    pub(crate) topics_forgotten: Vec<Topic>,
    /// Topics of which something was published after they had been forgotten: to the poller.
    pub(crate) topics_published: Vec<Topic>,
    /// The transport was thought away and is back: to the poller, for the other lanes.
    pub(crate) transport_is_back: bool,
    /// Failing keys whose work is over, and in how long they are due again, if they are: to the poller.
    pub(crate) worked: Vec<(KeyId, Option<Duration>)>,
    /// Buckets whose lease turned out to be lost: to the poller.
    pub(crate) lost: Vec<Bucket>,
    /// The route as a whole can't be used: to the breaker.
    pub(crate) unavailable: Option<Failure>,
    /// What is counted.
    pub(crate) counts: Counts,
}

/// What happened to how many messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// The broker confirmed them.
    pub(crate) delivered: u64,
    /// They failed for a reason of their own.
    pub(crate) failed: u64,
    /// Nobody knows.
    pub(crate) unknown: u64,
    /// They became dead letters.
    pub(crate) buried: u64,
    /// They were set aside behind a failing key.
    pub(crate) parked: u64,
    /// The store refused a step.
    pub(crate) refused: u64,
}
