//! The supervisor of an inbox: subscribes, starts the parts, and starts them again when one fails.
//!
//! As in the relay, whatever is unexpected is a new incarnation: everything in memory is dropped,
//! the broker delivers again what was not acknowledged, and deduplication finds what was handled.
//! A transaction that is cut off is rolled back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outbox_contract::TransportError;
use ractor::{
    Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent, call_t,
};

use super::context::Context;
use super::dispatcher::{Dispatcher, DispatcherMsg, DispatcherSetup};
use super::receiver::{BROKER_TIMEOUT, Receiver, ReceiverMsg};
use super::source::Source;
use super::upkeep::Upkeep;
use crate::answer::answer;
use crate::restart::{FAILING_WINDOW, RestartPolicy, ended, millis};

pub(crate) struct InboxSupervisor {
    pub(crate) context: Arc<Context>,
}

pub(crate) enum InboxMsg {
    /// Begin a new incarnation, if this is the one that was planned.
    Begin(u64),
    /// The subscription is over.
    Ended,
    /// Look whether the consumer, or a topic of it, is paused, and whether topics give nothing.
    Look,
    /// Take no more, finish what is being handled, acknowledge it, leave. Answers whether all of it
    /// was done.
    Stop(RpcReplyPort<bool>),
}

pub(crate) struct InboxState {
    incarnation: Option<Incarnation>,
    planned: u64,
    policy: RestartPolicy,
    random: fastrand::Rng,
    stopping: bool,
    upkeep: Upkeep,
}

/// Interval of the look whether an operator paused the consumer or a topic of it, and whether
/// topics give nothing. The store is asked by the heartbeat alone, and the broker by the transport.
const LOOK: Duration = Duration::from_secs(1);

/// The parts of one life of an inbox.
struct Incarnation {
    source: Arc<Source>,
    receiver: ActorRef<ReceiverMsg>,
    dispatcher: ActorRef<DispatcherMsg>,
}

const NOT_IN_ORDER: &str = "the inbox did not stop in order";

#[ractor::actor(message = InboxMsg, state = InboxState)]
impl InboxSupervisor {
    async fn pre_start(&self, _myself: ActorRef<InboxMsg>, (): ()) -> Result<InboxState, ActorProcessingErr> {
        let config = &self.context.config;
        Ok(InboxState {
            incarnation: None,
            planned: 0,
            policy: RestartPolicy::new(config.outage_first_delay, config.outage_max_delay),
            random: fastrand::Rng::with_seed(!self.context.seed),
            stopping: false,
            upkeep: Upkeep::default(),
        })
    }

    async fn post_start(
        &self,
        myself: ActorRef<InboxMsg>,
        _state: &mut InboxState,
    ) -> Result<(), ActorProcessingErr> {
        // Ends with this actor.
        drop(myself.send_interval(LOOK, || InboxMsg::Look));
        Ok(myself.cast(InboxMsg::Begin(0))?)
    }

    async fn handle(
        &self,
        myself: ActorRef<InboxMsg>,
        message: InboxMsg,
        state: &mut InboxState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            InboxMsg::Begin(planned) => {
                if planned == state.planned && state.incarnation.is_none() && !state.stopping {
                    self.begin(&myself, state).await?;
                }
            }
            InboxMsg::Ended => self.start_again(&myself, state, "the broker ended the subscription").await,
            InboxMsg::Look => {
                if let Some(parts) = &state.incarnation {
                    self.context.look(&parts.source);
                    // Gone only when all of this incarnation is; the next one looks for itself.
                    let _ = parts.dispatcher.cast(DispatcherMsg::Look);
                }
                state.upkeep.look(&self.context);
            }
            InboxMsg::Stop(reply) => {
                state.stopping = true;
                let drained = self.drain(state).await;
                // Whoever asked may have given up waiting.
                let _ = reply.send(drained);
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<InboxMsg>,
        event: SupervisionEvent,
        state: &mut InboxState,
    ) -> Result<(), ActorProcessingErr> {
        let Some((who, cause)) = ended(event) else { return Ok(()) };
        // Not one of an incarnation that is over already.
        if state.incarnation.as_ref().is_some_and(|incarnation| incarnation.has(who)) {
            self.start_again(&myself, state, &cause).await;
        }
        Ok(())
    }
}

impl InboxSupervisor {
    async fn begin(
        &self,
        myself: &ActorRef<InboxMsg>,
        state: &mut InboxState,
    ) -> Result<(), ActorProcessingErr> {
        let context = &self.context;
        if let Err(error) = context.know_consumed().await {
            return self.plan(myself, state, &error, false);
        }
        let subscribe = async {
            let deliveries = context.transport.subscribe(context.to_subscribe()).await?;
            let delay = deliveries.acknowledgement_delay();
            Ok::<_, TransportError>((deliveries, delay))
        };
        let (deliveries, delay) = match answer(BROKER_TIMEOUT, subscribe).await {
            Ok(Ok(subscribed)) => subscribed,
            Ok(Err(error)) => return self.plan(myself, state, &error.to_string(), false),
            Err(why) => return self.plan(myself, state, &format!("subscribe: {why}"), false),
        };
        let source = Arc::new(Source::new(deliveries, BROKER_TIMEOUT));
        let setup = DispatcherSetup { context: Arc::clone(context), source: Arc::clone(&source), delay };
        let (dispatcher, _) = Actor::spawn_linked(None, Dispatcher, setup, myself.get_cell()).await?;
        let receiver = Receiver {
            context: Arc::clone(context),
            source: Arc::clone(&source),
            supervisor: myself.clone(),
            dispatcher: dispatcher.clone(),
        };
        let (receiver, _) = Actor::spawn_linked(None, receiver, (), myself.get_cell()).await?;
        context.subscribed.store(true, Ordering::Release);
        context.untold.store(false, Ordering::Release);
        context.outage.over();
        context.look(&source);
        state.incarnation = Some(Incarnation { source, receiver, dispatcher });
        Ok(())
    }

