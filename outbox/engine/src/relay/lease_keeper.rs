//! Lease keeper: sends heartbeats and does nothing else, so that no load can starve them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outbox_contract::backend::{BucketSet, Lease, LeaseRequest, Leased, LowWater};
use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};

use super::context::{Context, RouteFailure, in_time};
use super::route::CoreMsg;

pub(crate) struct LeaseKeeper {
    pub(crate) context: Arc<Context>,
    pub(crate) route: ActorRef<CoreMsg>,
}

pub(crate) enum LeaseKeeperMsg {
    /// Renew the leases.
    Beat,
    /// Record the position below which everything is settled.
    LowWater(LowWater),
    /// Give these buckets back: they are idle and settled.
    Release { buckets: BucketSet, low_water: LowWater },
    /// Keep the present leases until the relay has finished, and acquire no more.
    Finish,
    /// Give everything back and sign off.
    Leave { low_water: LowWater, reply: RpcReplyPort<()> },
}

#[derive(Default)]
pub(crate) struct LeaseKeeperState {
    leases: Vec<Lease>,
    yielding: BucketSet,
    /// Latest low-water mark of the core. It stays true of the leases that it covers, however old
    /// it is.
    low_water: LowWater,
    /// Life of the database that the last answer belonged to.
    life: Option<i64>,
    finishing: bool,
    left: bool,
}

#[ractor::actor(message = LeaseKeeperMsg, state = LeaseKeeperState)]
impl LeaseKeeper {
    async fn pre_start(
        &self,
        _myself: ActorRef<LeaseKeeperMsg>,
        (): (),
    ) -> Result<LeaseKeeperState, ActorProcessingErr> {
        Ok(LeaseKeeperState::default())
    }

    async fn post_start(
        &self,
        myself: ActorRef<LeaseKeeperMsg>,
        _state: &mut LeaseKeeperState,
    ) -> Result<(), ActorProcessingErr> {
        Ok(myself.cast(LeaseKeeperMsg::Beat)?)
    }

    async fn handle(
        &self,
        myself: ActorRef<LeaseKeeperMsg>,
        message: LeaseKeeperMsg,
        state: &mut LeaseKeeperState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            LeaseKeeperMsg::Beat if state.left => {}
            LeaseKeeperMsg::Beat => self.beat(&myself, state).await?,
            LeaseKeeperMsg::LowWater(low_water) => state.low_water = low_water,
            LeaseKeeperMsg::Release { buckets, low_water } => {
                let leases: Vec<Lease> = state.leases.clone();
                let (given, kept) = leases.into_iter().partition(|lease| buckets.contains(lease.bucket));
                state.leases = kept;
                // From here on nothing of them is published, even by actors that have not been
                // notified yet.
                self.context.tenure.own(&state.leases);
                self.release(&given, &low_water, false).await?;
                state.yielding = state.yielding.without(&buckets);
                self.context.counters.buckets.store(state.leases.len(), Ordering::Relaxed);
            }
            LeaseKeeperMsg::Finish => state.finishing = true,
            LeaseKeeperMsg::Leave { low_water, reply } => {
                state.left = true;
                self.context.tenure.end();
                self.release(&state.leases, &low_water, true).await?;
                state.leases.clear();
                self.context.counters.buckets.store(0, Ordering::Relaxed);
                // The caller may have given up waiting.
                let _ = reply.send(());
            }
        }
        Ok(())
    }
}

