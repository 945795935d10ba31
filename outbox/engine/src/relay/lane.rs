//! A lane: keeps the order of its keys, and feeds its publishers.
//!
//! It carries messages between [`Keys`], which decides, and the publishers, the settler, the diverter and the poller.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_contract::divert::Diverted;
use outbox_contract::fetch::{DueKey, RowId};
use outbox_contract::{Bucket, BucketSet, Epoch, KeyId, Outcome, Outcomes, Timestamp, Topic};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};

use super::breaker::{Permission, Word};
use super::context::Context;
use super::diverter::DiverterMsg;
use super::effects::Effects;
use super::key::{Ask, Held, Work};
use super::keys::{Desks, Keys, KeysLimits, Turn};
use super::poller::PollerMsg;
use super::publisher::{Publish, Publisher};
use super::settler::SettlerMsg;
use super::working::most_silent;

pub(crate) struct Lane;

/// What a lane is started with.
pub(crate) struct LaneSetup {
    pub(crate) context: Arc<Context>,
    pub(crate) index: usize,
    pub(crate) settler: ActorRef<SettlerMsg>,
    pub(crate) diverter: ActorRef<DiverterMsg>,
}

pub(crate) enum LaneMsg {
    /// Who reads for this lane. First of all.
    Poller(ActorRef<PollerMsg>),
    /// Rows of one fetch.
    Batch { fetch: u64, rows: Vec<LaneRow> },
    /// Failing keys that are due.
    Due(Vec<(DueKey, Epoch, VecDeque<Held>)>),
    /// Of some messages of a chunk that is out, the broker has spoken.
    Heard { number: u64 },
    /// A publisher is done with a chunk. Of these messages of it the broker knows nothing: they were refused before it was asked.
    Published { publisher: ActorId, number: u64, refused: BTreeSet<usize> },
    /// The store's answers to steps.
    Diverted(Vec<(KeyId, u64, Diverted)>),
    /// The poller echoes that a key was forgotten.
    KeyForgotten(KeyId),
    /// A topic was closed: drop what is here of it, and say so.
    ForgetTopic(Topic),
    /// These buckets belong to this relay no more.
    Lose(BucketSet),
    /// This relay does not own these buckets under these epochs any more; what was read under others stays.
    Lapsed(BTreeMap<Bucket, Epoch>),
    /// Drop what is not in flight of these buckets, and tell the poller when nothing is.
    Yield { buckets: BucketSet, ticket: u64 },
    /// Drop everything that is not in flight, and answer when nothing is.
    Retire(RpcReplyPort<()>),
    /// Look whether something may be sent.
    Pump,
    /// The same, at the time that was planned for it.
    Planned(Duration),
}

/// A row for a lane.
pub(crate) struct LaneRow {
    pub(crate) key: KeyId,
    pub(crate) bucket: Bucket,
    pub(crate) epoch: Epoch,
    pub(crate) work: Dealt,
}

/// What is to be done with a row.
pub(crate) enum Dealt {
    /// Its key's turn decides when.
    Work(Work),
    /// It is no message, for this reason, and becomes a dead letter.
    Malformed(RowId, String),
}

pub(crate) struct LaneState {
    context: Arc<Context>,
    index: usize,
    keys: Keys,
    settler: ActorRef<SettlerMsg>,
    diverter: ActorRef<DiverterMsg>,
    poller: Option<ActorRef<PollerMsg>>,
    publishers: Vec<Desk>,
    /// Whether somebody waits until nothing is in flight. Read by the publishers.
    hurry: Arc<AtomicBool>,
    random: fastrand::Rng,
    pump_at: Option<Duration>,
    yields: Vec<(BucketSet, u64)>,
    /// Nothing is taken any more: what was dropped is still to be read by others, and what comes now stands behind it.
    retired: bool,
    retiring: Option<RpcReplyPort<()>>,
}

/// A publisher, and the chunk that it has.
struct Desk {
    publisher: ActorRef<Publish>,
    /// Whether it is for what nothing was heard of: it waits, so that the others need not.
    is_silent: bool,
    chunk: Option<(u64, Outcomes)>,
    /// When the oldest message of the chunk was appended.
    oldest: Timestamp,
}