    /// Ends the incarnation and plans the next one.
    async fn start_again(&self, myself: &ActorRef<InboxMsg>, state: &mut InboxState, cause: &str) {
        if state.stopping {
            return;
        }
        let Some(incarnation) = state.incarnation.take() else { return };
        self.context.subscribed.store(false, Ordering::Release);
        self.context.forget();
        incarnation.end();
        incarnation.source.abandon().await;
        // Its last owner, which may be this actor, drops the parts that could not be dropped in
        // time.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(incarnation)));
        // A timer can't fail.
        let _ = self.plan(myself, state, cause, true);
    }

    fn plan(
        &self,
        myself: &ActorRef<InboxMsg>,
        state: &mut InboxState,
        cause: &str,
        was_subscribed: bool,
    ) -> Result<(), ActorProcessingErr> {
        let context = &self.context;
        context.subscribed.store(false, Ordering::Release);
        let now = context.now();
        let wait = state.policy.failed(now, state.random.f64());
        let keeps_failing = state.policy.keeps_failing(now);
        if keeps_failing {
            context.counters.keeps_failing_until(now + FAILING_WINDOW);
        }
        context.counters.reset(cause);
        let consumer = &context.subscription.consumer;
        if was_subscribed {
            tracing::warn!(%consumer, cause, ?wait, keeps_failing, "restarting: dropping the messages in memory; they are delivered again");
        } else {
            context.counters.warn_of_subscribing(cause);
        }
        state.planned += 1;
        let planned = state.planned;
        myself.send_after(wait, move || InboxMsg::Begin(planned));
        Ok(())
    }

    /// Stops in order. The caller holds the deadline.
    async fn drain(&self, state: &mut InboxState) -> bool {
        let Some(incarnation) = state.incarnation.take() else { return true };
        self.context.subscribed.store(false, Ordering::Release);
        let limit = self.context.longest_job();
        let mut clean = self.is_done("the transport's drain", &incarnation.source.drain().await);
        let finished = call_t!(incarnation.receiver, ReceiverMsg::Finish, millis(limit));
        clean &= self.is_done("receiving", &finished);
        let limit = limit.saturating_add(BROKER_TIMEOUT * 3);
        let drained = call_t!(incarnation.dispatcher, DispatcherMsg::Drain, millis(limit));
        let acknowledged = *drained.as_ref().unwrap_or(&true);
        clean &= self.is_done("handling", &drained) && acknowledged;
        if !acknowledged {
            tracing::warn!(consumer = %self.context.subscription.consumer, "{NOT_IN_ORDER}: the broker was not told of all that is finished; it delivers that again");
        }
        incarnation.end();
        // The last findings, and the positions of the consumer.
        self.context.look(&incarnation.source);
        state.upkeep.finish(&self.context).await;
        self.context.forget();
        clean &= self.is_done("closing the subscription", &incarnation.source.close(limit).await);
        clean
    }

    /// Returns true if a step of the end succeeded; logs the failure of one that did not.
    fn is_done<T, E: std::fmt::Display>(&self, step: &str, result: &Result<T, E>) -> bool {
        if let Err(error) = result {
            let consumer = &self.context.subscription.consumer;
            tracing::warn!(%consumer, step, %error, "{NOT_IN_ORDER}; unacknowledged messages are delivered again");
        }
        result.is_ok()
    }
}

impl Incarnation {
    fn cells(&self) -> [ActorCell; 2] {
        [self.receiver.get_cell(), self.dispatcher.get_cell()]
    }

    fn has(&self, who: ActorId) -> bool {
        self.cells().iter().any(|cell| cell.get_id() == who)
    }

    fn end(&self) {
        self.cells().iter().for_each(|cell| cell.kill());
    }
}
