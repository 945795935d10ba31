//! Supervisor of one route: starts its actors, and restarts them when one fails.
//!
//! The in-memory state of a route hangs together: positions, leases, messages in flight. So when
//! one actor fails or the store is unreachable, the whole route restarts: the supervisor waits for
//! what is in flight, the settler removes what was delivered, and after a growing delay a new
//! incarnation (a fresh set of actors) reads the store again. Two parts are exempt. Publishers run
//! the transport's code, so the route replaces them one by one. The settler outlives all, because
//! delivered messages stay delivered.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::LowWater;
use ractor::{
    Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent, call_t,
};

use super::context::{Context, RouteFailure, in_time};
use super::lease_keeper::{LeaseKeeper, LeaseKeeperMsg};
use super::poller::Poller;
use super::route::{CoreMsg, RouteCore, RouteSetup};
use super::settler::{Settler, SettlerMsg};
use super::transitions::{Transitions, TransitionsMsg};
use crate::restart::{FAILING_WINDOW, RestartPolicy, ended, millis};

pub(crate) struct RouteSupervisor {
    pub(crate) context: Arc<Context>,
}

pub(crate) enum RouteMsg {
    /// Start a new incarnation, if this is the planned one.
    Begin(u64),
    /// Restart the route: the store may have lost what was read before.
    Restart(RouteFailure),
    /// Stop in order: read nothing more, finish what is in flight, remove it, give the leases back.
    /// Replies whether all of it was done.
    Stop(RpcReplyPort<bool>),
}

pub(crate) struct RouteState {
    settler: Option<ActorRef<SettlerMsg>>,
    incarnation: Option<Incarnation>,
    planned: u64,
    policy: RestartPolicy,
    random: fastrand::Rng,
    stopping: bool,
}

/// Actors of a route between two restarts.
struct Incarnation {
    core: ActorRef<CoreMsg>,
    keeper: ActorRef<LeaseKeeperMsg>,
    poller: ActorCell,
    cells: Vec<ActorCell>,
}

#[ractor::actor(message = RouteMsg, state = RouteState)]
impl RouteSupervisor {
    async fn pre_start(&self, _myself: ActorRef<RouteMsg>, (): ()) -> Result<RouteState, ActorProcessingErr> {
        let config = &self.context.config;
        Ok(RouteState {
            settler: None,
            incarnation: None,
            planned: 0,
            policy: RestartPolicy::new(config.outage_first_delay, config.outage_max_delay),
            random: fastrand::Rng::with_seed(self.context.seed),
            stopping: false,
        })
    }

    async fn post_start(
        &self,
        myself: ActorRef<RouteMsg>,
        _state: &mut RouteState,
    ) -> Result<(), ActorProcessingErr> {
        Ok(myself.cast(RouteMsg::Begin(0))?)
    }

    async fn handle(
        &self,
        myself: ActorRef<RouteMsg>,
        message: RouteMsg,
        state: &mut RouteState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RouteMsg::Begin(planned) => {
                if planned == state.planned && state.incarnation.is_none() && !state.stopping {
                    self.begin(&myself, state).await?;
                }
            }
            RouteMsg::Restart(cause) => self.restart(&myself, state, &cause.0).await,
            RouteMsg::Stop(reply) => {
                state.stopping = true;
                let drained = self.drain(state).await;
                // The caller may have given up waiting.
                let _ = reply.send(drained);
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<RouteMsg>,
        event: SupervisionEvent,
        state: &mut RouteState,
    ) -> Result<(), ActorProcessingErr> {
        let Some((who, cause)) = ended(event) else { return Ok(()) };
        if state.settler.as_ref().is_some_and(|settler| settler.get_id() == who) {
            state.settler = None;
        } else if !state.incarnation.as_ref().is_some_and(|incarnation| incarnation.has(who)) {
            // An actor of an earlier incarnation.
            return Ok(());
        }
        self.restart(&myself, state, &cause).await;
        Ok(())
    }
}

impl RouteSupervisor {
    async fn begin(
        &self,
        myself: &ActorRef<RouteMsg>,
        state: &mut RouteState,
    ) -> Result<(), ActorProcessingErr> {
        let context = &self.context;
        let settler = match &state.settler {
            Some(settler) => settler.clone(),
            None => {
                let settler = Settler { context: Arc::clone(context), supervisor: myself.clone() };
                let (settler, _) = Actor::spawn_linked(None, settler, (), myself.get_cell()).await?;
                state.settler.insert(settler).clone()
            }
        };
        let transitions = Transitions { context: Arc::clone(context) };
        let (transitions, _) = Actor::spawn_linked(None, transitions, (), myself.get_cell()).await?;
        let setup = RouteSetup {
            context: Arc::clone(context),
            settler: settler.clone(),
            transitions: transitions.clone(),
        };
        let (core, _) = Actor::spawn_linked(None, RouteCore, setup, myself.get_cell()).await?;
        transitions.cast(TransitionsMsg::Serve(core.clone()))?;
        settler.cast(SettlerMsg::Serve(core.clone()))?;
        let poller = Poller { context: Arc::clone(context), route: core.clone() };
        let (poller, _) = Actor::spawn_linked(None, poller, (), myself.get_cell()).await?;
        let keeper = LeaseKeeper { context: Arc::clone(context), route: core.clone() };
        let (keeper, _) = Actor::spawn_linked(None, keeper, (), myself.get_cell()).await?;
        core.cast(CoreMsg::Attach(poller.clone(), keeper.clone()))?;
        let poller = poller.get_cell();
        let cells = vec![transitions.get_cell(), core.get_cell(), poller.clone(), keeper.get_cell()];
        state.incarnation = Some(Incarnation { core, keeper, poller, cells });
        Ok(())
    }

