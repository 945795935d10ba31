//! The lease keeper: heartbeats, and nothing else, so that no load can starve them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outbox_contract::{BucketSet, Lease, LeaseRequest, Leased, Position};
use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};

use super::context::{Context, in_time};
use super::poller::PollerMsg;

pub(crate) struct Keeper {
    pub(crate) context: Arc<Context>,
    pub(crate) poller: ActorRef<PollerMsg>,
}

pub(crate) enum KeeperMsg {
    /// Renew.
    Beat,
    /// Nothing of what is read stands at or below this position any more.
    LowWater(Position),
    /// These buckets are quiet and settled: give them back.
    Release { buckets: BucketSet, low_water: Position },
    /// Give everything back and leave.
    Leave { low_water: Position, reply: RpcReplyPort<()> },
}

#[derive(Default)]
pub(crate) struct KeeperState {
    leases: Vec<Lease>,
    yielding: BucketSet,
    low_water: Position,
    left: bool,
}

#[ractor::actor(message = KeeperMsg, state = KeeperState)]
impl Keeper {
    async fn pre_start(
        &self,
        _myself: ActorRef<KeeperMsg>,
        (): (),
    ) -> Result<KeeperState, ActorProcessingErr> {
        Ok(KeeperState::default())
    }

    async fn post_start(
        &self,
        myself: ActorRef<KeeperMsg>,
        _state: &mut KeeperState,
    ) -> Result<(), ActorProcessingErr> {
        Ok(myself.cast(KeeperMsg::Beat)?)
    }

    async fn handle(
        &self,
        myself: ActorRef<KeeperMsg>,
        message: KeeperMsg,
        state: &mut KeeperState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            KeeperMsg::Beat if state.left => {}
            KeeperMsg::Beat => self.beat(&myself, state).await?,
            KeeperMsg::LowWater(position) => state.low_water = position,
            KeeperMsg::Release { buckets, low_water } => {
                let leases = state.leases.iter().filter(|lease| buckets.contains(lease.bucket));
                self.release(&leases.copied().collect::<Vec<_>>(), low_water, false).await?;
                state.leases.retain(|lease| !buckets.contains(lease.bucket));
                state.yielding = state.yielding.without(&buckets);
                self.context.counters.buckets.store(state.leases.len(), Ordering::Relaxed);
            }
            KeeperMsg::Leave { low_water, reply } => {
                state.left = true;
                self.context.tenure.end();
                self.release(&state.leases, low_water, true).await?;
                state.leases.clear();
                self.context.counters.buckets.store(0, Ordering::Relaxed);
                // Whoever asked may have given up waiting.
                let _ = reply.send(());
            }
        }
        Ok(())
    }
}

impl Keeper {
    async fn beat(
        &self,
        myself: &ActorRef<KeeperMsg>,
        state: &mut KeeperState,
    ) -> Result<(), ActorProcessingErr> {
        let context = &self.context;
        let config = &context.config;
        let request = LeaseRequest {
            relay: context.relay,
            label: config.label.clone(),
            route: context.route.clone(),
            lasts: config.lease,
            transport_available: !context.is_cut_off(),
            fingerprint: context.fingerprint,
            low_water: state.low_water,
            yielding: state.yielding,
        };
        // From before the request was sent: the answer may have been long under way.
        let asked = context.now();
        let leased = in_time(config.store_timeout, "lease", context.store.lease(&request)).await?;
        // A chunk that starts at the last moment is over before the lease is.
        context.tenure.renew(asked, asked + config.lease - config.publish_timeout);
        // The mark was for what was owned before; the poller sends another when it has seen this answer.
        state.low_water = Position::START;
        state.leases.clone_from(&leased.leases);
        context.counters.buckets.store(leased.leases.len(), Ordering::Relaxed);
        context.counters.disagreeing.store(!leased.fingerprints_agree, Ordering::Relaxed);
        let owned: BucketSet = leased.leases.iter().map(|lease| lease.bucket).collect();
        state.yielding = state.yielding.intersection(&owned);
        let surplus = surplus(&leased, &state.yielding);
        state.yielding = state.yielding.union(&surplus);
        self.poller.cast(PollerMsg::Leased { leased, surplus })?;
        myself.send_after(config.heartbeat, || KeeperMsg::Beat);
        Ok(())
    }

    async fn release(
        &self,
        leases: &[Lease],
        low_water: Position,
        leaving: bool,
    ) -> Result<(), ActorProcessingErr> {
        let context = &self.context;
        let call = context.store.give_back(context.relay, &context.route, leases, low_water, leaving);
        Ok(in_time(context.config.store_timeout, "release", call).await?)
    }
}

/// What is owned beyond the fair share and is not being given up yet: the highest buckets, so that every relay decides alike.
fn surplus(leased: &Leased, yielding: &BucketSet) -> BucketSet {
    let kept: Vec<_> =
        leased.leases.iter().map(|lease| lease.bucket).filter(|bucket| !yielding.contains(*bucket)).collect();
    kept.into_iter().skip(leased.fair_share).collect()
}

#[cfg(test)]
mod tests {
    use outbox_contract::{Bucket, Epoch};

    use super::*;

    #[test]
    fn what_is_beyond_the_share_is_given_up_once() {
        let lease = |bucket| Lease { bucket: Bucket(bucket), epoch: Epoch(1), low_water: Position::START };
        let leased = Leased { leases: (0..4).map(lease).collect(), fair_share: 2, ..Leased::default() };
        let first = surplus(&leased, &BucketSet::EMPTY);
        assert_eq!(first, [Bucket(2), Bucket(3)].into_iter().collect());
        assert!(surplus(&leased, &first).is_empty());
    }
}
