//! The dispatcher: the actor around the core. It passes events to it, and its commands to the
//! workers and the acknowledger.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_contract::TransportError;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::task::AbortHandle;

use super::acknowledger::{Acknowledge, Acknowledger};
use super::context::Context;
use super::core::{Command, Core, Event, Job};
use super::source::Source;
use super::verdict::{StoreFailure, Verdict};
use super::worker::{Assignment, Worker};
use crate::restart::ended;

pub(crate) struct Dispatcher;

/// Context and subscription of a dispatcher.
pub(crate) struct DispatcherSetup {
    pub(crate) context: Arc<Context>,
    pub(crate) source: Arc<Source>,
    /// Wait of a finished delivery for others, to be acknowledged together.
    pub(crate) delay: Duration,
}

pub(crate) enum DispatcherMsg {
    /// An event that the core takes as it is.
    Event(Event),
    /// A worker is done with a job.
    Finished { number: u64, verdicts: Result<Vec<Verdict>, StoreFailure> },
    /// The broker was informed of what is finished, or could not be reached now; an error: it never
    /// will be.
    Acknowledged { number: u64, result: Result<bool, TransportError> },
    /// An operator may have paused or resumed the consumer or one of its topics.
    Look,
    /// The planned time has come.
    Tick,
    /// Begin nothing more; answer when nothing is being handled, with whether the broker was told
    /// everything.
    Drain(RpcReplyPort<bool>),
}

pub(crate) struct DispatcherState {
    context: Arc<Context>,
    source: Arc<Source>,
    core: Core,
    acknowledger: ActorRef<Acknowledge>,
    /// The command that the acknowledger has.
    asked: Option<u64>,
    desks: Vec<Desk>,
    /// Time at which the core wants a tick, and the one timer that tells.
    tick: Option<(Duration, Option<AbortHandle>)>,
    draining: Option<RpcReplyPort<bool>>,
}

/// A worker, and the job that it has.
struct Desk {
    worker: ActorRef<Assignment>,
    job: Option<(u64, Arc<AtomicBool>)>,
}

#[ractor::actor(message = DispatcherMsg, state = DispatcherState, arguments = DispatcherSetup)]
impl Dispatcher {
    async fn pre_start(
        &self,
        myself: ActorRef<DispatcherMsg>,
        setup: DispatcherSetup,
    ) -> Result<DispatcherState, ActorProcessingErr> {
        let DispatcherSetup { context, source, delay } = setup;
        let mut desks = Vec::new();
        for _ in 0..context.limits.workers {
            desks.push(Desk { worker: hire(&context, &myself).await?, job: None });
        }
        Ok(DispatcherState {
            core: Core::new(context.limits.clone(), delay, context.seed),
            acknowledger: appoint(&context, &source, &myself).await?,
            asked: None,
            context,
            source,
            desks,
            tick: None,
            draining: None,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<DispatcherMsg>,
        message: DispatcherMsg,
        state: &mut DispatcherState,
    ) -> Result<(), ActorProcessingErr> {
        let paused = state.context.paused();
        if paused != *state.core.paused() {
            state.feed(Event::Paused(paused));
        }
        state.take(message)?;
        state.plan(&myself);
        Ok(())
    }

    /// Replaces a worker or an acknowledger that died. What it had in hand is done again: messages
    /// that were handled are found to be duplicates, and an acknowledgement may be told twice.
    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<DispatcherMsg>,
        event: SupervisionEvent,
        state: &mut DispatcherState,
    ) -> Result<(), ActorProcessingErr> {
        let Some((who, cause)) = ended(event) else { return Ok(()) };
        let consumer = &state.context.subscription.consumer;
        if who == state.acknowledger.get_id() {
            tracing::warn!(%consumer, cause, "the acknowledger failed; its acknowledgments are sent again");
            state.acknowledger = appoint(&state.context, &state.source, &myself).await?;
            if let Some(number) = state.asked.take() {
                state.feed(Event::Acknowledged { number, told: false });
            }
        } else if let Some(desk) = state.desks.iter_mut().find(|desk| desk.worker.get_id() == who) {
            tracing::warn!(%consumer, cause, "a worker failed; its messages are tried again one by one");
            desk.worker = hire(&state.context, &myself).await?;
            if let Some((number, _)) = desk.job.take() {
                state.feed(Event::Broke { number });
            }
        }
        state.plan(&myself);
        Ok(())
    }
}

async fn hire(
    context: &Arc<Context>,
    dispatcher: &ActorRef<DispatcherMsg>,
) -> Result<ActorRef<Assignment>, ActorProcessingErr> {
    let worker = Worker { context: Arc::clone(context), dispatcher: dispatcher.clone() };
    Ok(Actor::spawn_linked(None, worker, (), dispatcher.get_cell()).await?.0)
}

async fn appoint(
    context: &Arc<Context>,
    source: &Arc<Source>,
    dispatcher: &ActorRef<DispatcherMsg>,
) -> Result<ActorRef<Acknowledge>, ActorProcessingErr> {
    let (context, source) = (Arc::clone(context), Arc::clone(source));
    let acknowledger = Acknowledger { context, source, dispatcher: dispatcher.clone() };
    Ok(Actor::spawn_linked(None, acknowledger, (), dispatcher.get_cell()).await?.0)
}

impl DispatcherState {
    /// An error ends this life of the inbox: nothing that is in memory can be relied on.
    fn take(&mut self, message: DispatcherMsg) -> Result<(), ActorProcessingErr> {
        match message {
            DispatcherMsg::Event(event) => self.feed(event),
            DispatcherMsg::Finished { number, verdicts } => {
                let verdicts = verdicts.map_err(|failure| failure.to_string())?;
                for desk in &mut self.desks {
                    desk.job.take_if(|(job, _)| *job == number);
                }
                self.feed(Event::Finished { number, verdicts });
            }
            DispatcherMsg::Acknowledged { number, result } => {
                let told = result?;
                self.asked = self.asked.filter(|asked| *asked != number);
                self.feed(Event::Acknowledged { number, told });
            }
            DispatcherMsg::Look => {}
            DispatcherMsg::Tick => {
                // One that comes late is of a timer that was replaced.
                self.forget_tick();
                self.feed(Event::Tick);
            }
            DispatcherMsg::Drain(reply) => {
                self.draining = Some(reply);
                self.feed(Event::Drain);
            }
        }
        Ok(())
    }

