//! The lease keepers of the model: heartbeats, and what is given back.

use outbox_contract::backend::{BucketSet, Leased, LowWater, Outcome};

use super::super::Event;
use super::cast::{Judged, TOPICS, the_topic};
use super::relay::{PUBLISH_TIMEOUT, Source};
use super::store::LEASE;
use super::world::{HEARTBEAT, MS, World};

impl World {
    /// The lease keeper: heartbeats, and what is given back.
    pub(super) fn keep(&mut self, at: usize) -> Judged {
        if let Some((buckets, low_water)) = self.relays[at].gives.pop_front() {
            if !self.is_quiet(at, &buckets) {
                return Err(format!("given back with a batch under way: {buckets:?}"));
            }
            let relay_id = self.relays[at].id;
            let keeper = &mut self.relays[at].keeper;
            let (given, kept) = keeper.leases.drain(..).partition(|lease| buckets.contains(lease.bucket));
            keeper.leases = kept;
            keeper.yielding = keeper.yielding.without(&buckets);
            let given: Vec<_> = given;
            self.store.give_back(relay_id, &given, &low_water, false);
        }
        if let Some(low_water) = self.relays[at].drained.take() {
            return self.leave(at, &low_water);
        }
        if self.now < self.relays[at].keeper.beat_at {
            return Ok(());
        }
        self.beat(at);
        Ok(())
    }

    /// Whether nothing of these buckets is unconfirmed.
    fn is_quiet(&self, at: usize, buckets: &BucketSet) -> bool {
        let in_batches =
            self.relays[at].batches.iter().flat_map(|out| out.batch.messages.iter().zip(&out.outcomes));
        let mut unconfirmed = in_batches.filter(|(_, outcome)| **outcome != Some(Outcome::Delivered));
        !unconfirmed.any(|(stored, _)| buckets.contains(stored.bucket))
    }

    fn leave(&mut self, at: usize, low_water: &LowWater) -> Judged {
        // The settler is waited for.
        while !self.relays[at].removals.is_empty() {
            let before = self.relays[at].removals.len();
            self.settle(at)?;
            if self.relays[at].removals.len() == before {
                return Ok(());
            }
        }
        let relay = self.relays.remove(at);
        self.store.give_back(relay.id, &relay.keeper.leases, low_water, true);
        if self.relays.is_empty() {
            self.start();
        }
        Ok(())
    }

    fn beat(&mut self, at: usize) {
        let fails = self.store_fails();
        let relay = &mut self.relays[at];
        let yielding = if relay.stopping {
            let owned: BucketSet = relay.keeper.leases.iter().map(|lease| lease.bucket).collect();
            relay.keeper.yielding.union(&BucketSet::ALL.without(&owned))
        } else {
            relay.keeper.yielding
        };
        let asked = self.now;
        let (leases, fair_share) =
            self.store.lease(relay.id, &relay.keeper.low_water.clone(), &yielding, self.now);
        let life = self.store.life;
        let changed = relay.keeper.life.is_some_and(|known| known != life);
        if changed || (fails && relay.keeper.until < self.now) {
            return self.begin_anew(at);
        }
        let keeper = &mut self.relays[at].keeper;
        keeper.life = Some(life);
        keeper.beat_at = asked + if fails { MS * 500 } else { HEARTBEAT };
        if fails {
            return;
        }
        keeper.until = asked + LEASE - PUBLISH_TIMEOUT;
        keeper.leases.clone_from(&leases);
        let owned: BucketSet = leases.iter().map(|lease| lease.bucket).collect();
        keeper.yielding = keeper.yielding.intersection(&owned);
        let kept = owned.without(&keeper.yielding);
        let surplus: BucketSet = kept.iter().skip(fair_share).collect();
        keeper.yielding = keeper.yielding.union(&surplus);
        let until = keeper.until;
        let mut leased = Leased { leases, fair_share, life, ..Leased::default() };
        leased.paused.route = self.route_paused;
        let paused = (0..TOPICS).filter(|topic| self.paused[*topic]);
        leased.paused.topics = paused.map(|topic| the_topic(topic).clone()).collect();
        self.relays[at].answer(Source::Keeper, Event::Leased { leased, surplus, until });
    }
}