impl LeaseKeeper {
    async fn beat(
        &self,
        myself: &ActorRef<LeaseKeeperMsg>,
        state: &mut LeaseKeeperState,
    ) -> Result<(), ActorProcessingErr> {
        let context = &self.context;
        let config = &context.config;
        let owned: BucketSet = state.leases.iter().map(|lease| lease.bucket).collect();
        // A relay that is finishing acquires nothing: its core reads no more, so the messages of a
        // new bucket would wait until this relay has ended.
        let refused = if state.finishing { BucketSet::ALL.without(&owned) } else { BucketSet::EMPTY };
        let mut request = LeaseRequest::new(context.relay, context.route.clone(), config.lease);
        request.label = config.label.clone();
        request.transport_available = !context.is_of_no_use();
        request.fingerprint = context.fingerprint;
        request.low_water = state.low_water.clone();
        request.yielding = state.yielding.union(&refused);
        // Taken before the request is sent: the answer may have been under way for long.
        let asked = context.now();
        let leased = match in_time(config.store_timeout, "lease", context.store.lease(&request)).await {
            Ok(leased) => leased,
            // The lease may have been renewed or not. The next answer lists all leases and their
            // epochs; until then, only what the last answer granted is published.
            Err(error) if context.tenure.left(context.now()) > config.outage_first_delay => {
                tracing::warn!(
                    route = %context.route,
                    %error,
                    "lease heartbeat failed; retrying until the leases expire"
                );
                myself.send_after(config.outage_first_delay, || LeaseKeeperMsg::Beat);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        // A batch that starts at the last moment times out before the lease expires.
        let until = asked + config.lease - config.publish_timeout;
        let surplus = self.take(state, &leased, asked, until)?;
        let next = leased.recheck.map_or(config.heartbeat, |recheck| recheck.min(config.heartbeat));
        self.route.cast(CoreMsg::Leased { asked, leased, surplus, until })?;
        // Counted from the time of sending, so that slow answers do not delay heartbeats further
        // and further.
        let taken = context.now().saturating_sub(asked);
        myself.send_after(next.saturating_sub(taken), || LeaseKeeperMsg::Beat);
        Ok(())
    }

    /// Takes the answer to a heartbeat that began at `asked`. Returns the buckets to give up.
    fn take(
        &self,
        state: &mut LeaseKeeperState,
        leased: &Leased,
        asked: Duration,
        until: Duration,
    ) -> Result<BucketSet, RouteFailure> {
        let context = &self.context;
        if state.life.is_some_and(|life| life != leased.life) {
            let cause = "the database connection was reopened or leads to another server (failover); \
                         what was read before may be lost";
            return Err(RouteFailure(cause.to_owned()));
        }
        state.life = Some(leased.life);
        context.store_says(leased.now);
        // Revoke lost buckets before renewing the tenure. After the renewal, nothing else would
        // keep their messages in memory from being published.
        context.tenure.own(&leased.leases);
        context.tenure.renew(asked, until);
        state.leases.clone_from(&leased.leases);
        context.counters.buckets.store(leased.leases.len(), Ordering::Relaxed);
        context.counters.disagreeing.store(!leased.fingerprints_agree, Ordering::Relaxed);
        let owned: BucketSet = leased.leases.iter().map(|lease| lease.bucket).collect();
        state.yielding = state.yielding.intersection(&owned);
        let surplus = surplus(leased, &state.yielding);
        state.yielding = state.yielding.union(&surplus);
        Ok(surplus)
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

/// Returns the leases beyond the fair share that are not being given up yet. It picks the highest
/// buckets, so that every relay decides alike.
fn surplus(leased: &Leased, yielding: &BucketSet) -> BucketSet {
    let kept: Vec<_> =
        leased.leases.iter().map(|lease| lease.bucket).filter(|bucket| !yielding.contains(*bucket)).collect();
    kept.into_iter().skip(leased.fair_share).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outbox_contract::backend::{BUCKETS, Bucket, Epoch, Position, RelayId, SystemClock};
    use outbox_contract::{Route, Store};
    use outbox_store_memory::MemoryStore;
    use outbox_testkit::NullTransport;
    use ractor::Actor;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;
    use crate::relay::config::RelayConfig;

    /// Route that forwards each lease answer to the test.
    struct Listener(UnboundedSender<Leased>);

    #[ractor::actor(message = CoreMsg, state = ())]
    impl Listener {
        async fn pre_start(&self, _myself: ActorRef<CoreMsg>, (): ()) -> Result<(), ActorProcessingErr> {
            Ok(())
        }

        async fn handle(
            &self,
            _myself: ActorRef<CoreMsg>,
            message: CoreMsg,
            _state: &mut (),
        ) -> Result<(), ActorProcessingErr> {
            if let CoreMsg::Leased { leased, .. } = message {
                // The receiver is gone when the test is over.
                let _ = self.0.send(leased);
            }
            Ok(())
        }
    }

    fn request(relay: RelayId) -> LeaseRequest {
        let mut request = LeaseRequest::new(relay, Route::default(), Duration::from_secs(600));
        request.label = "test".into();
        request
    }

    async fn keeper(store: &MemoryStore) -> (ActorRef<LeaseKeeperMsg>, UnboundedReceiver<Leased>) {
        let context = Context::new(
            Arc::new(store.clone()),
            Arc::new(NullTransport::new()),
            Route::default(),
            RelayId::new(),
            "/test".into(),
            Arc::new(SystemClock::new()),
            1,
            RelayConfig::default(),
        );
        let (told, hears) = unbounded_channel();
        let (route, _) = Actor::spawn(None, Listener(told), ()).await.unwrap();
        let (keeper, _) =
            Actor::spawn(None, LeaseKeeper { context: Arc::new(context), route }, ()).await.unwrap();
        (keeper, hears)
    }

    /// The busy route sends a mark that it computed before the last heartbeat, which acquired more
    /// buckets.
    #[tokio::test(start_paused = true)]
    async fn a_mark_that_comes_late_is_not_said_of_what_was_acquired_meanwhile() {
        let (store, other, next) = (MemoryStore::new(), RelayId::new(), RelayId::new());
        let half: BucketSet = (0..128).map(Bucket).collect();
        let mut gives_up = request(other);
        gives_up.yielding = half;
        let of_other = store.lease(&gives_up).await.unwrap().leases;
        let (keeper, mut hears) = keeper(&store).await;
        let first = hears.recv().await.unwrap();
        assert_eq!(first.leases.len(), 128);

        let nothing = LowWater::default();
        store.give_back(other, &Route::default(), &of_other, &nothing, true).await.unwrap();
        assert_eq!(hears.recv().await.unwrap().leases.len(), BUCKETS);
        let covered = first.leases.iter().map(|lease| (lease.bucket, lease.epoch)).collect();
        let late = LowWater::new(Position(10_000), covered, first.life);
        keeper.cast(LeaseKeeperMsg::LowWater(late)).unwrap();
        let third = hears.recv().await.unwrap();
        let expected = |bucket| if half.contains(bucket) { Position(10_000) } else { Position::START };
        assert!(third.leases.iter().all(|lease| lease.low_water == expected(lease.bucket)), "{third:?}");

        // Killed at that moment.
        keeper.kill();
        tokio::time::sleep(Duration::from_secs(16)).await;
        let taken = store.lease(&request(next)).await.unwrap().leases;
        assert_eq!(taken.len(), BUCKETS);
        assert!(taken.iter().all(|lease| lease.low_water == expected(lease.bucket)), "{taken:?}");
    }

    /// A finishing relay keeps its leases: transitions of failing keys and batches in flight need
    /// them.
    #[tokio::test(start_paused = true)]
    async fn a_relay_that_finishes_keeps_what_it_has_and_takes_nothing_more() {
        let (store, other) = (MemoryStore::new(), RelayId::new());
        let half: BucketSet = (0..128).map(Bucket).collect();
        let mut gives_up = request(other);
        gives_up.yielding = half;
        let of_other = store.lease(&gives_up).await.unwrap().leases;
        let (keeper, mut hears) = keeper(&store).await;
        let first = hears.recv().await.unwrap();
        keeper.cast(LeaseKeeperMsg::Finish).unwrap();
        let nothing = LowWater::default();
        store.give_back(other, &Route::default(), &of_other, &nothing, true).await.unwrap();
        for _ in 0..10 {
            assert_eq!(hears.recv().await.unwrap().leases, first.leases);
        }
    }

    #[test]
    fn what_is_beyond_the_share_is_given_up_once() {
        let lease = |bucket| Lease { bucket: Bucket(bucket), epoch: Epoch(1), low_water: Position::START };
        let mut leased = Leased::default();
        leased.leases = (0..4).map(lease).collect();
        leased.fair_share = 2;
        let first = surplus(&leased, &BucketSet::EMPTY);
        assert_eq!(first, [Bucket(2), Bucket(3)].into_iter().collect());
        assert!(surplus(&leased, &first).is_empty());
    }
}
