//! Maintenance: periodic jobs of a relay, and their supervisor.
//!
//! Each job is an actor of its own, so that a hanging call delays no other job.

mod backlog;
mod retention;
mod topics;
mod unserved;
mod unserved_routes;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use retention::Retention;

use super::context::Context;
use crate::restart::{RestartPolicy, ended};
use crate::transport_check;

pub(crate) use unserved_routes::{UnservedRoutes, advice};

/// Supervisor of the jobs: starts them, and restarts one that failed.
pub(crate) struct Maintenance {
    /// Routes of the relay.
    pub(crate) routes: Vec<Arc<Context>>,
}

/// Kind of job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Job {
    /// Promotes scheduled messages and removes expired rows.
    Retention,
    /// Measures the backlog.
    Backlog,
    /// Measures the age of the oldest message of each topic.
    Topics,
    /// Finds routes without a running relay.
    Unserved,
    /// Checks the transports again.
    Settings,
}

pub(crate) enum MaintenanceMsg {
    /// Start this job.
    Start(Job),
}

pub(crate) struct MaintenanceState {
    running: Vec<(ActorId, Job)>,
    policy: RestartPolicy,
    random: fastrand::Rng,
}

#[ractor::actor(message = MaintenanceMsg, state = MaintenanceState)]
impl Maintenance {
    async fn pre_start(
        &self,
        _myself: ActorRef<MaintenanceMsg>,
        (): (),
    ) -> Result<MaintenanceState, ActorProcessingErr> {
        let (first, max, seed) =
            self.routes.first().map_or((Duration::from_millis(200), Duration::from_secs(5), 0), |context| {
                (context.config.outage_first_delay, context.config.outage_max_delay, context.seed)
            });
        Ok(MaintenanceState {
            running: Vec::new(),
            policy: RestartPolicy::new(first, max),
            random: fastrand::Rng::with_seed(!seed),
        })
    }

    async fn post_start(
        &self,
        myself: ActorRef<MaintenanceMsg>,
        _state: &mut MaintenanceState,
    ) -> Result<(), ActorProcessingErr> {
        myself.cast(MaintenanceMsg::Start(Job::Backlog))?;
        myself.cast(MaintenanceMsg::Start(Job::Topics))?;
        myself.cast(MaintenanceMsg::Start(Job::Unserved))?;
        myself.cast(MaintenanceMsg::Start(Job::Settings))?;
        Ok(myself.cast(MaintenanceMsg::Start(Job::Retention))?)
    }

    async fn handle(
        &self,
        myself: ActorRef<MaintenanceMsg>,
        MaintenanceMsg::Start(job): MaintenanceMsg,
        state: &mut MaintenanceState,
    ) -> Result<(), ActorProcessingErr> {
        let rounds = Rounds { job, routes: self.routes.clone() };
        let (running, _) = Actor::spawn_linked(None, rounds, (), myself.get_cell()).await?;
        state.running.push((running.get_id(), job));
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<MaintenanceMsg>,
        event: SupervisionEvent,
        state: &mut MaintenanceState,
    ) -> Result<(), ActorProcessingErr> {
        let Some((who, cause)) = ended(event) else { return Ok(()) };
        let Some(at) = state.running.iter().position(|(id, _)| *id == who) else { return Ok(()) };
        let (_, job) = state.running.swap_remove(at);
        let Some(context) = self.routes.first() else { return Ok(()) };
        let wait = state.policy.failed(context.now(), state.random.f64());
        tracing::warn!(?job, cause, ?wait, "a maintenance job failed; restarting it");
        context.counters.restarted();
        myself.send_after(wait, move || MaintenanceMsg::Start(job));
        Ok(())
    }
}

/// Job at work: rounds, with waits between them.
struct Rounds {
    job: Job,
    /// Routes of the relay; the configuration of the first applies.
    routes: Vec<Arc<Context>>,
}

/// Message: do a round.
struct Round;

#[ractor::actor(message = Round, state = Retention)]
impl Rounds {
    async fn pre_start(&self, _myself: ActorRef<Round>, (): ()) -> Result<Retention, ActorProcessingErr> {
        Ok(Retention::default())
    }

    async fn post_start(
        &self,
        myself: ActorRef<Round>,
        _state: &mut Retention,
    ) -> Result<(), ActorProcessingErr> {
        match self.job {
            Job::Retention | Job::Backlog => myself.cast(Round)?,
            // They need what others do first, or what the start has just done.
            Job::Topics => drop(myself.send_after(topics::EVERY, || Round)),
            Job::Unserved => drop(myself.send_after(unserved::EVERY, || Round)),
            Job::Settings => drop(myself.send_after(transport_check::EVERY, || Round)),
        }
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<Round>,
        Round: Round,
        retention: &mut Retention,
    ) -> Result<(), ActorProcessingErr> {
        let Some(first) = self.routes.first() else { return Ok(()) };
        let routes = self.routes.iter();
        let wait = match self.job {
            Job::Retention => retention.rounds(first).await,
            Job::Backlog => {
                join_all(routes.map(|route| backlog::round(route))).await;
                first.config.observe_every
            }
            Job::Topics => {
                join_all(routes.map(|route| topics::measure(route))).await;
                topics::EVERY
            }
            Job::Unserved => {
                unserved::round(&self.routes).await;
                unserved::EVERY
            }
            Job::Settings => {
                let check = |route: Arc<Context>| async move { route.check_transport().await };
                join_all(routes.cloned().map(check)).await;
                transport_check::EVERY
            }
        };
        myself.send_after(wait, || Round);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Route;
    use outbox_contract::backend::{RelayId, SystemClock};
    use outbox_store_memory::MemoryStore;
    use outbox_testkit::NullTransport;
    use ractor::ActorCell;

    use super::*;
    use crate::relay::config::RelayConfig;

    fn context() -> Arc<Context> {
        Arc::new(Context::new(
            Arc::new(MemoryStore::new()),
            Arc::new(NullTransport::new()),
            Route::default(),
            RelayId::new(),
            "/test".into(),
            Arc::new(SystemClock::new()),
            1,
            RelayConfig::default(),
        ))
    }

    #[tokio::test(start_paused = true)]
    async fn a_killed_job_is_restarted() {
        let context = context();
        let maintenance = Maintenance { routes: vec![Arc::clone(&context)] };
        let (maintenance, _) = Actor::spawn(None, maintenance, ()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let first = maintenance.get_children();
        assert_eq!(first.len(), 5);
        first.iter().for_each(ActorCell::kill);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let second = maintenance.get_children();
        assert_eq!(second.len(), 5);
        assert!(second.iter().all(|cell| first.iter().all(|dead| dead.get_id() != cell.get_id())));
        assert!(context.counters.backlog().is_some());
        maintenance.kill();
    }
}
