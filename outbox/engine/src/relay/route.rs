//! The actor around the core of a route: carries events to it and commands from it, and decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_contract::Timestamp;
use outbox_contract::backend::{Bucket, BucketSet, Epoch, Leased, LowWater, Outcome, Outcomes};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};

use super::context::Context;
use super::core::{Command, Core, Event, Limits, PublishCommand, Report};
use super::lease_keeper::LeaseKeeperMsg;
use super::poller::PollerMsg;
use super::publisher::{Publish, Publisher};
use super::settler::SettlerMsg;
use super::transitions::TransitionsMsg;
use super::waker::Waker;

pub(crate) struct RouteCore;

/// What a route is started with.
pub(crate) struct RouteSetup {
    pub(crate) context: Arc<Context>,
    pub(crate) settler: ActorRef<SettlerMsg>,
    pub(crate) transitions: ActorRef<TransitionsMsg>,
}

pub(crate) enum CoreMsg {
    /// Who reads for this route, and who keeps its leases. First of all.
    Staff(ActorRef<PollerMsg>, ActorRef<LeaseKeeperMsg>),
    /// An event that the core takes as it is.
    Event(Event),
    /// A heartbeat that began at `asked` was answered.
    Leased { asked: Duration, leased: Leased, surplus: BucketSet, until: Duration },
    /// The broker spoke of some messages of a batch that is out.
    Heard { number: u64 },
    /// A publisher found these buckets not owned under these epochs.
    Lapsed(BTreeMap<Bucket, Epoch>),
    /// A publisher is done with a batch. Of these messages of it the broker knows nothing: they were refused before it was asked.
    Published { publisher: ActorId, number: u64, refused: BTreeSet<usize> },
    /// The time that was planned has come.
    Tick(Duration),
    /// Begin nothing any more; answer with the mark when nothing is unconfirmed.
    Drain(RpcReplyPort<LowWater>),
}

pub(crate) struct RouteState {
    context: Arc<Context>,
    core: Core,
    settler: ActorRef<SettlerMsg>,
    transitions: ActorRef<TransitionsMsg>,
    staff: Option<(ActorRef<PollerMsg>, ActorRef<LeaseKeeperMsg>)>,
    publishers: Vec<Desk>,
    /// Whether somebody waits until nothing is unconfirmed. Read by the publishers.
    hurry: Arc<AtomicBool>,
    tick_at: Option<Duration>,
    draining: Vec<RpcReplyPort<LowWater>>,
    drained: Option<LowWater>,
    _waker: Waker,
}

/// A publisher, and the batch that it has.
struct Desk {
    publisher: ActorRef<Publish>,
    batch: Option<(u64, Outcomes)>,
    /// When the oldest message of the batch was appended.
    oldest: Timestamp,
}

