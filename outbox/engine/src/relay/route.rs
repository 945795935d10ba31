//! Actor of a route's core: passes events to it and commands from it, and decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_contract::Timestamp;
use outbox_contract::backend::{Bucket, BucketSet, Epoch, Leased, LowWater, Outcome, Outcomes};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};

use super::context::Context;
use super::core::{Command, Core, Event, PublishCommand, Report};
use super::lease_keeper::LeaseKeeperMsg;
use super::poller::PollerMsg;
use super::publisher::{Publish, Publisher};
use super::sent::Topics;
use super::settler::SettlerMsg;
use super::transitions::TransitionsMsg;
use super::waker::Waker;

pub(crate) struct RouteCore;

/// Arguments of the actor.
pub(crate) struct RouteSetup {
    pub(crate) context: Arc<Context>,
    pub(crate) settler: ActorRef<SettlerMsg>,
    pub(crate) transitions: ActorRef<TransitionsMsg>,
}

pub(crate) enum CoreMsg {
    /// Poller and lease keeper of the route. The first message.
    Attach(ActorRef<PollerMsg>, ActorRef<LeaseKeeperMsg>),
    /// Event for the core, passed on as it is.
    Event(Event),
    /// Answer to a heartbeat that began at `asked`.
    Leased { asked: Duration, leased: Leased, surplus: BucketSet, until: Duration },
    /// The broker answered for messages of an unconfirmed batch.
    Heard { number: u64 },
    /// A publisher found that the relay does not own these buckets under these epochs.
    Lapsed(BTreeMap<Bucket, Epoch>),
    /// A publisher finished a batch. The broker has never seen the `refused` messages.
    Published { publisher: ActorId, number: u64, refused: BTreeSet<usize> },
    /// The planned time has come.
    Tick(Duration),
    /// Start nothing new; reply with the low-water mark when nothing is unconfirmed.
    Drain(RpcReplyPort<LowWater>),
}

pub(crate) struct RouteState {
    context: Arc<Context>,
    core: Core,
    settler: ActorRef<SettlerMsg>,
    transitions: ActorRef<TransitionsMsg>,
    peers: Option<(ActorRef<PollerMsg>, ActorRef<LeaseKeeperMsg>)>,
    publishers: Vec<PublisherSlot>,
    /// True while the core waits until nothing is unconfirmed. Read by the publishers.
    strict_timeout: Arc<AtomicBool>,
    tick_at: Option<Duration>,
    draining: Vec<RpcReplyPort<LowWater>>,
    drained: Option<LowWater>,
    _waker: Waker,
}

/// A publisher and its batch.
struct PublisherSlot {
    publisher: ActorRef<Publish>,
    batch: Option<(u64, Outcomes)>,
    /// Instant at which the oldest message of the batch was appended.
    oldest: Timestamp,
    /// Topics of its messages.
    topics: Topics,
}

