//! The poller: reads the store for all buckets that this relay owns, and deals the rows out to the lanes.
//!
//! What to read is decided by [`Reader`]; this actor carries it out, one fetch at a time, and takes word of what became of the rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outbox_contract::fetch::{DueRequest, FetchedRow};
use outbox_contract::hints::Wakeup;
use outbox_contract::{BUCKETS, Bucket, BucketSet, Epoch, Failure, KeyId, Leased, Position, Topic};
use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};

use super::context::{Context, in_time};
use super::keeper::KeeperMsg;
use super::key::{Held, Work};
use super::lane::{LaneMsg, LaneRow};
use super::pace::Pace;
use super::reader::{Reader, ReaderLimits};
use super::settler::SettlerMsg;
use super::topics::Topics;
use super::waker::Waker;

pub(crate) struct Poller;

/// What a poller is started with.
pub(crate) struct PollerSetup {
    pub(crate) context: Arc<Context>,
    pub(crate) lanes: Vec<ActorRef<LaneMsg>>,
    pub(crate) settler: ActorRef<SettlerMsg>,
}

pub(crate) enum PollerMsg {
    /// Who keeps the leases.
    Keeper(ActorRef<KeeperMsg>),
    /// What this relay owns now, and what of it to give up.
    Leased { leased: Leased, surplus: BucketSet },
    /// Look, if this is the look that was planned last.
    Tick(u64),
    /// There may be something new.
    Wake(Wakeup),
    /// Credit is free again.
    Freed,
    /// Rows are gone from the hot table.
    Left(Vec<Position>),
    /// A lane dropped these rows unsent.
    Forgotten { lane: usize, key: KeyId, rows: Vec<Position> },
    /// A topic can't be published now.
    Broken { topic: Topic, failure: Failure },
    /// A lane has nothing of the topic in memory any more.
    TopicForgotten(Topic),
    /// Failing keys were worked on; they are due again in so long, or not by themselves.
    Worked(Vec<(KeyId, Option<Duration>)>),
    /// The store says that these are not ours.
    Lost(BucketSet),
    /// The transport was away and is back.
    TransportIsBack,
    /// A lane has nothing of the buckets of this ticket in flight.
    Quiet(u64),
    /// What was delivered before this ticket is removed.
    Settled(u64),
    /// Read no more; answer with the low-water mark.
    Halt(RpcReplyPort<Position>),
}

pub(crate) struct PollerState {
    context: Arc<Context>,
    lanes: Vec<ActorRef<LaneMsg>>,
    settler: ActorRef<SettlerMsg>,
    keeper: Option<ActorRef<KeeperMsg>>,
    reader: Reader,
    epochs: [Epoch; BUCKETS],
    pace: Pace,
    topics: Topics,
    working: BTreeSet<KeyId>,
    /// When a failing key is known to be due.
    next_due: Option<Duration>,
    /// When to ask anyway: an operator may have released one.
    ask_due: Duration,
    next_probe: Duration,
    yields: BTreeMap<u64, Yield>,
    tickets: u64,
    paused: bool,
    halted: bool,
    // Whether the last fetch had to wait for credit.
    starved: bool,
    _waker: Waker,
}

/// Buckets that are being given up: when no lane has any of it in flight and what was delivered is removed, they are released.
struct Yield {
    buckets: BucketSet,
    low_water: Position,
    lanes_left: usize,
}

/// How often at the most the store is asked who is writing.
const PROBE_EVERY: Duration = Duration::from_millis(200);
/// How many fetches one look may make before other messages have their turn.
const FETCHES_PER_LOOK: usize = 4;
/// How many failing keys are taken at once, and how many parked messages of each.
const DUE_KEYS: usize = 100;
const DUE_MESSAGES: usize = 100;
/// The shortest time between two questions for due keys.
const DUE_PAUSE: Duration = Duration::from_millis(5);
/// How many hot keys have windows of their own before the main window waits for them.
const KEY_GAPS: usize = 64;