#[ractor::actor(message = CoreMsg, state = RouteState, arguments = RouteSetup)]
impl RouteCore {
    async fn pre_start(
        &self,
        myself: ActorRef<CoreMsg>,
        setup: RouteSetup,
    ) -> Result<RouteState, ActorProcessingErr> {
        let RouteSetup { context, settler, transitions } = setup;
        let limits = Limits::of(&context.config);
        let hurry = Arc::new(AtomicBool::new(false));
        let mut publishers = Vec::new();
        for _ in 0..limits.publishers + limits.silent_publishers {
            let publisher = hire(&context, &myself, &hurry).await?;
            publishers.push(Desk { publisher, batch: None, oldest: Timestamp::default() });
        }
        let names = (context.route.clone(), context.relay);
        let policies = Arc::clone(&context.policies);
        let breaker = *context.breaker();
        let core = Core::new(
            names,
            context.store.frontier().ordering(),
            limits,
            policies,
            breaker,
            context.seed.wrapping_add(1),
        );
        Ok(RouteState {
            core,
            settler,
            transitions,
            staff: None,
            publishers,
            hurry,
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
        let Some(desk) = state.publishers.iter_mut().find(|desk| desk.publisher.get_id() == who.get_id())
        else {
            return Ok(());
        };
        tracing::warn!(route = %state.context.route, "a publisher failed; what it had in hand is sent again alone");
        state.context.counters.restarted();
        desk.publisher = hire(&state.context, &myself, &state.hurry).await?;
        if let Some((batch, outcomes)) = desk.batch.take() {
            let outcomes = outcomes.take();
            state.feed(Event::Published { batch, outcomes, refused: BTreeSet::new(), broke: true });
        }
        state.plan(&myself);
        Ok(())
    }
}

async fn hire(
    context: &Arc<Context>,
    route: &ActorRef<CoreMsg>,
    hurry: &Arc<AtomicBool>,
) -> Result<ActorRef<Publish>, ActorProcessingErr> {
    let publisher =
        Publisher { context: Arc::clone(context), route: route.clone(), hurry: Arc::clone(hurry) };
    let (publisher, _) = Actor::spawn_linked(None, publisher, (), route.get_cell()).await?;
    Ok(publisher)
}

impl RouteState {
    fn take(&mut self, message: CoreMsg) {
        match message {
            CoreMsg::Staff(poller, keeper) => self.staff = Some((poller, keeper)),
            CoreMsg::Event(event) => self.feed(event),
            CoreMsg::Leased { asked, leased, surplus, until } => {
                self.context.pause(&leased.paused, asked);
                self.feed(Event::Leased { leased, surplus, until });
            }
            CoreMsg::Heard { number } => {
                let of = |desk: &Desk| {
                    let batch = desk.batch.as_ref().filter(|(batch, _)| *batch == number);
                    batch.map(|(_, outcomes)| outcomes.delivered())
                };
                if let Some(delivered) = self.publishers.iter().find_map(of) {
                    self.feed(Event::Heard { batch: number, delivered });
                }
            }
            CoreMsg::Lapsed(epochs) => self.feed(Event::Lapsed(epochs)),
            CoreMsg::Published { publisher, number, refused } => self.published(publisher, number, refused),
            // One that was overtaken by an earlier one plans nothing, or there would be ever more of them.
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
        let mut desks = self.publishers.iter_mut();
        let Some(desk) = desks.find(|desk| desk.publisher.get_id() == publisher) else { return };
        let Some((batch, outcomes)) = desk.batch.take_if(|(batch, _)| *batch == number) else { return };
        let outcomes = outcomes.take();
        if outcomes.contains(&Some(Outcome::Delivered)) {
            self.context.counters.latency(self.context.clock.now().since(desk.oldest));
        }
        self.feed(Event::Published { batch, outcomes, refused, broke: false });
    }

    /// Lets the core take an event, and passes its commands on. Who is gone is replaced with all of this incarnation before long, and what was meant for
    /// them is read again; this actor must not fail over it, for its batches are still to be confirmed and what they delivered to be removed.
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
        self.hurry.store(self.core.is_in_a_hurry(), Ordering::Release);
        if let Some(low_water) = &self.drained {
            for reply in self.draining.drain(..) {
                // Whoever asked may have given up waiting.
                let _ = reply.send(low_water.clone());
            }
        }
    }

    fn poller(&self, message: PollerMsg) {
        if let Some((poller, _)) = &self.staff {
            let _ = poller.cast(message);
        }
    }

    fn keeper(&self, message: LeaseKeeperMsg) {
        if let Some((_, keeper)) = &self.staff {
            let _ = keeper.cast(message);
        }
    }

    fn publish(&mut self, batch: PublishCommand) {
        // The core knows how many there are, and gives one batch to each.
        let Some(desk) = self.publishers.iter_mut().find(|desk| desk.batch.is_none()) else { return };
        let outcomes = Outcomes::new(batch.messages.len());
        desk.batch = Some((batch.number, outcomes.clone()));
        desk.oldest = batch.messages.iter().map(|stored| stored.appended_at).min().unwrap_or_default();
        // One that is gone was seen, or will be, and what it had is unknown then.
        let _ = desk.publisher.cast(Publish { batch, outcomes });
    }

    /// Plans the next tick.
    fn plan(&mut self, myself: &ActorRef<CoreMsg>) {
        let Some(at) = self.core.next_tick() else { return };
        if self.tick_at.is_some_and(|planned| planned <= at) {
            return;
        }
        self.tick_at = Some(at);
        let wait = at.saturating_sub(self.context.now());
        if wait.is_zero() {
            // A mailbox that is gone belongs to an actor that is over.
            let _ = myself.cast(CoreMsg::Tick(at));
        } else {
            myself.send_after(wait, move || CoreMsg::Tick(at));
        }
    }

    fn report(&self, report: Report) {
        let Context { route, counters, .. } = &*self.context;
        match report {
            Report::TookOver(buckets) => tracing::info!(%route, buckets, "took over buckets"),
            Report::LostBuckets(buckets) => tracing::warn!(%route, buckets, "lost the lease of buckets"),
            Report::GivingUp(buckets) => {
                tracing::info!(%route, buckets, "giving buckets up to another relay")
            }
            Report::TransportAway(failure) => {
                tracing::warn!(%route, %failure, "the transport is unavailable; waiting for it");
            }
            Report::TransportSilent => {
                tracing::warn!(%route, "nothing is heard from the transport; waiting for it");
            }
            Report::TransportBack => tracing::info!(%route, "the transport is back"),
            Report::TopicBroken(topic, failure, warns) => {
                counters.broke(topic.to_string(), failure.to_string());
                if warns {
                    tracing::warn!(%route, %topic, %failure, "a topic is unavailable; the others go on");
                }
            }
            Report::TopicBack(topic) => tracing::info!(%route, %topic, "a topic is available again"),
            Report::TopicsApart(topics) => counters.broken(topics),
            Report::BelowMark { at, mark, cause, warns } => {
                counters.found_below(self.context.now(), cause);
                if warns {
                    tracing::warn!(
                        %route, position = at.0, mark = mark.0, %cause,
                        "messages stand below the position up to which the relay has read; it goes back and delivers them"
                    );
                }
            }
        }
    }
}