#[ractor::actor(message = CoreMsg, state = RouteState, arguments = RouteSetup)]
impl RouteCore {
    async fn pre_start(
        &self,
        myself: ActorRef<CoreMsg>,
        setup: RouteSetup,
    ) -> Result<RouteState, ActorProcessingErr> {
        let RouteSetup { context, settler, transitions } = setup;
        let limits = context.limits;
        let strict_timeout = Arc::new(AtomicBool::new(false));
        let mut publishers = Vec::new();
        for _ in 0..limits.publishers + limits.silent_publishers {
            let publisher = spawn_publisher(&context, &myself, &strict_timeout).await?;
            let (oldest, topics) = (Timestamp::default(), Topics::default());
            publishers.push(PublisherSlot { publisher, batch: None, oldest, topics });
        }
        let names = (context.route.clone(), context.relay);
        let breaker = *context.breaker();
        let core = Core::new(
            names,
            context.store.frontier().ordering(),
            limits,
            context.config.retry.clone(),
            breaker,
            context.seed.wrapping_add(1),
        );
        Ok(RouteState {
            core,
            settler,
            transitions,
            peers: None,
            publishers,
            strict_timeout,
            tick_at: None,
            draining: Vec::new(),
            drained: None,
            _waker: Waker::start(Arc::clone(&context), myself),
            context,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<CoreMsg>,
        message: CoreMsg,
        state: &mut RouteState,
    ) -> Result<(), ActorProcessingErr> {
        if state.context.take_transport_answers() {
            state.feed(Event::TransportIsBack);
        }
        state.take(message);
        state.plan(&myself);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<CoreMsg>,
        event: SupervisionEvent,
        state: &mut RouteState,
    ) -> Result<(), ActorProcessingErr> {
        let (SupervisionEvent::ActorFailed(who, _) | SupervisionEvent::ActorTerminated(who, _, _)) = event
        else {
            return Ok(());
        };
        let Some(slot) = state.publishers.iter_mut().find(|slot| slot.publisher.get_id() == who.get_id())
        else {
            return Ok(());
        };
        tracing::warn!(
            route = %state.context.route,
            "a publisher failed, as by a panic of the transport; restarting it; the unconfirmed messages \
             of its batch are sent again"
        );
        state.context.counters.restarted();
        slot.publisher = spawn_publisher(&state.context, &myself, &state.strict_timeout).await?;
        if let Some((batch, outcomes)) = slot.batch.take() {
            let outcomes = outcomes.take();
            state.context.counters.sent(&slot.topics, &outcomes, &BTreeSet::new());
            state.feed(Event::Published { batch, outcomes, refused: BTreeSet::new(), broke: true });
        }
        state.plan(&myself);
        Ok(())
    }
}

async fn spawn_publisher(
    context: &Arc<Context>,
    route: &ActorRef<CoreMsg>,
    strict_timeout: &Arc<AtomicBool>,
) -> Result<ActorRef<Publish>, ActorProcessingErr> {
    let publisher = Publisher {
        context: Arc::clone(context),
        route: route.clone(),
        strict_timeout: Arc::clone(strict_timeout),
    };
    let (publisher, _) = Actor::spawn_linked(None, publisher, (), route.get_cell()).await?;
    Ok(publisher)
}

impl RouteState {
    fn take(&mut self, message: CoreMsg) {
        match message {
            CoreMsg::Attach(poller, keeper) => self.peers = Some((poller, keeper)),
            CoreMsg::Event(event) => self.feed(event),
            CoreMsg::Leased { asked, leased, surplus, until } => {
                self.context.pause(&leased.paused, asked);
                self.feed(Event::Leased { leased, surplus, asked, until });
            }
            CoreMsg::Heard { number } => {
                let of = |slot: &PublisherSlot| {
                    let batch = slot.batch.as_ref().filter(|(batch, _)| *batch == number);
                    batch.map(|(_, outcomes)| outcomes.delivered())
                };
                if let Some(delivered) = self.publishers.iter().find_map(of) {
                    self.feed(Event::Heard { batch: number, delivered });
                }
            }
            CoreMsg::Lapsed(epochs) => self.feed(Event::Lapsed(epochs)),
            CoreMsg::Published { publisher, number, refused } => self.published(publisher, number, refused),
            // A tick that an earlier one overtook plans nothing. Otherwise their number would grow
            // without bound.
            CoreMsg::Tick(at) => {
                self.tick_at = self.tick_at.filter(|planned| *planned != at);
                self.feed(Event::Tick);
            }
            CoreMsg::Drain(reply) => {
                self.draining.push(reply);
                self.feed(Event::Drain);
            }
        }
    }

    fn published(&mut self, publisher: ActorId, number: u64, refused: BTreeSet<usize>) {
        let mut slots = self.publishers.iter_mut();
        let Some(slot) = slots.find(|slot| slot.publisher.get_id() == publisher) else { return };
        let Some((batch, outcomes)) = slot.batch.take_if(|(batch, _)| *batch == number) else { return };
        let outcomes = outcomes.take();
        self.context.counters.sent(&slot.topics, &outcomes, &refused);
        if outcomes.contains(&Some(Outcome::Delivered)) {
            self.context.counters.latency(self.context.store_now().since(slot.oldest));
        }
        self.feed(Event::Published { batch, outcomes, refused, broke: false });
    }

    /// Passes an event to the core, and its commands to the other actors.
    ///
    /// An actor that is gone is replaced soon, with all of this incarnation, and its commands
    /// become moot: the store is read again. This actor must not fail because of that. Its batches
    /// are still to be confirmed, and what they delivered is still to be removed.
    fn feed(&mut self, event: Event) {
        let mut transitions = Vec::new();
        for command in self.core.on(event, self.context.now()) {
            match command {
                Command::Ask { number, question } => self.poller(PollerMsg::Ask { number, question }),
                Command::LookBelow { number, request, with_marks } => {
                    self.poller(PollerMsg::LookBelow { number, request, with_marks });
                }
                Command::Publish(batch) => self.publish(batch),
                Command::Remove { number, rows, messages, bytes } => {
                    let _ = self.settler.cast(SettlerMsg::Remove { number, rows, messages, bytes });
                }
                Command::Transition { number, transition } => transitions.push((number, transition)),
                Command::PauseTopic { number, topic, failure } => {
                    let _ = self.transitions.cast(TransitionsMsg::Pause { number, topic, failure });
                }
                Command::GiveBack { buckets, low_water } => {
                    self.keeper(LeaseKeeperMsg::Release { buckets, low_water });
                }
                Command::Save(low_water) => self.keeper(LeaseKeeperMsg::LowWater(low_water)),
                Command::Drained(low_water) => self.drained = Some(low_water),
                Command::Count(counts) => self.context.counters.add(&counts),
                Command::Report(report) => self.report(report),
            }
        }
        if !transitions.is_empty() {
            let _ = self.transitions.cast(TransitionsMsg::Make(transitions));
        }
        self.context.show(self.core.breaker(), self.core.in_flight());
        self.strict_timeout.store(self.core.wants_strict_timeout(), Ordering::Release);
        if let Some(low_water) = &self.drained {
            for reply in self.draining.drain(..) {
                // The caller may have given up waiting.
                let _ = reply.send(low_water.clone());
            }
        }
    }

    fn poller(&self, message: PollerMsg) {
        if let Some((poller, _)) = &self.peers {
            let _ = poller.cast(message);
        }
    }

    fn keeper(&self, message: LeaseKeeperMsg) {
        if let Some((_, keeper)) = &self.peers {
            let _ = keeper.cast(message);
        }
    }

    fn publish(&mut self, batch: PublishCommand) {
        // The core knows the number of publishers, and sends each one batch at a time.
        let Some(slot) = self.publishers.iter_mut().find(|slot| slot.batch.is_none()) else { return };
        let outcomes = Outcomes::new(batch.messages.len());
        slot.batch = Some((batch.number, outcomes.clone()));
        slot.topics = Topics::of(&batch.messages);
        slot.oldest = batch.messages.iter().map(|stored| stored.appended_at).min().unwrap_or_default();
        // The failure of a publisher that is gone is handled in its own event; its batch is unknown
        // then.
        let _ = slot.publisher.cast(Publish { batch, outcomes });
    }

    /// Schedules the next tick.
    fn plan(&mut self, myself: &ActorRef<CoreMsg>) {
        let Some(at) = self.core.next_tick() else { return };
        if self.tick_at.is_some_and(|planned| planned <= at) {
            return;
        }
        self.tick_at = Some(at);
        let wait = at.saturating_sub(self.context.now());
        if wait.is_zero() {
            // If the mailbox is gone, this actor is stopping.
            let _ = myself.cast(CoreMsg::Tick(at));
        } else {
            myself.send_after(wait, move || CoreMsg::Tick(at));
        }
    }

    fn report(&self, report: Report) {
        let Context { route, counters, .. } = &*self.context;
        match report {
            Report::TookOver(buckets) => {
                counters.took_over(buckets);
                tracing::info!(%route, buckets, "took over buckets");
            }
            Report::LostBuckets(buckets) => tracing::warn!(
                %route,
                buckets,
                "lease of buckets lost; their messages in memory are dropped"
            ),
            Report::GivingUp(buckets) => {
                tracing::info!(%route, buckets, "rebalancing: giving buckets to another relay")
            }
            Report::TakingAnew(buckets) => tracing::warn!(
                %route,
                buckets,
                "the broker knows newer owners of buckets than the database, which may have lost commits (a failover, a restore); \
                 taking the buckets under their next epochs"
            ),
            Report::TransportAway(failure, is_news) => {
                counters.transport_is_away(Some(failure.to_string()));
                if is_news {
                    tracing::warn!(%route, %failure, "transport unavailable; will keep retrying");
                }
            }
            Report::TransportSilent => {
                counters.transport_is_away(None);
                tracing::warn!(%route, "no answer from the transport; will keep retrying");
            }
            Report::TransportBack => tracing::info!(%route, "transport available again"),
            Report::TopicBroken(topic, failure, warns) => {
                counters.broke(topic.to_string(), failure.to_string());
                if warns {
                    tracing::warn!(
                        %route,
                        %topic,
                        %failure,
                        "topic unavailable; will keep retrying, other topics continue"
                    );
                }
            }
            Report::TopicBack(topic) => tracing::info!(%route, %topic, "topic available again"),
            Report::TopicPaused(topic, failure) => {
                counters.broke(topic.to_string(), format!("paused by the retry policy: {failure}"));
                tracing::warn!(
                    %route,
                    %topic,
                    %failure,
                    "topic paused by the retry policy; resume it once the cause is gone"
                );
            }
            Report::DeadLetter(topic, id, failure) => counters.warn_of_dead_letter(&topic, id, &failure),
            Report::KeyHeld(key, failure) => counters.warn_of_held_key(&key, &failure),
            Report::Discarded(topic, id, failure) => tracing::warn!(
                %route,
                %topic,
                message = %id,
                %failure,
                "message discarded by the retry policy: deleted without a dead letter"
            ),
            Report::TopicsApart(topics) => counters.broken(topics),
            Report::BelowMark { at, mark, cause, warns } => {
                counters.found_below(self.context.now(), cause);
                if warns {
                    tracing::warn!(
                        %route, position = at.0, mark = mark.0, %cause,
                        "found messages below the position up to which the relay had read; going back \
                         to deliver them"
                    );
                }
            }
        }
    }
}