#[ractor::actor(message = LaneMsg, state = LaneState, arguments = LaneSetup)]
impl Lane {
    async fn pre_start(
        &self,
        myself: ActorRef<LaneMsg>,
        setup: LaneSetup,
    ) -> Result<LaneState, ActorProcessingErr> {
        let LaneSetup { context, index, settler, diverter } = setup;
        let config = &context.config;
        let limits = KeysLimits {
            chunk: config.chunk,
            chunk_bytes: config.chunk_bytes,
            first_delay: config.outage_first_delay,
            most_delay: config.outage_most_delay,
            silent: most_silent(config),
        };
        let seed = context.seed.wrapping_add(1 + index as u64);
        let hurry = Arc::new(AtomicBool::new(false));
        let mut publishers = Vec::new();
        for number in 0..=config.depth {
            publishers.push(Desk {
                publisher: hire(&context, &myself, &hurry).await?,
                is_silent: number == config.depth,
                chunk: None,
                oldest: Timestamp::default(),
            });
        }
        Ok(LaneState {
            keys: Keys::new(limits, Arc::clone(&context.policies), seed),
            random: fastrand::Rng::with_seed(!seed),
            context,
            index,
            settler,
            diverter,
            poller: None,
            publishers,
            hurry,
            pump_at: None,
            yields: Vec::new(),
            retired: false,
            retiring: None,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<LaneMsg>,
        message: LaneMsg,
        state: &mut LaneState,
    ) -> Result<(), ActorProcessingErr> {
        let mut effects = Effects::default();
        state.take(message, &mut effects);
        state.carry_out(&myself, effects);
        state.pump(&myself)?;
        state.report_quiet();
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<LaneMsg>,
        event: SupervisionEvent,
        state: &mut LaneState,
    ) -> Result<(), ActorProcessingErr> {
        let (SupervisionEvent::ActorFailed(who, _) | SupervisionEvent::ActorTerminated(who, _, _)) = event
        else {
            return Ok(());
        };
        let Some(desk) = state.publishers.iter_mut().find(|desk| desk.publisher.get_id() == who.get_id())
        else {
            return Ok(());
        };
        tracing::warn!(route = %state.context.route, lane = state.index, "a publisher failed; what it had in hand is sent again alone");
        state.context.counters.restarted();
        desk.publisher = hire(&state.context, &myself, &state.hurry).await?;
        let mut effects = Effects::default();
        if let Some((number, outcomes)) = desk.chunk.take() {
            state.keys.outcomes(number, outcomes.take(), true, state.context.now(), &mut effects);
        }
        state.carry_out(&myself, effects);
        state.pump(&myself)?;
        state.report_quiet();
        Ok(())
    }
}

async fn hire(
    context: &Arc<Context>,
    lane: &ActorRef<LaneMsg>,
    hurry: &Arc<AtomicBool>,
) -> Result<ActorRef<Publish>, ActorProcessingErr> {
    let publisher = Publisher { context: Arc::clone(context), lane: lane.clone(), hurry: Arc::clone(hurry) };
    let (publisher, _) = Actor::spawn_linked(None, publisher, (), lane.get_cell()).await?;
    Ok(publisher)
}

impl LaneState {
    fn take(&mut self, message: LaneMsg, effects: &mut Effects) {
        match message {
            LaneMsg::Poller(poller) => self.poller = Some(poller),
            LaneMsg::Batch { fetch, rows } => {
                if self.retired {
                    return;
                }
                self.keys.begin_batch(fetch);
                for LaneRow { key, bucket, epoch, work } in rows {
                    match work {
                        Dealt::Work(work) => self.keys.push(&key, bucket, epoch, work, effects),
                        Dealt::Malformed(row, reason) => {
                            self.keys.push_malformed(key, bucket, epoch, row, reason);
                        }
                    }
                }
            }
            LaneMsg::Due(keys) => {
                if self.retired {
                    return;
                }
                let now = self.context.now();
                for (due, epoch, parked) in keys {
                    self.keys.retry(due, epoch, parked, now, effects);
                }
            }
            LaneMsg::Heard { number } => self.heard(number, effects),
            LaneMsg::Published { publisher, number, refused } => {
                self.published(publisher, number, &refused, effects);
            }
            LaneMsg::Diverted(answers) => {
                let (fetches, now) = (self.context.fetches.load(Ordering::Acquire), self.context.now());
                for (key, generation, answer) in answers {
                    self.keys.diverted(&key, generation, answer, fetches, now, effects);
                }
            }
            LaneMsg::KeyForgotten(key) => self.keys.key_forgotten(&key),
            LaneMsg::ForgetTopic(topic) => {
                self.keys.forget_topic(&topic, effects);
                self.keys.topic_forgotten(&topic);
                effects.topics_forgotten.push(topic);
            }
            LaneMsg::Lose(buckets) => self.keys.lose(&buckets, effects),
            LaneMsg::Lapsed(epochs) => self.keys.lapse(&epochs, effects),
            LaneMsg::Yield { buckets, ticket } => {
                self.keys.lose(&buckets, effects);
                self.yields.push((buckets, ticket));
                self.hurry.store(true, Ordering::Release);
            }
            LaneMsg::Retire(reply) => {
                self.keys.lose(&BucketSet::ALL, effects);
                self.retired = true;
                self.retiring = Some(reply);
                self.hurry.store(true, Ordering::Release);
            }
            LaneMsg::Pump => {}
            // One that was overtaken by an earlier one plans nothing, or there would be ever more of them.
            LaneMsg::Planned(at) => self.pump_at = self.pump_at.filter(|planned| *planned != at),
        }
    }

    /// Takes what was delivered of a chunk while the rest is waited for: it is removed, and its keys go on.
    fn heard(&mut self, number: u64, effects: &mut Effects) {
        let of = |desk: &Desk| {
            desk.chunk
                .as_ref()
                .filter(|(chunk, _)| *chunk == number)
                .map(|(_, outcomes)| outcomes.delivered())
        };
        let Some(delivered) = self.publishers.iter().find_map(of) else { return };
        self.keys.heard(number, &delivered, self.context.now(), effects);
        if effects.counts.delivered > 0 && self.context.breaker().heard() {
            tracing::info!(route = %self.context.route, "the transport is back");
            effects.transport_is_back = true;
        }
    }

    fn published(
        &mut self,
        publisher: ActorId,
        number: u64,
        refused: &BTreeSet<usize>,
        effects: &mut Effects,
    ) {
        let Some(desk) = self.publishers.iter_mut().find(|desk| desk.publisher.get_id() == publisher) else {
            return;
        };
        let Some((_, outcomes)) = desk.chunk.take_if(|(chunk, _)| *chunk == number) else { return };
        let (oldest, is_silent) = (desk.oldest, desk.is_silent);
        let now = self.context.now();
        let outcomes = outcomes.take();
        let word = Word::of(&outcomes, refused);
        let delivered = outcomes.contains(&Some(Outcome::Delivered));
        self.keys.outcomes(number, outcomes, false, now, effects);
        if delivered {
            self.context.counters.latency(self.context.clock.now().since(oldest));
        }
        let draw = self.random.f64();
        let mut breaker = self.context.breaker();
        let news = if let Some(failure) = &effects.unavailable {
            let news = breaker.unavailable(now, draw);
            if news {
                tracing::warn!(route = %self.context.route, %failure, "the transport is unavailable; waiting for it");
            }
            false
        } else {
            match word {
                Word::Heard => breaker.heard(),
                Word::Silence if is_silent => {
                    breaker.silent_again(now, draw);
                    false
                }
                Word::Silence => {
                    if breaker.silent(now, draw) {
                        tracing::warn!(route = %self.context.route, "nothing is heard from the transport; waiting for it");
                    }
                    false
                }
                Word::NotAsked => {
                    breaker.not_asked(now);
                    false
                }
            }
        };
        drop(breaker);
        if news {
            tracing::info!(route = %self.context.route, "the transport is back");
            effects.transport_is_back = true;
        }
    }

    /// Passes decisions on. Who is gone is replaced with all of this incarnation before long, and what was meant for them is read
    /// again; this lane must not fail over it, for its chunks are still to be confirmed and what they delivered to be removed.
    fn carry_out(&mut self, myself: &ActorRef<LaneMsg>, effects: Effects) {
        self.context.counters.add(&effects.counts);
        if !effects.delivered.is_empty() {
            let _ = self.settler.cast(SettlerMsg::Delivered(effects.delivered));
        }
        self.ask(myself, effects.asks);
        let Some(poller) = &self.poller else { return };
        // In this order: what left is no longer known when it is said what is to be read again.
        if !effects.left.is_empty() {
            let _ = poller.cast(PollerMsg::Left(effects.left));
        }
        for (topic, failure) in effects.broken {
            let _ = poller.cast(PollerMsg::Broken { topic, failure });
        }
        for (key, rows) in effects.forgotten {
            let _ = poller.cast(PollerMsg::Forgotten { lane: self.index, key, rows });
        }
        for topic in effects.topics_forgotten {
            let _ = poller.cast(PollerMsg::TopicForgotten(topic));
        }
        for topic in effects.topics_published {
            let _ = poller.cast(PollerMsg::TopicPublished(topic));
        }
        if !effects.worked.is_empty() {
            let _ = poller.cast(PollerMsg::Worked(effects.worked));
        }
        if !effects.lost.is_empty() {
            let _ = poller.cast(PollerMsg::Lost(effects.lost.into_iter().collect()));
        }
        if effects.transport_is_back {
            let _ = poller.cast(PollerMsg::TransportIsBack);
        }
    }

    fn pump(&mut self, myself: &ActorRef<LaneMsg>) -> Result<(), ActorProcessingErr> {
        let now = self.context.now();
        let mut next = self.keys.wake(now);
        let mut effects = Effects::default();
        if self.context.credit.is_short() {
            self.keys.relieve(&mut effects);
        }
        self.keys.next_steps(&mut effects);
        while let Some(turn) = self.next_turn(now, &mut next) {
            let is_silent = turn == Turn::Silent;
            let free = |desk: &&mut Desk| desk.chunk.is_none() && desk.is_silent == is_silent;
            let Some(desk) = self.publishers.iter_mut().find(free) else { break };
            let Some(plan) = self.keys.next_chunk(turn) else { continue };
            if is_silent {
                self.context.breaker().began_silent(now);
            } else {
                self.context.breaker().began(now);
            }
            let outcomes = Outcomes::new(plan.messages.len());
            desk.chunk = Some((plan.number, outcomes.clone()));
            desk.oldest = plan.messages.iter().map(|stored| stored.appended_at).min().unwrap_or_default();
            desk.publisher.cast(Publish { plan, outcomes })?;
        }
        // Taking from the line may have found keys that need a step first.
        self.keys.next_steps(&mut effects);
        self.ask(myself, effects.asks);
        if let Some(at) = next
            && self.pump_at.is_none_or(|planned| at < planned)
        {
            self.pump_at = Some(at);
            myself.send_after(at.saturating_sub(now), move || LaneMsg::Planned(at));
        }
        Ok(())
    }

    /// Whether anything may be sent now.
    fn may_send(&self, now: Duration, next: &mut Option<Duration>) -> bool {
        if self.context.paused.load(Ordering::Acquire) {
            // The poller says when that is over.
            return false;
        }
        if !self.context.tenure.holds(now) {
            // The keeper is about to renew, or the leases are gone; in both cases the poller says so when it has heard.
            *next = earlier(*next, now + self.context.config.heartbeat);
            return false;
        }
        true
    }

    /// Which line the next chunk is taken from, if it may be sent: one whose keys have a publisher, as far as the breaker permits.
    fn next_turn(&mut self, now: Duration, next: &mut Option<Duration>) -> Option<Turn> {
        let is_free =
            |silent| self.publishers.iter().any(|desk| desk.chunk.is_none() && desk.is_silent == silent);
        let mut desks = Desks {
            count: self.context.config.depth,
            is_free: is_free(false),
            is_silent_free: is_free(true),
        };
        loop {
            let turn = self.keys.next_turn(desks)?;
            if !self.may_send(now, next) {
                return None;
            }
            let breaker = self.context.breaker();
            let (permission, is_free) = match turn {
                Turn::Silent => (breaker.permission_of_silent(now), &mut desks.is_silent_free),
                Turn::Ready | Turn::Failed => (breaker.permission(now), &mut desks.is_free),
            };
            let Permission::Later(until) = permission else { return Some(turn) };
            *next = earlier(*next, until);
            *is_free = false;
        }
    }

    fn ask(&self, myself: &ActorRef<LaneMsg>, asks: Vec<Ask>) {
        if !asks.is_empty() {
            let _ = self.diverter.cast(DiverterMsg::Steps { lane: myself.clone(), asks });
        }
    }

    fn report_quiet(&mut self) {
        let keys = &self.keys;
        let poller = &self.poller;
        self.yields.retain(|(buckets, ticket)| {
            let quiet = keys.is_quiet(buckets);
            if quiet && let Some(poller) = poller {
                // The poller is gone only when the whole route is being started again.
                let _ = poller.cast(PollerMsg::Quiet(*ticket));
            }
            !quiet
        });
        self.hurry.store(self.retired || !self.yields.is_empty(), Ordering::Release);
        if keys.is_quiet(&BucketSet::ALL)
            && let Some(reply) = self.retiring.take()
        {
            // Whoever asked may have given up waiting.
            let _ = reply.send(());
        }
    }
}

fn earlier(next: Option<Duration>, at: Duration) -> Option<Duration> {
    Some(next.map_or(at, |next| next.min(at)))
}
