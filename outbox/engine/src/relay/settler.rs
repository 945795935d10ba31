//! Settler: removes confirmed messages from the store, those of many batches in one statement.
//!
//! A few messages wait up to 10 ms for others. At a moderate rate this saves most of the
//! statements, each of which is a commit. What waits is repeated if the process dies, as everything
//! in flight is.
//!
//! It outlives the other actors of its route. Delivered messages must be removed whatever happens
//! to those actors, and only a successful removal ends that duty. A removal needs no lease and is
//! idempotent.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::RowId;
use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};

use super::context::{Context, in_time};
use super::core::Event;
use super::route::CoreMsg;
use super::supervisor::RouteMsg;

pub(crate) struct Settler {
    pub(crate) context: Arc<Context>,
    pub(crate) supervisor: ActorRef<RouteMsg>,
}

pub(crate) enum SettlerMsg {
    /// Report removals to this route from now on: a new incarnation.
    Serve(ActorRef<CoreMsg>),
    /// Remove delivered rows of the hot table. They count as in flight until then.
    Remove { number: u64, rows: Vec<RowId>, messages: usize, bytes: usize },
    /// Remove everything queued, unless another flush was planned since.
    Flush(u64),
    /// Reply when everything delivered before this has been removed.
    Barrier(RpcReplyPort<()>),
}

#[derive(Default)]
pub(crate) struct SettlerState {
    removals: Vec<Removal>,
    barriers: Vec<RpcReplyPort<()>>,
    route: Option<ActorRef<CoreMsg>>,
    incarnation: u64,
    planned: Planned,
    /// Number of the last planned flush.
    flush: u64,
    failures: u32,
}

/// Next flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Planned {
    #[default]
    No,
    /// When the first removal has waited for others.
    Later,
    /// Behind what is in the mailbox, or after a failure.
    Next,
}

/// Rows that were delivered together.
struct Removal {
    incarnation: u64,
    number: u64,
    rows: Vec<RowId>,
    messages: usize,
    bytes: usize,
}

/// Number of rows from which a statement takes no further removals.
const MAX_ROWS: usize = 4_000;
/// Time that a removal waits for others.
const LINGER: Duration = Duration::from_millis(10);
/// Number of rows that wait for no others.
const ENOUGH_ROWS: usize = 32;

#[ractor::actor(message = SettlerMsg, state = SettlerState)]
impl Settler {
    async fn pre_start(
        &self,
        _myself: ActorRef<SettlerMsg>,
        (): (),
    ) -> Result<SettlerState, ActorProcessingErr> {
        Ok(SettlerState::default())
    }

    async fn handle(
        &self,
        myself: ActorRef<SettlerMsg>,
        message: SettlerMsg,
        state: &mut SettlerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SettlerMsg::Serve(route) => {
                state.incarnation += 1;
                state.route = Some(route);
                state.report_owed();
            }
            SettlerMsg::Remove { number, rows, messages, bytes } => {
                let incarnation = state.incarnation;
                state.removals.push(Removal { incarnation, number, rows, messages, bytes });
            }
            SettlerMsg::Barrier(reply) => state.barriers.push(reply),
            SettlerMsg::Flush(number) if number == state.flush => {
                state.planned = Planned::No;
                self.flush(&myself, state).await;
            }
            SettlerMsg::Flush(_) => {}
        }
        if state.removals.is_empty() {
            for reply in state.barriers.drain(..) {
                // The caller may have given up waiting.
                let _ = reply.send(());
            }
            return Ok(());
        }
        let urgency = self.urgency(state);
        if state.planned < urgency {
            state.planned = urgency;
            state.flush += 1;
            let flush = SettlerMsg::Flush(state.flush);
            if urgency == Planned::Later {
                myself.send_after(LINGER, || flush);
            } else {
                // Queued behind what is in the mailbox already, so that many batches become one
                // statement.
                myself.cast(flush)?;
            }
        }
        Ok(())
    }
}

impl Settler {
    /// Returns when what is queued is to be removed. What waits counts as in flight, so a relay
    /// that may have little in flight waits for less.
    fn urgency(&self, state: &SettlerState) -> Planned {
        let enough = ENOUGH_ROWS.min(self.context.config.max_in_flight / 8);
        let rows = state.removals.iter().map(|removal| removal.rows.len()).sum::<usize>();
        if state.barriers.is_empty() && rows < enough { Planned::Later } else { Planned::Next }
    }

    async fn flush(&self, myself: &ActorRef<SettlerMsg>, state: &mut SettlerState) {
        let context = &self.context;
        let mut rows: Vec<RowId> = Vec::new();
        let mut count = 0;
        while rows.len() < MAX_ROWS
            && let Some(removal) = state.removals.get(count)
        {
            rows.extend(&removal.rows);
            count += 1;
        }
        match in_time(context.config.store_timeout, "settle", context.store.settle(&context.route, &rows))
            .await
        {
            Ok(()) => {
                state.failures = 0;
                context.counters.settled(rows.len());
                state.removed(count);
            }
            Err(error) => {
                tracing::warn!(
                    route = %context.route,
                    %error,
                    rows = rows.len(),
                    "could not remove delivered messages from the store; will keep retrying"
                );
                state.failures = state.failures.saturating_add(1);
                state.planned = Planned::Next;
                state.flush += 1;
                let flush = SettlerMsg::Flush(state.flush);
                let wait = context.config.outage_first_delay.saturating_mul(1 << state.failures.min(8));
                let wait: Duration = wait.min(context.config.outage_max_delay);
                myself.send_after(wait, || flush);
                // The connection may lead to another server now, so known positions may be wrong.
                let _ = self.supervisor.cast(RouteMsg::Restart(error));
            }
        }
    }
}

impl SettlerState {
    /// Reports that the first `count` removals are done.
    fn removed(&mut self, count: usize) {
        let mut was_owed = false;
        for removal in self.removals.drain(..count) {
            if removal.incarnation != self.incarnation {
                was_owed = true;
            } else if let Some(route) = &self.route {
                // A route that is being replaced reads everything again.
                let _ = route.cast(CoreMsg::Event(Event::Removed { number: removal.number }));
            }
        }
        if was_owed {
            self.report_owed();
        }
    }

    /// Reports the messages that earlier incarnations delivered and that are not removed yet: they
    /// still count as in flight.
    fn report_owed(&self) {
        let old = || self.removals.iter().filter(|removal| removal.incarnation != self.incarnation);
        let event = Event::Owed {
            messages: old().map(|removal| removal.messages).sum(),
            bytes: old().map(|removal| removal.bytes).sum(),
        };
        if let Some(route) = &self.route {
            let _ = route.cast(CoreMsg::Event(event));
        }
    }
}
