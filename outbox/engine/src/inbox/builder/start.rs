//! Check and start of an inbox.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use outbox_contract::backend::{Ordering, Subscription};
use outbox_contract::{Consumer, Route, Store, inbox_route};
use ractor::{Actor, ActorRef};

use super::super::context::{Context, PausedInStore};
use super::super::core::Limits;
use super::super::drain::Drain;
use super::super::handle::InboxHandle;
use super::super::observer::InboxObserver;
use super::super::outage::Outage;
use super::super::problems::Problems;
use super::super::process::Process;
use super::super::processor::Processor;
use super::super::stats::Counters;
use super::super::supervisor::{InboxMsg, InboxSupervisor};
use super::super::transaction_pool::PoolLimits;
use super::*;
use crate::inbox::consumed::Consumed;
use crate::inbox::credit::Credit;
use crate::inbox::lags::Lags;
use crate::inbox::losses::Losses;
use crate::inbox::pool_share::share;
use crate::relay::{Relay, RelayBuilder};
use crate::start::{StartError, answered_in_time, reached_in_time, warn_of_abort};
use crate::telemetry::describe_metrics;
use crate::transport_check::TransportCheck;

impl<S: Transactional, A: Send + Sync + 'static, C: Codec> InboxBuilder<S, A, C> {
    /// Checks everything, then starts the inbox on the current Tokio runtime.
    ///
    /// A broker that can't be reached now does not keep the inbox from starting: it waits for it.
    ///
    /// # Errors
    ///
    /// [`StartError::Config`] with everything that is wrong; [`StartError::Store`] when the store
    /// can't be reached, does not answer within [`store_timeout`](Self::store_timeout), or was not
    /// migrated; [`StartError::Transport`] when the transport says that it will never work as it
    /// is.
    pub async fn start(mut self) -> Result<InboxHandle, StartError> {
        let (consumer, outbox) = self.checked()?;
        let route = inbox_route(&consumer);
        self.meet(&route).await?;
        if self.store.frontier().ordering() == Ordering::Single {
            // More would wait for one another in the database, which does not keep their order, and
            // gives up on them.
            self.config.concurrency = Some(1);
        }
        self.share_pool(share(self.store.max_transactions(), 0, 1));
        let seed = *self.wiring.seed.get_or_insert_with(|| fastrand::u64(..));
        let (slowest, turns) = (self.handlers.longest(), self.turns(seed));
        let (limits, subscription) = (self.limits(&turns), self.subscription(&consumer)?);
        let counters = Arc::new(Counters::new(consumer.clone()));
        let (config, wiring) = (self.config, self.wiring);
        let store: Arc<dyn Store> = Arc::<S>::clone(&self.store);
        let processor = Processor::new(
            self.store,
            outbox,
            consumer.clone(),
            Arc::new(self.handlers),
            Arc::clone(&counters),
            wiring.steps.clone(),
            turns,
        );
        let process: Arc<dyn Process> = Arc::new(processor.with_max_undecodable(config.max_undecodable));
        let drain = match wiring.drain(&config, &store, &route, (&process, &counters), slowest) {
            Some(drain) => Some(drain.start().await?),
            None => None,
        };
        let of_drain = drain.as_ref().map(|drain| drain.observer().clone());
        let paused_in_store = of_drain.as_ref().map(|drain| -> PausedInStore { Box::new(drain.pauses()) });
        let context = Arc::new(Context {
            process,
            transport: wiring.transport,
            mapper: wiring.mapper,
            subscription,
            limits,
            slowest,
            clock: wiring.clock,
            seed,
            counters,
            steps: wiring.steps,
            credit: Arc::new(Credit::default()),
            pausing: Mutex::default(),
            paused_in_store,
            subscribed: AtomicBool::new(false),
            untold: AtomicBool::new(false),
            outage: Outage::default(),
            problems: Problems::new(consumer.clone()),
            consumed: Consumed::default(),
            lags: Lags::new(consumer.clone()),
            losses: Losses::new(consumer),
            checked: TransportCheck::default(),
            config,
        });
        let supervisor = supervise(&context).await?;
        let observer = InboxObserver { context, store, route, supervisor, drain: of_drain };
        Ok(InboxHandle { observer, drain })
    }

    /// Lists everything that is wrong.
    pub(crate) fn problems(&self) -> Vec<String> {
        match self.checked() {
            Err(StartError::Config(problems)) => problems,
            _ => Vec::new(),
        }
    }

    /// Checks the store and the transport.
    async fn meet(&self, route: &Route) -> Result<(), StartError> {
        if !self.config.mode.handles() {
            // Else the relay of what is stored does both.
            warn_of_abort();
            describe_metrics();
        }
        answered_in_time(self.config.store_timeout, "check", self.store.check())
            .await
            .map_err(StartError::Store)?;
        if !self.config.mode.receives() {
            return Ok(());
        }
        match reached_in_time(self.config.store_timeout, self.wiring.transport.check()).await {
            Err(error) if error.is_retryable() => {
                let consumer = &self.wiring.consumer;
                tracing::warn!(%consumer, %error, "broker unreachable; starting anyway, will keep retrying");
                Ok(())
            }
            checked => checked.map_err(|error| StartError::Transport(route.clone(), error)),
        }
    }

    fn subscription(&self, consumer: &Consumer) -> Result<Subscription, StartError> {
        let subscription = Subscription::new(consumer.clone(), self.handlers.topics.clone())
            .map_err(|error| StartError::Config(vec![error.to_string()]))?;
        Ok(subscription.with_prefetch(self.config.prefetch).with_prefetch_bytes(self.config.prefetch_bytes))
    }

    fn turns(&self, seed: u64) -> PoolLimits {
        PoolLimits {
            turns: self.config.transactions(),
            call: self.config.store_timeout,
            slowest: self.handlers.longest(),
            delays: (self.config.first_delay, self.config.max_delay),
            seed,
        }
    }

    fn limits(&self, turns: &PoolLimits) -> Limits {
        let config = &self.config;
        let is_direct = config.mode == Mode::Direct;
        Limits {
            // Half of them are in their transactions, the others are between two jobs, or have one
            // and wait for a turn.
            workers: if is_direct { config.transactions().saturating_mul(2) } else { 1 },
            stores_all: !is_direct,
            batch: config.batch,
            tries: config.tries,
            retry: config.retry.clone(),
            first_delay: config.first_delay,
            max_delay: config.max_delay,
            suspects: turns.suspects(),
            by_handler: self.handlers.limits(),
            told_at_once: config.prefetch / 4,
            outage_delays: (config.outage_first_delay, config.outage_max_delay),
        }
    }

    fn checked(&self) -> Result<(Consumer, Outbox<Arc<S>, C>), StartError> {
        let mut problems = self.config.problems();
        problems.extend(self.handlers.problems(self.config.mode.handles(), self.store.max_idle()));
        let consumer = Consumer::new(&self.wiring.consumer);
        if let Err(error) = &consumer {
            problems.push(error.to_string());
        }
        let mut outbox = Ok(self.outbox.clone());
        for (topic, route) in &self.wiring.routes {
            outbox = outbox.and_then(|outbox| outbox.with_route(topic, route));
        }
        if let Err(error) = &outbox {
            problems.push(error.to_string());
        }
        if self.config.mode.handles() && problems.is_empty() {
            problems.extend(self.config.problems_of_drain(self.handlers.longest()));
        }
        match (consumer, outbox) {
            (Ok(consumer), Ok(outbox)) if problems.is_empty() => Ok((consumer, outbox)),
            _ => Err(StartError::Config(problems)),
        }
    }
}