#[ractor::actor(message = PollerMsg, state = PollerState, arguments = PollerSetup)]
impl Poller {
    async fn pre_start(
        &self,
        myself: ActorRef<PollerMsg>,
        setup: PollerSetup,
    ) -> Result<PollerState, ActorProcessingErr> {
        let PollerSetup { context, lanes, settler } = setup;
        let config = &context.config;
        let limits = ReaderLimits {
            rows: config.batch,
            bytes: config.batch_bytes,
            per_key: config.per_key,
            key_gaps: KEY_GAPS,
        };
        Ok(PollerState {
            reader: Reader::new(context.store.ordering(), limits),
            epochs: [Epoch::default(); BUCKETS],
            pace: Pace::new(config.idle_poll),
            topics: Topics::new(config.outage_first_delay, config.outage_most_delay, lanes.len()),
            working: BTreeSet::new(),
            next_due: None,
            ask_due: Duration::ZERO,
            next_probe: Duration::ZERO,
            yields: BTreeMap::new(),
            tickets: 0,
            paused: false,
            halted: false,
            starved: false,
            keeper: None,
            _waker: Waker::start(Arc::clone(&context), myself),
            context,
            lanes,
            settler,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<PollerMsg>,
        message: PollerMsg,
        state: &mut PollerState,
    ) -> Result<(), ActorProcessingErr> {
        if state.halted {
            return Ok(());
        }
        if let PollerMsg::Tick(generation) = message {
            if state.pace.is_current(generation) {
                state.look(&myself).await?;
            }
            return Ok(());
        }
        if state.take(message)? {
            state.look_soon(&myself);
        }
        Ok(())
    }
}

impl PollerState {
    /// Takes word of something; says whether that is a reason to look.
    fn take(&mut self, message: PollerMsg) -> Result<bool, ActorProcessingErr> {
        let now = self.context.now();
        match message {
            PollerMsg::Keeper(keeper) => self.keeper = Some(keeper),
            PollerMsg::Leased { leased, surplus } => {
                let was_idle = self.paused || self.reader.owned().is_empty();
                let gained = self.leased(&leased)?;
                if !surplus.is_empty() {
                    self.give_up(surplus)?;
                }
                return Ok(gained || was_idle);
            }
            PollerMsg::Wake(wakeup) => {
                self.pace.woken(wakeup);
                self.reader.look();
                return Ok(true);
            }
            PollerMsg::Freed => return Ok(std::mem::take(&mut self.starved)),
            PollerMsg::Left(positions) => {
                self.reader.left(positions);
                return Ok(self.reader.has_cooled_keys());
            }
            PollerMsg::Forgotten { lane, key, rows } => {
                self.reader.forget(&key, rows);
                self.lanes[lane].cast(LaneMsg::KeyForgotten(key))?;
                return Ok(true);
            }
            PollerMsg::Broken { topic, failure } => self.broken(&topic, &failure, now)?,
            PollerMsg::TopicForgotten(topic) => self.topics.forgotten(&topic),
            PollerMsg::Worked(keys) => {
                for (key, due_in) in keys {
                    self.working.remove(&key);
                    if let Some(due_in) = due_in {
                        let at = now + due_in;
                        self.next_due = Some(self.next_due.map_or(at, |next| next.min(at)));
                    }
                }
                return Ok(true);
            }
            PollerMsg::Lost(buckets) => {
                self.lose(buckets)?;
            }
            PollerMsg::TransportIsBack => self.tell_lanes(|| LaneMsg::Pump)?,
            PollerMsg::Quiet(ticket) => {
                if let Some(given) = self.yields.get_mut(&ticket) {
                    given.lanes_left -= 1;
                    if given.lanes_left == 0 {
                        self.settler.cast(SettlerMsg::Ticket(ticket))?;
                    }
                }
            }
            PollerMsg::Settled(ticket) => {
                if let (Some(given), Some(keeper)) = (self.yields.remove(&ticket), &self.keeper) {
                    keeper.cast(KeeperMsg::Release { buckets: given.buckets, low_water: given.low_water })?;
                }
            }
            PollerMsg::Halt(reply) => {
                self.halted = true;
                // Whoever asked may have given up waiting.
                let _ = reply.send(self.low_water());
            }
            PollerMsg::Tick(_) => {}
        }
        Ok(false)
    }

    /// Takes over what was gained, and drops what was lost; a bucket that came back under another epoch was both. Says whether any was gained.
    fn leased(&mut self, leased: &Leased) -> Result<bool, ActorProcessingErr> {
        let yielding = self.yields.values().fold(BucketSet::EMPTY, |set, given| set.union(&given.buckets));
        let same = |lease: &&outbox_contract::Lease| self.epochs[usize::from(lease.bucket.0)] == lease.epoch;
        let kept: BucketSet = leased.leases.iter().filter(same).map(|lease| lease.bucket).collect();
        let lost = self.reader.owned().without(&kept);
        if !lost.is_empty() {
            tracing::warn!(route = %self.context.route, buckets = lost.len(), "lost the lease of buckets");
            self.lose(lost)?;
        }
        let mut gained = BucketSet::EMPTY;
        let mut low_water = Position::END;
        for lease in &leased.leases {
            if !self.reader.owned().contains(lease.bucket) && !yielding.contains(lease.bucket) {
                gained.insert(lease.bucket);
                low_water = low_water.min(lease.low_water);
                self.epochs[usize::from(lease.bucket.0)] = lease.epoch;
            }
        }
        if !gained.is_empty() {
            tracing::info!(route = %self.context.route, buckets = gained.len(), "took over buckets");
            self.reader.acquire(gained, low_water);
            // Failing keys may have come along.
            self.ask_due = Duration::ZERO;
        }
        self.pause(&leased.paused)?;
        if let Some(keeper) = &self.keeper {
            keeper.cast(KeeperMsg::LowWater(self.low_water()))?;
        }
        Ok(!gained.is_empty())
    }

    /// Nothing of what this relay owns stands at or below this position, what it is giving up included: that is still its own.
    fn low_water(&self) -> Position {
        let yielded = self.yields.values().map(|given| given.low_water).min().unwrap_or(Position::END);
        self.reader.low_water().min(yielded)
    }

    fn pause(&mut self, paused: &outbox_contract::lease::Paused) -> Result<(), ActorProcessingErr> {
        let resumed = self.paused && !paused.route;
        self.paused = paused.route;
        self.context.paused.store(paused.route, Ordering::Release);
        if resumed {
            self.tell_lanes(|| LaneMsg::Pump)?;
        }
        for topic in self.topics.pause(&paused.topics) {
            self.close(&topic)?;
        }
        Ok(())
    }

    fn lose(&mut self, buckets: BucketSet) -> Result<(), ActorProcessingErr> {
        self.reader.lose(buckets);
        self.working.retain(|key| !buckets.contains(key.bucket()));
        for bucket in buckets.iter() {
            self.epochs[usize::from(bucket.0)] = Epoch::default();
        }
        self.tell_lanes(|| LaneMsg::Lose(buckets))
    }

    fn give_up(&mut self, buckets: BucketSet) -> Result<(), ActorProcessingErr> {
        tracing::info!(route = %self.context.route, buckets = buckets.len(), "giving buckets up to another relay");
        let low_water = self.reader.low_water();
        self.reader.lose(buckets);
        self.working.retain(|key| !buckets.contains(key.bucket()));
        self.tickets += 1;
        let ticket = self.tickets;
        self.yields.insert(ticket, Yield { buckets, low_water, lanes_left: self.lanes.len() });
        self.tell_lanes(|| LaneMsg::Yield { buckets, ticket })
    }

    fn broken(&mut self, topic: &Topic, failure: &Failure, now: Duration) -> Result<(), ActorProcessingErr> {
        if self.topics.broken(topic, now) {
            tracing::warn!(route = %self.context.route, %topic, %failure, "a topic is unavailable; the others go on");
        }
        self.close(topic)
    }

    fn close(&mut self, topic: &Topic) -> Result<(), ActorProcessingErr> {
        self.reader.close_topic(topic);
        self.topics.closing(topic);
        self.context.counters.broken(self.topics.names());
        self.tell_lanes(|| LaneMsg::ForgetTopic(topic.clone()))
    }

    fn tell_lanes(&self, message: impl Fn() -> LaneMsg) -> Result<(), ActorProcessingErr> {
        for lane in &self.lanes {
            lane.cast(message())?;
        }
        Ok(())
    }

    /// Plans a look now, or as soon as the last one allows.
    fn look_soon(&mut self, myself: &ActorRef<PollerMsg>) {
        let breath = self.pace.breath(self.context.now());
        self.plan(myself, breath);
    }

    fn plan(&mut self, myself: &ActorRef<PollerMsg>, wait: Duration) {
        let now = self.context.now();
        if let Some((generation, wait)) = self.pace.plan(now, wait) {
            if wait.is_zero() {
                // A mailbox that is gone belongs to an actor that is over.
                let _ = myself.cast(PollerMsg::Tick(generation));
            } else {
                myself.send_after(wait, move || PollerMsg::Tick(generation));
            }
        }
    }

    async fn look(&mut self, myself: &ActorRef<PollerMsg>) -> Result<(), ActorProcessingErr> {
        self.pace.looked(self.context.now());
        if self.paused || !self.context.tenure.holds(self.context.now()) {
            self.plan(myself, self.context.config.idle_poll);
            return Ok(());
        }
        self.open_topics();
        self.fetch_due().await?;
        let mut found = 0;
        let mut more = false;
        for _ in 0..FETCHES_PER_LOOK {
            let Some(seen) = self.fetch().await? else {
                more = false;
                break;
            };
            found += seen;
            more = true;
        }
        self.probe_writers().await?;
        self.context.counters.broken(self.topics.names());
        let wait = if more { Duration::ZERO } else { self.wait(found > 0) };
        self.plan(myself, wait);
        Ok(())
    }

    /// How long to wait when there is nothing to fetch now.
    fn wait(&mut self, found: bool) -> Duration {
        let now = self.context.now();
        let mut wait = self.pace.after_look(found);
        // Nothing says when another process appends: the next look looks, whatever causes it.
        self.reader.look();
        let probe = self.reader.wants_writers().then_some(self.next_probe);
        for at in [self.next_due, self.topics.next(), probe].into_iter().flatten() {
            wait = wait.min(at.saturating_sub(now).max(DUE_PAUSE));
        }
        wait
    }

    /// One fetch. None: there is nothing to read, or no room.
    async fn fetch(&mut self) -> Result<Option<usize>, ActorProcessingErr> {
        let context = Arc::clone(&self.context);
        // A trickle of small fetches would cost more than it brings: wait until half the credit is free.
        if context.credit.room().0 < context.config.credit.div_ceil(2) {
            self.starved = true;
            return Ok(None);
        }
        let (messages, bytes) = context.credit.room_for_content();
        let Some(plan) = self.reader.next(&context.route, context.relay, messages, bytes) else {
            return Ok(None);
        };
        context.fetches.store(self.reader.fetches(), Ordering::Release);
        context.counters.fetched();
        let span = tracing::debug_span!("fetch", route = %context.route, after = plan.request.after.0);
        let call = tracing::Instrument::instrument(context.store.fetch(&plan.request), span);
        let fetched = in_time(context.config.store_timeout, "fetch", call).await?;
        let read = self.reader.fetched(&plan, fetched);
        self.deal(plan.sequence, read.rows)?;
        Ok(Some(read.seen))
    }

    fn deal(&self, fetch: u64, rows: Vec<FetchedRow>) -> Result<(), ActorProcessingErr> {
        let mut dealt: Vec<Vec<LaneRow>> = self.lanes.iter().map(|_| Vec::new()).collect();
        for row in rows {
            let (key, bucket, work) = match row {
                FetchedRow::Message(stored) => {
                    let hold = self.context.credit.take(stored.message.bytes());
                    (stored.message.key_id(), stored.bucket, Work::Message(Held { stored, hold }))
                }
                FetchedRow::Failing(waiting) => (waiting.key, waiting.bucket, Work::Failing(waiting.at)),
                FetchedRow::Malformed(waiting, reason) => {
                    (waiting.key, waiting.bucket, Work::Malformed(waiting.at, reason))
                }
                // The reader lets nothing else through.
                _ => continue,
            };
            let epoch = self.epochs[usize::from(bucket.0)];
            dealt[self.lane_of(bucket)].push(LaneRow { key, bucket, epoch, work });
        }
        for (lane, rows) in self.lanes.iter().zip(dealt) {
            if !rows.is_empty() {
                lane.cast(LaneMsg::Batch { fetch, rows })?;
            }
        }
        Ok(())
    }

    fn lane_of(&self, bucket: Bucket) -> usize {
        usize::from(bucket.0) % self.lanes.len()
    }

    /// Takes failing keys whose time has come.
    async fn fetch_due(&mut self) -> Result<(), ActorProcessingErr> {
        let now = self.context.now();
        let (messages, bytes) = self.context.credit.room_for_content();
        let is_time = now >= self.ask_due || self.next_due.is_some_and(|at| now >= at);
        if !is_time || self.reader.owned().is_empty() || messages == 0 {
            return Ok(());
        }
        let context = Arc::clone(&self.context);
        let request = DueRequest {
            route: context.route.clone(),
            relay: context.relay,
            buckets: self.reader.owned(),
            except: self.working.iter().cloned().collect(),
            muted: self.reader.closed(),
            keys: (messages / DUE_MESSAGES).clamp(1, DUE_KEYS),
            messages: DUE_MESSAGES.min(messages),
            bytes: bytes.min(context.config.batch_bytes),
        };
        let due = in_time(context.config.store_timeout, "due", context.store.due(&request)).await?;
        self.ask_due = now + context.config.due_poll;
        self.next_due = due.next.map(|wait| now + wait.max(DUE_PAUSE));
        let mut dealt: Vec<Vec<_>> = self.lanes.iter().map(|_| Vec::new()).collect();
        for mut key in due.keys {
            let parked = std::mem::take(&mut key.parked);
            let held = parked.into_iter().map(|stored| {
                let hold = context.credit.take(stored.message.bytes());
                Held { stored, hold }
            });
            let held = held.collect();
            self.working.insert(key.key.clone());
            let epoch = self.epochs[usize::from(key.bucket.0)];
            dealt[self.lane_of(key.bucket)].push((key, epoch, held));
        }
        for (lane, keys) in self.lanes.iter().zip(dealt) {
            if !keys.is_empty() {
                lane.cast(LaneMsg::Due(keys))?;
            }
        }
        Ok(())
    }

    async fn probe_writers(&mut self) -> Result<(), ActorProcessingErr> {
        let now = self.context.now();
        if self.reader.wants_writers() && now >= self.next_probe {
            self.next_probe = now + PROBE_EVERY;
            let call = self.context.store.writers();
            let writers = in_time(self.context.config.store_timeout, "writers", call).await?;
            self.reader.wrote(writers);
        }
        Ok(())
    }

    fn open_topics(&mut self) {
        let now = self.context.now();
        for topic in self.topics.open_due(now) {
            self.reader.open_topic(&topic);
        }
        let reader = &self.reader;
        self.topics.keep(|topic| reader.is_apart(topic));
    }
}
