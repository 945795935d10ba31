//! The lease keepers of the model: heartbeats, and what is given back.

use outbox_contract::backend::{BucketSet, Lease, Leased, LowWater, Outcome};

use super::super::Event;
use super::calls::{Call, Ghost};
use super::cast::{TOPICS, the_topic};
use super::judge::{Judged, broken};
use super::leases::LEASE;
use super::relay::{PUBLISH_TIMEOUT, Source};
use super::world::{HEARTBEAT, MS, STORE_TIMEOUT, World};

impl World {
    /// The lease keeper: heartbeats, and what is given back.
    pub(super) fn keep(&mut self, at: usize) -> Judged {
        if let Some(until) = self.relays[at].keeper.hangs_until {
            return if until <= self.now_of(at) { self.begin_anew(at) } else { Ok(()) };
        }
        if let Some((buckets, low_water)) = self.relays[at].gives.pop_front() {
            self.give_back(at, &buckets, &low_water)?;
        }
        if self.relays[at].drained.is_some() {
            return self.leave(at);
        }
        if self.now_of(at) < self.relays[at].keeper.beat_at {
            return Ok(());
        }
        self.beat(at)
    }

    fn give_back(&mut self, at: usize, buckets: &BucketSet, low_water: &LowWater) -> Judged {
        if !self.is_quiet(at, buckets) {
            return Err(broken("given back", None, format!("{buckets:?} with a batch under way")));
        }
        if self.relays[at].removes(buckets, &self.store.ledger) {
            return Err(broken("given back", None, format!("{buckets:?} with rows that are not removed")));
        }
        let (relay, now) = (self.relays[at].id, self.database_now());
        let keeper = &mut self.relays[at].keeper;
        let (given, kept): (Vec<Lease>, _) =
            keeper.leases.drain(..).partition(|lease| buckets.contains(lease.bucket));
        keeper.leases = kept;
        keeper.yielding = keeper.yielding.without(buckets);
        match self.call() {
            Call::Fine => self.store.give_back(relay, &given, low_water, (false, now)),
            Call::FailsBefore => return self.begin_anew(at),
            Call::FailsAfter => {
                self.store.give_back(relay, &given, low_water, (false, now));
                return self.begin_anew(at);
            }
            Call::Hangs => {
                let low_water = low_water.clone();
                let until = self.now_of(at) + STORE_TIMEOUT;
                self.relays[at].keeper.hangs_until = Some(until);
                let ghost = Ghost::GiveBack { relay, leases: given, low_water, leaving: false };
                self.haunt(ghost);
            }
        }
        Ok(())
    }

    /// Returns true if nothing of these buckets is unconfirmed.
    fn is_quiet(&self, at: usize, buckets: &BucketSet) -> bool {
        let in_batches =
            self.relays[at].batches.iter().flat_map(|out| out.batch.messages.iter().zip(&out.outcomes));
        let mut unconfirmed = in_batches.filter(|(_, outcome)| **outcome != Some(Outcome::Delivered));
        !unconfirmed.any(|(stored, _)| buckets.contains(stored.bucket))
    }

    fn leave(&mut self, at: usize) -> Judged {
        // The settler is waited for.
        if !self.relays[at].removals.is_empty() {
            return self.settle(at);
        }
        let mut relay = self.relays.remove(at);
        let low_water = relay.drained.take().unwrap_or_default();
        self.say(|| format!("relay {} leaves, with the mark {}", relay.name, low_water.position));
        let now = self.database_now();
        self.store.give_back(relay.id, &relay.keeper.leases, &low_water, (true, now));
        if self.relays.is_empty() {
            self.start();
        }
        self.judge_marks()
    }

    fn beat(&mut self, at: usize) -> Judged {
        let call = self.call();
        let (asked, now) = (self.now_of(at), self.database_now());
        let relay = &mut self.relays[at];
        let (id, name) = (relay.id, relay.name);
        let yielding = if relay.stopping {
            let owned: BucketSet = relay.keeper.leases.iter().map(|lease| lease.bucket).collect();
            relay.keeper.yielding.union(&BucketSet::ALL.without(&owned))
        } else {
            relay.keeper.yielding
        };
        let low_water = relay.keeper.low_water.clone();
        if call == Call::Hangs && self.weather.ghosts {
            let wait = MS * self.random.u32(0..6_000);
            let ghost = Ghost::Lease { relay: id, low_water: low_water.clone(), yielding };
            self.ghosts.push((self.now + wait, ghost));
        }
        // Each in its turn, by the clock: no draw changes.
        let gives_way = self.weather.gives_way && (self.now.as_secs() / 40 + name as u64).is_multiple_of(3);
        if gives_way && self.store.giving_way.insert(id) {
            self.count("relay that gives way");
            self.say(|| format!("relay {name} gives way"));
        } else if !gives_way {
            self.store.giving_way.remove(&id);
        }
        let answer = (call == Call::Fine || call == Call::FailsAfter)
            .then(|| self.store.lease(id, &low_water, &yielding, now));
        self.judge_marks()?;
        let Some((leases, fair_share)) = answer.filter(|_| call == Call::Fine) else {
            if self.relays[at].keeper.until < asked {
                return self.begin_anew(at);
            }
            self.relays[at].keeper.beat_at = asked + MS * 500;
            return Ok(());
        };
        let life = self.store.life;
        if self.relays[at].keeper.life.is_some_and(|known| known != life) {
            return self.begin_anew(at);
        }
        let keeper = &mut self.relays[at].keeper;
        (keeper.life, keeper.beat_at) = (Some(life), asked + HEARTBEAT);
        keeper.until = asked + LEASE - PUBLISH_TIMEOUT;
        keeper.leases.clone_from(&leases);
        let owned: BucketSet = leases.iter().map(|lease| lease.bucket).collect();
        keeper.yielding = keeper.yielding.intersection(&owned);
        let kept = owned.without(&keeper.yielding);
        let surplus: BucketSet = kept.iter().skip(fair_share).collect();
        keeper.yielding = keeper.yielding.union(&surplus);
        let until = keeper.until;
        self.say(|| format!("store: relay {name} owns {}", super::describe::leases(&leases)));
        let mut leased = Leased::default();
        leased.leases = leases;
        leased.fair_share = fair_share;
        leased.life = life;
        leased.paused.route = self.route_paused;
        let paused = (0..TOPICS).filter(|topic| self.paused[*topic]);
        leased.paused.topics = paused.map(|topic| the_topic(topic).clone()).collect();
        self.relays[at].answer(Source::Keeper, Event::Leased { leased, surplus, asked, until });
        Ok(())
    }
}