    /// Lets the core take an event, and passes its commands on. Whoever is gone is replaced, and
    /// what it was to do is done again.
    fn feed(&mut self, event: Event) {
        for command in self.core.on(event, self.context.now()) {
            match command {
                Command::Begin(job) => self.begin(job),
                Command::Recall(number) => {
                    let mut jobs = self.desks.iter().filter_map(|desk| desk.job.as_ref());
                    if let Some((_, recalled)) = jobs.find(|(job, _)| *job == number) {
                        recalled.store(true, Ordering::Release);
                    }
                }
                Command::Acknowledge { number, tags } => {
                    self.asked = Some(number);
                    let _ = self.acknowledger.cast(Acknowledge { number, tags });
                }
                Command::Drained { is_clean } => {
                    if let Some(reply) = self.draining.take() {
                        // Whoever asked may have given up waiting.
                        let _ = reply.send(is_clean);
                    }
                }
            }
        }
    }

    fn begin(&mut self, job: Job) {
        // The core knows how many there are, and gives one job to each.
        let Some(desk) = self.desks.iter_mut().find(|desk| desk.job.is_none()) else { return };
        let recalled = Arc::new(AtomicBool::new(false));
        desk.job = Some((job.number, Arc::clone(&recalled)));
        let _ = desk.worker.cast(Assignment { job, recalled });
    }

    fn forget_tick(&mut self) {
        if let Some((_, Some(timer))) = self.tick.take() {
            timer.abort();
        }
    }

    /// Plans the next tick.
    fn plan(&mut self, myself: &ActorRef<DispatcherMsg>) {
        let Some(at) = self.core.next_tick() else { return };
        let now = self.context.now();
        if self.tick.as_ref().is_some_and(|(planned, _)| *planned <= at.max(now)) {
            return;
        }
        self.forget_tick();
        let timer = if at <= now {
            // Behind what has come meanwhile. A mailbox that is gone belongs to an actor that is
            // over.
            let _ = myself.cast(DispatcherMsg::Tick);
            None
        } else {
            Some(myself.send_after(at - now, || DispatcherMsg::Tick).abort_handle())
        };
        self.tick = Some((at, timer));
    }
}
