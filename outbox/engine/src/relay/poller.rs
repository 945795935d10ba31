//! The poller: reads the store for all buckets that this relay owns, and deals the rows out to the lanes.
//!
//! What to read is decided by [`Reader`]; this actor carries it out, one fetch at a time, and takes word of what became of the rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outbox_contract::fetch::{DueRequest, FetchedRow};
use outbox_contract::hints::Wakeup;
use outbox_contract::{
    BUCKETS, Bucket, BucketSet, Epoch, Failure, KeyId, Lease, Leased, LowWater, Position, Topic,
};
use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};

use super::context::{Context, in_time};
use super::keeper::KeeperMsg;
use super::key::{Held, Work};
use super::lane::{Dealt, LaneMsg, LaneRow};
use super::pace::Pace;
use super::reader::{Reader, ReaderLimits};
use super::settler::SettlerMsg;
use super::topics::Topics;
use super::waker::Waker;
use super::working::Working;

mod look;

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
    /// What this relay owns now, by a heartbeat that began at `asked`, and what of it to give up.
    Leased { asked: Duration, leased: Leased, surplus: BucketSet },
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
    /// A message of a topic is published that had been dropped from memory.
    TopicPublished(Topic),
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
    Halt(RpcReplyPort<LowWater>),
}

pub(crate) struct PollerState {
    context: Arc<Context>,
    lanes: Vec<ActorRef<LaneMsg>>,
    settler: ActorRef<SettlerMsg>,
    keeper: Option<ActorRef<KeeperMsg>>,
    reader: Reader,
    epochs: [Epoch; BUCKETS],
    /// Which life of the database all of this was read in.
    life: i64,
    pace: Pace,
    topics: Topics,
    /// Failing keys that are being worked on.
    working: Working,
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
    // Whether the last fetch showed rows that count from the next one on.
    early: bool,
    _waker: Waker,
}

/// Buckets that are being given up: when no lane has any of it in flight and what was delivered is removed, they are released.
struct Yield {
    buckets: BucketSet,
    low_water: Position,
    lanes_left: usize,
}

/// How many keys have windows of their own before the wider windows wait for them.
const KEY_GAPS: usize = 64;
/// Over how many batches' worth of positions a fetch may walk again, before it pays to ask after each one who is writing. A database takes about
/// 0.3 microseconds for a row that is gone, and about as long as for a thousand to answer that.
const WALK: i64 = 4;

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
            per_key: config.most_per_key(),
            waiting: config.credit,
            key_gaps: KEY_GAPS,
            walk: i64::try_from(config.batch).unwrap_or(i64::MAX).saturating_mul(WALK),
        };
        Ok(PollerState {
            reader: Reader::new(context.store.ordering(), limits),
            epochs: [Epoch::default(); BUCKETS],
            life: 0,
            pace: Pace::new(config.idle_poll),
            topics: Topics::new(
                config.outage_first_delay,
                config.outage_most_delay,
                config.publish_timeout,
                lanes.len(),
            ),
            working: Working::of(config),
            next_due: None,
            ask_due: Duration::ZERO,
            next_probe: Duration::ZERO,
            yields: BTreeMap::new(),
            tickets: 0,
            paused: false,
            halted: false,
            starved: false,
            early: false,
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
            PollerMsg::Leased { asked, leased, surplus } => {
                let was_idle = self.paused || self.reader.owned().is_empty();
                let gained = self.leased(&leased, asked)?;
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
            PollerMsg::TopicPublished(topic) => {
                if self.topics.published(&topic) {
                    tracing::info!(route = %self.context.route, %topic, "a topic is available again");
                    // Whether it is still apart shows in the next look.
                    return Ok(true);
                }
            }
            PollerMsg::TopicForgotten(topic) => self.topics.forgotten(&topic),
            PollerMsg::Worked(keys) => {
                for (key, due_in) in keys {
                    self.working.back(&key);
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
                    let low_water = self.covering(given.buckets, given.low_water);
                    keeper.cast(KeeperMsg::Release { buckets: given.buckets, low_water })?;
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
    fn leased(&mut self, leased: &Leased, asked: Duration) -> Result<bool, ActorProcessingErr> {
        self.life = leased.life;
        let yielding = self.yielding();
        let epochs = self.epochs;
        let same = |lease: &&Lease| epochs[usize::from(lease.bucket.0)] == lease.epoch;
        let kept: BucketSet = leased.leases.iter().filter(same).map(|lease| lease.bucket).collect();
        let lost = self.reader.owned().without(&kept);
        if !lost.is_empty() {
            tracing::warn!(route = %self.context.route, buckets = lost.len(), "lost the lease of buckets");
            self.lose(lost)?;
        }
        let mut gained = BucketSet::EMPTY;
        let mut low_water = Position::END;
        for lease in &leased.leases {
            // Under the epoch under which it was given up, it is on its way back: the heartbeat looked before it was there.
            let is_released = same(&lease);
            if !self.reader.owned().contains(lease.bucket) && !yielding.contains(lease.bucket) && !is_released
            {
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
        self.pause(&leased.paused, asked)?;
        // They may have stopped when the tenure was over, or for the pause.
        self.tell_lanes(|| LaneMsg::Pump)?;
        if let Some(keeper) = &self.keeper {
            keeper.cast(KeeperMsg::LowWater(self.low_water()))?;
        }
        Ok(!gained.is_empty())
    }

    fn yielding(&self) -> BucketSet {
        self.yields.values().fold(BucketSet::EMPTY, |set, given| set.union(&given.buckets))
    }

    /// How far all that this relay reads has come, what it is giving up included: that is still its own. It speaks of what this poller was told
    /// of, and no more: the keeper may own other buckets by now.
    fn low_water(&self) -> LowWater {
        let yielded = self.yields.values().map(|given| given.low_water).min().unwrap_or(Position::END);
        let covered = self.reader.owned().union(&self.yielding());
        self.covering(covered, self.reader.low_water().min(yielded))
    }

    /// A mark of these buckets, under the epochs under which they were read.
    fn covering(&self, buckets: BucketSet, position: Position) -> LowWater {
        let covered = buckets.iter().map(|bucket| (bucket, self.epochs[usize::from(bucket.0)])).collect();
        LowWater { position, covered, life: self.life }
    }

    fn pause(
        &mut self,
        paused: &outbox_contract::lease::Paused,
        asked: Duration,
    ) -> Result<(), ActorProcessingErr> {
        self.paused = paused.route;
        self.context.pause(paused, asked);
        for topic in self.topics.pause(&paused.topics) {
            self.close(&topic)?;
        }
        Ok(())
    }

    fn lose(&mut self, buckets: BucketSet) -> Result<(), ActorProcessingErr> {
        self.reader.lose(buckets);
        self.working.lose(&buckets);
        for bucket in buckets.iter() {
            self.epochs[usize::from(bucket.0)] = Epoch::default();
        }
        self.tell_lanes(|| LaneMsg::Lose(buckets))
    }

    fn give_up(&mut self, buckets: BucketSet) -> Result<(), ActorProcessingErr> {
        tracing::info!(route = %self.context.route, buckets = buckets.len(), "giving buckets up to another relay");
        let low_water = self.reader.low_water();
        self.reader.lose(buckets);
        self.working.lose(&buckets);
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
}
