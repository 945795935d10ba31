//! What a relay does beside moving messages, and that it goes on: starts the janitor, the meter and the lookout, and starts them again when one fails.

use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};

use super::context::Context;
use super::janitor::Janitor;
use super::lookout::Lookout;
use super::meter::Meter;
use super::restart::{RestartPolicy, ended};

pub(crate) struct Upkeep {
    /// The routes of the relay.
    pub(crate) routes: Vec<Arc<Context>>,
}

/// Which part of the upkeep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Task {
    /// The janitor.
    Maintain,
    /// The meter.
    Measure,
    /// The lookout.
    Look,
}

pub(crate) enum UpkeepMsg {
    /// Start this one.
    Start(Task),
}

pub(crate) struct UpkeepState {
    running: Vec<(ActorId, Task)>,
    policy: RestartPolicy,
    random: fastrand::Rng,
}

/// Failures count together for this long.
const FAILING_WINDOW: Duration = Duration::from_secs(60);

#[ractor::actor(message = UpkeepMsg, state = UpkeepState)]
impl Upkeep {
    async fn pre_start(
        &self,
        _myself: ActorRef<UpkeepMsg>,
        (): (),
    ) -> Result<UpkeepState, ActorProcessingErr> {
        let (first, most, seed) =
            self.routes.first().map_or((Duration::from_millis(200), Duration::from_secs(5), 0), |context| {
                (context.config.outage_first_delay, context.config.outage_max_delay, context.seed)
            });
        Ok(UpkeepState {
            running: Vec::new(),
            policy: RestartPolicy::new(first, most, FAILING_WINDOW),
            random: fastrand::Rng::with_seed(!seed),
        })
    }

    async fn post_start(
        &self,
        myself: ActorRef<UpkeepMsg>,
        _state: &mut UpkeepState,
    ) -> Result<(), ActorProcessingErr> {
        myself.cast(UpkeepMsg::Start(Task::Measure))?;
        myself.cast(UpkeepMsg::Start(Task::Look))?;
        Ok(myself.cast(UpkeepMsg::Start(Task::Maintain))?)
    }

    async fn handle(
        &self,
        myself: ActorRef<UpkeepMsg>,
        UpkeepMsg::Start(task): UpkeepMsg,
        state: &mut UpkeepState,
    ) -> Result<(), ActorProcessingErr> {
        let cell = self.start(task, myself.get_cell()).await?;
        state.running.push((cell.get_id(), task));
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<UpkeepMsg>,
        event: SupervisionEvent,
        state: &mut UpkeepState,
    ) -> Result<(), ActorProcessingErr> {
        let Some((who, cause)) = ended(event) else { return Ok(()) };
        let Some(at) = state.running.iter().position(|(id, _)| *id == who) else { return Ok(()) };
        let (_, task) = state.running.swap_remove(at);
        let Some(context) = self.routes.first() else { return Ok(()) };
        let wait = state.policy.failed(context.now(), state.random.f64());
        tracing::warn!(?task, cause, ?wait, "a part of the relay failed; starting it again");
        context.counters.restarted();
        myself.send_after(wait, move || UpkeepMsg::Start(task));
        Ok(())
    }
}

impl Upkeep {
    async fn start(&self, task: Task, myself: ActorCell) -> Result<ActorCell, ActorProcessingErr> {
        let routes = self.routes.clone();
        Ok(match task {
            Task::Maintain => Actor::spawn_linked(None, Janitor { routes }, (), myself).await?.0.get_cell(),
            Task::Measure => Actor::spawn_linked(None, Meter { routes }, (), myself).await?.0.get_cell(),
            Task::Look => Actor::spawn_linked(None, Lookout { routes }, (), myself).await?.0.get_cell(),
        })
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::{RelayId, Route, SystemClock};
    use outbox_store_memory::MemoryStore;
    use outbox_testkit::NullTransport;

    use super::*;
    use crate::relay::config::RelayConfig;
    use crate::relay::policies::Policies;

    fn context() -> Arc<Context> {
        Arc::new(Context::new(
            Arc::new(MemoryStore::new()),
            Arc::new(NullTransport::new()),
            Route::default(),
            RelayId::new(),
            Arc::new(SystemClock::new()),
            1,
            RelayConfig::default(),
            Arc::new(Policies::default()),
            0,
        ))
    }

    /// Nobody else would notice.
    #[tokio::test(start_paused = true)]
    async fn what_fails_is_started_again() {
        let context = context();
        let upkeep = Upkeep { routes: vec![Arc::clone(&context)] };
        let (upkeep, _) = Actor::spawn(None, upkeep, ()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let first = upkeep.get_children();
        assert_eq!(first.len(), 3);
        first.iter().for_each(ActorCell::kill);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let second = upkeep.get_children();
        assert_eq!(second.len(), 3);
        assert!(second.iter().all(|cell| first.iter().all(|dead| dead.get_id() != cell.get_id())));
        assert!(context.counters.backlog().is_some());
        upkeep.kill();
    }
}
