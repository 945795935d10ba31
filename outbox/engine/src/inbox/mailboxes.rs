//! The key mailboxes: carries deliveries between the receiver, the [`Dispatcher`], which decides, and the workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outbox_contract::backend::Unit;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::task::AbortHandle;

use super::acknowledger::AcknowledgerMsg;
use super::context::Context;
use super::dispatcher::{Dispatcher, Item, Job};
use super::worker::{Finished, Worker};

/// Half of them are in their transactions, the others are between two jobs, or have one and wait for a turn.
const WORKERS_PER_TURN: usize = 2;

pub(crate) struct Mailboxes;

/// What they are started with.
pub(crate) struct MailboxesSetup {
    pub(crate) context: Arc<Context>,
    pub(crate) acknowledger: ActorRef<AcknowledgerMsg>,
}

pub(crate) enum MailboxesMsg {
    /// The broker delivered these, in order within each key.
    Deliveries(Vec<Item>),
    /// These units belong to this member no more.
    Revoked(Vec<Unit>),
    /// A worker is done with a job.
    Finished(Finished),
    /// Somebody paused the consumer or a topic of it, or resumed it: look.
    Paused,
    /// Look whether a key's rest is over.
    Wake,
    /// Begin nothing more, and answer when nothing is being handled.
    Halt(RpcReplyPort<()>),
}

pub(crate) struct MailboxesState {
    context: Arc<Context>,
    dispatcher: Dispatcher,
    workers: Vec<(ActorRef<Job>, bool)>,
    recalls: Arc<AtomicU64>,
    random: fastrand::Rng,
    /// When the next key's rest is over, and the one timer that tells.
    wake: Option<(Duration, AbortHandle)>,
    halting: Option<RpcReplyPort<()>>,
}

#[ractor::actor(message = MailboxesMsg, state = MailboxesState, arguments = MailboxesSetup)]
impl Mailboxes {
    async fn pre_start(
        &self,
        myself: ActorRef<MailboxesMsg>,
        setup: MailboxesSetup,
    ) -> Result<MailboxesState, ActorProcessingErr> {
        let MailboxesSetup { context, acknowledger } = setup;
        let concurrency = context.config.concurrency;
        let recalls = Arc::new(AtomicU64::new(0));
        let mut workers = Vec::new();
        for _ in 0..concurrency.saturating_mul(WORKERS_PER_TURN) {
            let worker = Worker {
                context: Arc::clone(&context),
                acknowledger: acknowledger.clone(),
                mailboxes: myself.clone(),
                recalls: Arc::clone(&recalls),
            };
            let (worker, _) = Actor::spawn_linked(None, worker, (), myself.get_cell()).await?;
            workers.push((worker, false));
        }
        Ok(MailboxesState {
            dispatcher: Dispatcher::new(context.limits.clone()),
            random: fastrand::Rng::with_seed(context.seed),
            context,
            workers,
            recalls,
            wake: None,
            halting: None,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<MailboxesMsg>,
        message: MailboxesMsg,
        state: &mut MailboxesState,
    ) -> Result<(), ActorProcessingErr> {
        state.take(message);
        state.pump(&myself)
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<MailboxesMsg>,
        event: SupervisionEvent,
        _state: &mut MailboxesState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(_, error) => Err(error),
            SupervisionEvent::ActorTerminated(..) => Err("a worker ended".into()),
            _ => Ok(()),
        }
    }
}

impl MailboxesState {
    fn take(&mut self, message: MailboxesMsg) {
        match message {
            MailboxesMsg::Deliveries(items) => {
                items.into_iter().for_each(|item| self.dispatcher.push(item));
            }
            MailboxesMsg::Revoked(units) => {
                self.dispatcher.revoke(&units);
                self.recalls.fetch_add(1, Ordering::AcqRel);
            }
            MailboxesMsg::Finished(Finished { worker, number, results }) => {
                if let Some((_, busy)) = self.workers.iter_mut().find(|(other, _)| other.get_id() == worker) {
                    *busy = false;
                }
                let random = &mut self.random;
                self.dispatcher.finished(number, results, self.context.now(), || random.f64());
            }
            MailboxesMsg::Paused => {}
            // One that comes late is of a timer that was replaced.
            MailboxesMsg::Wake => self.forget_wake(),
            MailboxesMsg::Halt(reply) => {
                self.dispatcher.halt();
                // Whoever waits for a turn gives its job back.
                self.recalls.fetch_add(1, Ordering::AcqRel);
                self.halting = Some(reply);
            }
        }
    }

    fn forget_wake(&mut self) {
        if let Some((_, timer)) = self.wake.take() {
            timer.abort();
        }
    }

    fn pump(&mut self, myself: &ActorRef<MailboxesMsg>) -> Result<(), ActorProcessingErr> {
        let now = self.context.now();
        let next = self.dispatcher.wake(now);
        self.dispatcher.pause(self.context.paused());
        for (worker, busy) in self.workers.iter_mut().filter(|(_, busy)| !busy) {
            let Some(job) = self.dispatcher.next() else { break };
            *busy = true;
            worker.cast(job)?;
        }
        if let Some(at) = next
            && self.wake.as_ref().is_none_or(|(planned, _)| at < *planned)
        {
            self.forget_wake();
            let timer = myself.send_after(at.saturating_sub(now), || MailboxesMsg::Wake);
            self.wake = Some((at, timer.abort_handle()));
        }
        if self.dispatcher.is_idle()
            && let Some(reply) = self.halting.take()
        {
            // Whoever asked may have given up waiting.
            let _ = reply.send(());
        }
        Ok(())
    }
}