    /// Ends the incarnation and schedules the next one.
    async fn restart(&self, myself: &ActorRef<RouteMsg>, state: &mut RouteState, cause: &str) {
        if state.stopping {
            return;
        }
        let context = &self.context;
        let Some(incarnation) = state.incarnation.take() else { return };
        let now = context.now();
        let wait = state.policy.failed(now, state.random.f64());
        let keeps_failing = state.policy.keeps_failing(now);
        if keeps_failing {
            context.counters.keeps_failing_until(now + FAILING_WINDOW);
        }
        context.counters.reset(cause);
        tracing::warn!(
            route = %context.route,
            cause,
            ?wait,
            keeps_failing,
            "restarting the route: dropping its messages in memory and reading the store again"
        );
        incarnation.poller.kill();
        incarnation.keeper.kill();
        let limit = context.config.publish_timeout;
        // Delivered messages are removed; everything else in memory is dropped.
        let _ = incarnation.retire(limit).await;
        incarnation.end();
        if let Some(settler) = &state.settler {
            // Delivered messages that remain in the store would be sent again. The wait is limited,
            // because an unreachable store must not keep the route from retrying.
            let _ = call_t!(settler, SettlerMsg::Barrier, millis(context.config.outage_max_delay));
        }
        state.planned += 1;
        let planned = state.planned;
        myself.send_after(wait, move || RouteMsg::Begin(planned));
    }

    /// Stops in order. The caller enforces the deadline.
    async fn drain(&self, state: &mut RouteState) -> bool {
        let config = &self.context.config;
        let limit = config.publish_timeout + config.store_timeout;
        let Some(incarnation) = state.incarnation.take() else {
            // A restart was scheduled. Nothing is in flight, but delivered messages may remain to
            // be removed, and the leases are still held.
            let settled = self.settled(state, limit).await;
            return self.leave().await && settled;
        };
        // Nothing would read the buckets that a heartbeat acquires from now on.
        let _ = incarnation.keeper.cast(LeaseKeeperMsg::Finish);
        // The core ignores rows fetched from now on. They are not lost, because the low-water mark
        // stays below them.
        let low_water = incarnation.retire(limit).await;
        let mut clean = low_water.is_some();
        clean &= self.settled(state, limit).await;
        let low_water = low_water.unwrap_or_default();
        let leave = |reply| LeaseKeeperMsg::Leave { low_water, reply };
        let left = call_t!(incarnation.keeper, leave, millis(config.store_timeout)).is_ok();
        incarnation.end();
        // The keeper may have failed, or may be waiting for the answer to a heartbeat, while the
        // store is reachable.
        (left || self.leave().await) && clean
    }

    /// Waits until delivered messages are removed. Returns false after `limit`.
    async fn settled(&self, state: &RouteState, limit: Duration) -> bool {
        match &state.settler {
            Some(settler) => call_t!(settler, SettlerMsg::Barrier, millis(limit)).is_ok(),
            None => true,
        }
    }

    /// Gives back whatever this relay owns, without its keeper: the database knows the leases.
    async fn leave(&self) -> bool {
        let context = &self.context;
        context.tenure.end();
        let nothing_new = LowWater::default();
        let call = context.store.give_back(context.relay, &context.route, &[], &nothing_new, true);
        in_time(context.config.store_timeout, "leave", call).await.is_ok()
    }
}

impl Incarnation {
    fn has(&self, who: ActorId) -> bool {
        self.cells.iter().any(|cell| cell.get_id() == who)
    }

    /// Waits until nothing is unconfirmed. Returns the low-water mark to leave behind, or `None`
    /// after `limit`.
    async fn retire(&self, limit: Duration) -> Option<LowWater> {
        call_t!(self.core, CoreMsg::Drain, millis(limit)).ok()
    }

    fn end(self) {
        for cell in &self.cells {
            cell.kill();
        }
    }
}