impl Wiring {
    /// Returns the relay that handles what is stored, if this process handles.
    fn drain(
        &self,
        config: &InboxConfig,
        store: &Arc<dyn Store>,
        route: &Route,
        (process, counters): (&Arc<dyn Process>, &Arc<Counters>),
        slowest: Duration,
    ) -> Option<RelayBuilder> {
        if !config.mode.handles() {
            return None;
        }
        let relay_config = config.drain(slowest);
        let giving_way = Arc::new(config.giving_way(relay_config.lease));
        let drain = Drain::new(Arc::clone(process), Arc::clone(counters), config)
            .with_mapper(self.mapper.clone())
            .with_giving_way(Arc::clone(&giving_way));
        let relay = Relay::of_route(route, Arc::clone(store), Arc::new(drain)).config(relay_config);
        Some(relay.of_inbox(Arc::clone(&self.clock), self.seed, self.id, giving_way))
    }
}

/// Starts the receiving side, if this process receives.
async fn supervise(context: &Arc<Context>) -> Result<Option<ActorRef<InboxMsg>>, StartError> {
    if !context.config.mode.receives() {
        return Ok(None);
    }
    let supervisor = InboxSupervisor { context: Arc::clone(context) };
    let spawned = Actor::spawn(None, supervisor, ()).await;
    Ok(Some(spawned.map_err(|error| StartError::Runtime(error.to_string()))?.0))
}
