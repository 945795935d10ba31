//! The settler: removes from the store what the broker confirmed, many chunks in one statement.
//!
//! It outlives the other actors of its route: what was delivered is to be removed whatever happens to them, and nothing but a removal that
//! succeeded ends its work. Removing needs no lease, and doing it twice does nothing.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Position;
use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};

use super::context::{Context, in_time};
use super::key::Delivered;
use super::poller::PollerMsg;
use super::supervisor::RouteMsg;

pub(crate) struct Settler {
    pub(crate) context: Arc<Context>,
    pub(crate) supervisor: ActorRef<RouteMsg>,
}

pub(crate) enum SettlerMsg {
    /// Who is told of removals from now on.
    Serve(ActorRef<PollerMsg>),
    /// Rows of the hot table that were delivered.
    Delivered(Vec<Delivered>),
    /// Remove what is there.
    Flush,
    /// Answer when all that was delivered before this has been removed.
    Barrier(RpcReplyPort<()>),
    /// The same, for the poller.
    Ticket(u64),
}

#[derive(Default)]
pub(crate) struct SettlerState {
    delivered: Vec<Delivered>,
    barriers: Vec<RpcReplyPort<()>>,
    tickets: Vec<u64>,
    poller: Option<ActorRef<PollerMsg>>,
    flushing: bool,
    failures: u32,
}

/// The most rows of one statement.
const MOST_ROWS: usize = 4_000;

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
            SettlerMsg::Serve(poller) => state.poller = Some(poller),
            SettlerMsg::Delivered(delivered) => state.delivered.extend(delivered),
            SettlerMsg::Barrier(reply) => state.barriers.push(reply),
            SettlerMsg::Ticket(ticket) => state.tickets.push(ticket),
            SettlerMsg::Flush => {
                state.flushing = false;
                self.flush(&myself, state).await;
            }
        }
        if state.delivered.is_empty() {
            state.answer();
        } else if !state.flushing {
            // Behind what is in the mailbox already: many chunks become one statement.
            state.flushing = true;
            myself.cast(SettlerMsg::Flush)?;
        }
        Ok(())
    }
}

impl Settler {
    async fn flush(&self, myself: &ActorRef<SettlerMsg>, state: &mut SettlerState) {
        let context = &self.context;
        let count = state.delivered.len().min(MOST_ROWS);
        let rows: Vec<_> = state.delivered[..count].iter().map(|delivered| delivered.row).collect();
        match in_time(context.config.store_timeout, "settle", context.store.settle(&context.route, &rows))
            .await
        {
            Ok(()) => {
                state.failures = 0;
                state.delivered.drain(..count);
                context.counters.settled(count);
                let positions: Vec<Position> = rows.iter().map(|row| row.position).collect();
                if let Some(poller) = &state.poller {
                    // A poller that is being replaced reads everything again.
                    let _ = poller.cast(PollerMsg::Left(positions));
                }
            }
            Err(error) => {
                tracing::warn!(route = %context.route, %error, rows = count, "could not remove delivered messages; trying again");
                state.failures = state.failures.saturating_add(1);
                state.flushing = true;
                let wait = context.config.outage_first_delay.saturating_mul(1 << state.failures.min(8));
                let wait: Duration = wait.min(context.config.outage_most_delay);
                myself.send_after(wait, || SettlerMsg::Flush);
                // The connection may be to another server now: what is known of positions is worth nothing.
                let _ = self.supervisor.cast(RouteMsg::Reset(error));
            }
        }
    }
}

impl SettlerState {
    fn answer(&mut self) {
        for reply in self.barriers.drain(..) {
            // Whoever asked may have given up waiting.
            let _ = reply.send(());
        }
        for ticket in self.tickets.drain(..) {
            if let Some(poller) = &self.poller {
                let _ = poller.cast(PollerMsg::Settled(ticket));
            }
        }
    }
}
