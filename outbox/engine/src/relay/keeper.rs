//! The lease keeper: heartbeats, and nothing else, so that no load can starve them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outbox_contract::{BucketSet, Lease, LeaseRequest, Leased, LowWater};
use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};

use super::context::{Broken, Context, in_time};
use super::poller::PollerMsg;

pub(crate) struct Keeper {
    pub(crate) context: Arc<Context>,
    pub(crate) poller: ActorRef<PollerMsg>,
}

pub(crate) enum KeeperMsg {
    /// Renew.
    Beat,
    /// How far reading has come.
    LowWater(LowWater),
    /// These buckets are quiet and settled: give them back.
    Release { buckets: BucketSet, low_water: LowWater },
    /// Keep what there is until it is finished, and take nothing more.
    Finish,
    /// Give everything back and leave.
    Leave { low_water: LowWater, reply: RpcReplyPort<()> },
}

#[derive(Default)]
pub(crate) struct KeeperState {
    leases: Vec<Lease>,
    yielding: BucketSet,
    /// What the poller said last. It stays true of the leases that it covers, however old it is.
    low_water: LowWater,
    /// Which life of the database the last answer was of.
    life: Option<i64>,
    finishing: bool,
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
            KeeperMsg::LowWater(low_water) => state.low_water = low_water,
            KeeperMsg::Release { buckets, low_water } => {
                let leases: Vec<Lease> = state.leases.clone();
                let (given, kept) = leases.into_iter().partition(|lease| buckets.contains(lease.bucket));
                state.leases = kept;
                // From here on nothing of them is published, whoever did not hear of it yet.
                self.context.tenure.own(&state.leases);
                self.release(&given, &low_water, false).await?;
                state.yielding = state.yielding.without(&buckets);
                self.context.counters.buckets.store(state.leases.len(), Ordering::Relaxed);
            }
            KeeperMsg::Finish => state.finishing = true,
            KeeperMsg::Leave { low_water, reply } => {
                state.left = true;
                self.context.tenure.end();
                self.release(&state.leases, &low_water, true).await?;
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
        let owned: BucketSet = state.leases.iter().map(|lease| lease.bucket).collect();
        // Who is finishing takes nothing: the poller reads no more, and what waits there would have to wait for this relay's end.
        let refused = if state.finishing { BucketSet::ALL.without(&owned) } else { BucketSet::EMPTY };
        let request = LeaseRequest {
            relay: context.relay,
            label: config.label.clone(),
            route: context.route.clone(),
            lasts: config.lease,
            transport_available: !context.is_cut_off(),
            fingerprint: context.fingerprint,
            low_water: state.low_water.clone(),
            yielding: state.yielding.union(&refused),
        };
        // From before the request was sent: the answer may have been long under way.
        let asked = context.now();
        let leased = in_time(config.store_timeout, "lease", context.store.lease(&request)).await?;
        if state.life.is_some_and(|life| life != leased.life) {
            let words =
                "the database is not the one that it was: it was started again, or another took its place";
            return Err(Broken(words.to_owned()).into());
        }
        state.life = Some(leased.life);
        // What was lost first: once the tenure is renewed, nothing else keeps what is in memory of it from being published.
        context.tenure.own(&leased.leases);
        // A chunk that starts at the last moment is over before the lease is.
        context.tenure.renew(asked, asked + config.lease - config.publish_timeout);
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
        low_water: &LowWater,
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
    use outbox_contract::{Bucket, Epoch, Position};

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
