//! How an inbox is checked and started.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use outbox_contract::backend::{Ordering, Subscription};
use outbox_contract::{Consumer, Store, Topic, inbox_route};
use ractor::Actor;

use super::super::absence::Absence;
use super::super::context::{Context, PausedInStore};
use super::super::dispatcher::Limits;
use super::super::drain::Drain;
use super::super::handle::InboxHandle;
use super::super::problems::Problems;
use super::super::process::Process;
use super::super::processor::Processor;
use super::super::stats::Counters;
use super::super::supervisor::InboxSupervisor;
use super::super::transaction_pool::PoolLimits;
use super::super::undecodables::Undecodables;
use super::*;
use crate::inbox::credit::Credit;
use crate::relay::builder::warn_of_abort;
use crate::relay::context::checked_in_time;
use crate::relay::{Relay, StartError};
use crate::telemetry::describe_metrics;

impl<S: Transactional, C: Codec> InboxBuilder<S, C> {
    /// Checks everything, then starts the inbox on the current Tokio runtime.
    ///
    /// A broker that can't be reached now does not keep the inbox from starting: it waits for it.
    ///
    /// # Errors
    ///
    /// [`StartError::Config`] with everything that is wrong; [`StartError::Store`] when the store can't be reached, does not answer within
    /// [`store_timeout`](Self::store_timeout), or was not migrated;
    /// [`StartError::Transport`] when the transport says that it will never work as it is.
    pub async fn start(self) -> Result<InboxHandle, StartError> {
        let (consumer, outbox) = self.checked()?;
        if !self.config.mode.handles() {
            // Else the relay of what is stored does both.
            warn_of_abort();
            describe_metrics();
        }
        checked_in_time(self.config.store_timeout, &*self.store).await.map_err(StartError::Store)?;
        let mode = self.config.mode;
        let route = inbox_route(&consumer);
        if mode.receives()
            && let Err(error) = self.transport.check().await
        {
            if !error.is_retryable() {
                return Err(StartError::Transport(route, error));
            }
            tracing::warn!(%consumer, %error, "the broker is not to be had yet; starting all the same");
        }
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        let mut config = self.config;
        if self.store.frontier().ordering() == Ordering::Single {
            // More would wait for one another in the database, which does not keep their order, and gives up on them.
            config.concurrency = 1;
        }
        let counters = Arc::new(Counters::new(consumer.clone()));
        let (limits, slowest) = (self.handlers.limits(), self.handlers.longest());
        let topics = self.handlers.topics.clone();
        let turns = PoolLimits {
            turns: config.concurrency,
            call: config.store_timeout,
            slowest,
            delays: (config.first_delay, config.max_delay),
            seed,
        };
        let mut processor = Processor::new(
            Arc::clone(&self.store),
            outbox,
            consumer.clone(),
            Arc::new(self.handlers),
            Arc::clone(&counters),
            self.steps.clone(),
            turns,
        );
        processor.undecodables = Undecodables::new(config.max_undecodable);
        let process: Arc<dyn Process> = Arc::new(processor);
        let store: Arc<dyn Store> = Arc::<S>::clone(&self.store);
        let drain = if mode.handles() {
            let (process, counters) = (Arc::clone(&process), Arc::clone(&counters));
            let transport =
                Arc::new(Drain::new(process, counters, config.store_timeout, mode == Mode::Direct));
            let mut relay = Relay::of_route(&route, Arc::clone(&store), transport)
                .config(config.drain(slowest))
                .of_inbox(Arc::clone(&self.clock), seed, self.id);
            for (topic, policy) in self.policies {
                relay = relay.topic_retry(topic, policy);
            }
            Some(relay.start().await?)
        } else {
            None
        };
        let paused_in_store = drain.as_ref().map(|drain| -> PausedInStore { Box::new(drain.pauses()) });
        let problems = Problems::new(consumer.clone());
        let context = Arc::new(Context {
            process,
            transport: self.transport,
            subscription: Subscription::new(consumer, topics)
                .with_prefetch(config.prefetch)
                .with_prefetch_bytes(config.prefetch_bytes),
            limits: Limits {
                batch: config.batch,
                tries: config.tries,
                first_delay: config.first_delay,
                max_delay: config.max_delay,
                suspects: turns.suspects(),
                by_handler: limits,
            },
            slowest,
            clock: self.clock,
            seed,
            counters,
            steps: self.steps,
            credit: Arc::new(Credit::default()),
            pausing: Mutex::default(),
            paused_in_store,
            subscribed: AtomicBool::new(false),
            untold: AtomicBool::new(false),
            absence: Absence::default(),
            problems,
            config,
        });
        let supervisor = if mode.receives() {
            let supervisor = InboxSupervisor { context: Arc::clone(&context) };
            let spawned = Actor::spawn(None, supervisor, ()).await;
            Some(spawned.map_err(|error| StartError::Runtime(error.to_string()))?.0)
        } else {
            None
        };
        Ok(InboxHandle { context, store, route, supervisor, drain })
    }

    fn checked(&self) -> Result<(Consumer, Outbox<Arc<S>, C>), StartError> {
        let mut problems = self.config.problems();
        problems.extend(self.handlers.problems(self.config.mode.handles(), self.store.max_idle()));
        let consumer = Consumer::new(&self.consumer);
        if let Err(error) = &consumer {
            problems.push(error.to_string());
        }
        let mut outbox = Ok(self.outbox.clone());
        for (topic, route) in &self.routes {
            outbox = outbox.and_then(|outbox| outbox.with_route(topic, route));
        }
        if let Err(error) = &outbox {
            problems.push(error.to_string());
        }
        for (topic, policy) in &self.policies {
            problems.extend(Topic::new(topic).err().map(|error| error.to_string()));
            problems.extend(policy.problems().into_iter().map(|problem| format!("topic {topic}: {problem}")));
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
