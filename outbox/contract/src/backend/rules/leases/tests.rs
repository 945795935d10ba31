use proptest::prelude::*;

use super::*;
use crate::backend::BucketSet;
use crate::name::Route;

/// A lease of the tests.
const LASTS: Duration = Duration::from_millis(10);
/// The relays of a generated history.
const RELAYS: usize = 4;

#[derive(Clone, Debug)]
enum Event {
    Beat { relay: usize, available: bool, yields: bool, low_water: i64 },
    GivesBack { relay: usize, most: usize, leaving: bool },
    Passes(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        5 => (0..RELAYS, prop::bool::weighted(0.8), prop::bool::weighted(0.3), 0..100_i64)
            .prop_map(|(relay, available, yields, low_water)| Event::Beat { relay, available, yields, low_water }),
        2 => (0..RELAYS, 0..256_usize, prop::bool::weighted(0.2))
            .prop_map(|(relay, most, leaving)| Event::GivesBack { relay, most, leaving }),
        3 => (0..15_u64).prop_map(Event::Passes),
    ];
    prop::collection::vec(event, 0..60)
}

/// The leases that a relay believes to own, each until when.
type Believes = BTreeMap<Bucket, (Lease, Timestamp)>;

struct World {
    relays: BTreeMap<RelayId, RelayRow>,
    buckets: BTreeMap<Bucket, BucketRow>,
    ids: Vec<RelayId>,
    believe: Vec<Believes>,
    now: Timestamp,
}

fn request(relay: RelayId) -> LeaseRequest {
    LeaseRequest {
        relay,
        label: "test".to_owned(),
        route: Route::default(),
        lasts: LASTS,
        transport_available: true,
        fingerprint: 0,
        low_water: LowWater::default(),
        yielding: BucketSet::EMPTY,
    }
}

fn mark<'l>(leases: impl IntoIterator<Item = &'l Lease>, position: i64) -> LowWater {
    let covered = leases.into_iter().map(|lease| (lease.bucket, lease.epoch)).collect();
    LowWater { position: Position(position), covered, life: 0 }
}

impl World {
    fn new() -> Self {
        Self {
            relays: BTreeMap::new(),
            buckets: BTreeMap::new(),
            ids: (0..RELAYS).map(|_| RelayId::new()).collect(),
            believe: vec![Believes::default(); RELAYS],
            now: Timestamp::from_micros(1_000_000),
        }
    }

    fn passes(&mut self, millis: u64) {
        self.now = self.now.plus(Duration::from_millis(millis));
    }

    fn beat_with(&mut self, request: &LeaseRequest) -> Leased {
        let relays = self.relays.values().copied();
        let beat = heartbeat(relays, self.buckets.values().copied(), request, self.now);
        self.relays.insert(request.relay, beat.relay);
        self.buckets.extend(beat.changed.iter().map(|row| (row.bucket, *row)));
        beat.leased
    }

    fn beat(&mut self, relay: usize) -> Leased {
        let request = request(self.ids[relay]);
        self.beat_and_believe(relay, &request)
    }

    /// A heartbeat, checked against what all relays believe.
    fn beat_and_believe(&mut self, relay: usize, request: &LeaseRequest) -> Leased {
        let before = self.buckets.clone();
        let leased = self.beat_with(request);
        let now = self.now;
        for (other, believes) in self.believe.iter().enumerate() {
            let is_live = |lease: &Lease| believes.get(&lease.bucket).is_some_and(|(_, until)| *until > now);
            assert!(other == relay || !leased.leases.iter().any(is_live), "a bucket has two owners");
        }
        let believed = std::mem::take(&mut self.believe[relay]);
        for (bucket, (_, until)) in &believed {
            let is_kept = leased.leases.iter().any(|lease| lease.bucket == *bucket);
            assert!(is_kept || *until <= now, "a live relay loses nothing");
        }
        let mut kept = 0;
        for lease in &leased.leases {
            let was = before.get(&lease.bucket).map_or(Epoch(0), |row| row.epoch);
            let mut until = now.plus(request.lasts);
            match believed.get(&lease.bucket).filter(|(before, _)| before.epoch == lease.epoch) {
                Some((_, had_until)) => {
                    assert!(*had_until > now, "what comes back after an end has another epoch");
                    kept += 1;
                    if request.yielding.contains(lease.bucket) {
                        until = *had_until;
                    }
                }
                None => {
                    assert_eq!(lease.epoch, Epoch(was.0 + 1), "an acquired bucket has the next epoch");
                    assert!(!request.yielding.contains(lease.bucket), "what is given up is not acquired");
                }
            }
            self.believe[relay].insert(lease.bucket, (*lease, until));
        }
        assert!(leased.leases.len() <= kept.max(leased.fair_share), "no more than a share is acquired");
        leased
    }

    fn gives_back(&mut self, relay: usize, most: usize, leaving: bool) {
        let given: Vec<Lease> = self.believe[relay].values().map(|(lease, _)| *lease).take(most).collect();
        let changed = self.given_back(relay, &given, &mark(&given, 5));
        self.buckets.extend(changed.iter().map(|row| (row.bucket, *row)));
        self.believe[relay].retain(|_, (lease, _)| !given.contains(lease));
        if leaving {
            self.relays.remove(&self.ids[relay]);
            self.believe[relay] = Believes::default();
        }
    }

    fn given_back(&self, relay: usize, given: &[Lease], low_water: &LowWater) -> Vec<BucketRow> {
        let (relays, buckets) = (self.relays.values().copied(), self.buckets.values().copied());
        give_back(relays, buckets, self.ids[relay], (given, low_water), self.now)
    }

    fn happens(&mut self, event: &Event) {
        match *event {
            Event::Beat { relay, available, yields, low_water } => {
                let mut request = request(self.ids[relay]);
                let believed = &self.believe[relay];
                request.transport_available = available;
                request.low_water = mark(believed.values().map(|(lease, _)| lease), low_water);
                if yields {
                    request.yielding = believed.keys().copied().take(5).collect();
                }
                let before = self.buckets.clone();
                self.beat_and_believe(relay, &request);
                for (bucket, row) in &self.buckets {
                    let was = before.get(bucket).map_or(Position(0), |row| row.low_water);
                    assert!(row.low_water == was || row.low_water == Position(low_water));
                }
            }
            Event::GivesBack { relay, most, leaving } => self.gives_back(relay, most, leaving),
            Event::Passes(millis) => self.passes(millis),
        }
    }

    fn after(events: &[Event]) -> Self {
        let mut world = Self::new();
        events.iter().for_each(|event| world.happens(event));
        world
    }

    fn owner(&self, bucket: u8) -> Option<RelayId> {
        self.buckets[&Bucket(bucket)].owner(|id| self.relays.get(&id), self.now)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bucket_has_two_owners_and_epochs_grow(events in events()) {
        World::after(&events);
    }

    #[test]
    fn a_relay_that_is_left_alone_owns_everything(events in events(), relay in 0..RELAYS) {
        let mut world = World::after(&events);
        world.passes(11);
        prop_assert_eq!(world.beat(relay).leases.len(), BUCKETS, "what the dead had is taken over");
    }

    #[test]
    fn relays_come_to_share_fairly(events in events()) {
        let mut world = World::after(&events);
        for _ in 0..3 {
            for relay in 0..RELAYS {
                let leased = world.beat(relay);
                world.gives_back(relay, leased.leases.len().saturating_sub(leased.fair_share), false);
            }
        }
        for relay in 0..RELAYS {
            let leased = world.beat(relay);
            prop_assert_eq!((leased.leases.len(), leased.fair_share, leased.relays), (64, 64, RELAYS));
        }
    }

    /// Relays that give way for longer than a lease own nothing, and the others everything; if all
    /// do, none does.
    #[test]
    fn what_some_leave_comes_to_the_others(events in events(), leaving in 1..=RELAYS) {
        let mut world = World::after(&events);
        let mut owned = [0; RELAYS];
        for _ in 0..8 {
            for (relay, owned) in owned.iter_mut().enumerate() {
                let transport_available = relay >= leaving;
                let request = LeaseRequest { transport_available, ..request(world.ids[relay]) };
                let leased = world.beat_and_believe(relay, &request);
                *owned = leased.leases.len();
                world.gives_back(relay, owned.saturating_sub(leased.fair_share), false);
            }
            world.passes(4);
        }
        let counted = if leaving == RELAYS { RELAYS } else { RELAYS - leaving };
        let share = BUCKETS.div_ceil(counted);
        let is_fair = |(relay, owned): (usize, &usize)| *owned <= if relay >= RELAYS - counted { share } else { 0 };
        prop_assert!(owned.iter().enumerate().all(is_fair), "{owned:?}");
        prop_assert_eq!(owned.iter().sum::<usize>(), BUCKETS);
    }
}

#[test]
fn a_lease_that_ends_implausibly_late_is_none() {
    let mut world = World::new();
    world.beat(0);
    world.now = Timestamp::from_micros(1_000_000 - 10_001);
    assert_eq!(world.owner(0), None, "more than twice its length");
    world.now = Timestamp::from_micros(1_000_000 - 10_000);
    assert_eq!(world.owner(0), Some(world.ids[0]));
}

#[test]
fn a_heartbeat_at_the_very_end_of_a_life_is_a_new_life() {
    let mut world = World::new();
    world.beat(0);
    world.passes(10);
    assert!(world.beat(0).leases.iter().all(|lease| lease.epoch == Epoch(2)), "others could have had them");
}

#[test]
fn a_relay_without_transport_for_longer_than_a_lease_does_not_count() {
    let mut world = World::new();
    let beat = |world: &mut World, relay: usize, transport_available: bool| {
        let request = LeaseRequest { transport_available, ..request(world.ids[relay]) };
        world.beat_with(&request).fair_share
    };
    for relay in 0..3 {
        beat(&mut world, relay, relay < 2);
    }
    world.passes(5);
    assert_eq!(beat(&mut world, 2, false), 86);
    beat(&mut world, 0, true);
    beat(&mut world, 1, true);
    world.passes(5);
    assert_eq!(beat(&mut world, 2, false), 86, "for no longer than a lease");
    world.passes(1);
    assert_eq!(beat(&mut world, 2, false), 0);
    assert_eq!(beat(&mut world, 0, true), 128);
    assert_eq!(beat(&mut world, 0, false), 128);
    assert_eq!(beat(&mut world, 1, false), 86, "nobody does better");
}

#[test]
fn what_is_given_up_is_kept_no_longer_than_it_was() {
    let mut world = World::new();
    world.beat(0);
    let gives_up = LeaseRequest { yielding: BucketSet::from_iter([Bucket(3)]), ..request(world.ids[0]) };
    world.passes(5);
    world.beat_with(&gives_up);
    assert_eq!(world.owner(3), Some(world.ids[0]), "until then it is still its own");
    world.passes(3);
    world.beat_with(&gives_up);
    world.passes(2);
    let taken = world.beat(1).leases;
    assert_eq!(taken.iter().map(|lease| lease.bucket).collect::<Vec<_>>(), [Bucket(3)]);
}

#[test]
fn a_low_water_mark_is_of_the_leases_that_it_covers() {
    let mut world = World::new();
    let leases = world.beat(0).leases;
    world.gives_back(0, 100, false);
    // It does not know yet that it has the first ones again, under the next epoch.
    let high = LeaseRequest { low_water: mark(&leases, 9), ..request(world.ids[0]) };
    let again = world.beat_with(&high).leases;
    assert_eq!((again[0].low_water, again[100].low_water), (Position(5), Position(9)));
    assert_eq!(world.beat_with(&high).leases, again, "it covers none of what was acquired with it");
}

#[test]
fn only_the_owner_gives_back_under_its_own_epoch() {
    let mut world = World::new();
    let leases = world.beat(0).leases;
    let stale: Vec<Lease> = leases.iter().map(|lease| Lease { epoch: Epoch(9), ..*lease }).collect();
    assert_eq!(world.given_back(0, &stale, &mark(&stale, 50)), []);
    assert_eq!(world.given_back(1, &leases, &mark(&leases, 50)), []);
    assert_eq!(world.given_back(0, &leases[..2], &mark(&leases, 50)).len(), 2);
}

/// A mark that a relay reports after the end of its lease is ignored.
#[test]
fn an_expired_lease_keeps_its_mark() {
    let mut world = World::new();
    let leases = world.beat(0).leases;
    let gives_up = LeaseRequest { yielding: BucketSet::from_iter([Bucket(3)]), ..request(world.ids[0]) };
    world.passes(5);
    world.beat_with(&gives_up);
    world.passes(5);
    let marks = |rows: Vec<BucketRow>| rows.iter().map(|row| row.low_water.0).collect::<Vec<_>>();
    let given = world.given_back(0, &leases[2..4], &mark(&leases, 50));
    assert!(given.iter().all(|row| row.owner.is_none()), "it is free in any case");
    assert_eq!(marks(given), [50, 0], "one that is given up ends before the others");
    world.passes(5);
    assert_eq!(marks(world.given_back(0, &leases[2..4], &mark(&leases, 50))), [0, 0]);
    let late = LeaseRequest { low_water: mark(&leases, 50), ..request(world.ids[0]) };
    assert!(world.beat_with(&late).leases.iter().all(|lease| lease.low_water == Position(0)));
}

#[test]
fn the_longest_lease_can_be_added_to_an_instant() {
    let mut world = World::new();
    let forever = LeaseRequest { lasts: Duration::MAX, ..request(world.ids[0]) };
    assert_eq!(world.beat_with(&forever).leases.len(), BUCKETS);
    assert_eq!(world.owner(7), Some(world.ids[0]));
}

fn relay_row(number: u128, expires_at: i64) -> (String, RelayRow) {
    let relay = RelayRow {
        relay: RelayId::from_uuid(uuid::Uuid::from_u128(number)),
        expires_at: Timestamp::from_micros(expires_at),
        lasts: Duration::from_secs(1),
        unavailable_since: None,
        fingerprint: 7,
    };
    (format!("relay {number}"), relay)
}

#[test]
fn a_bucket_belongs_to_a_live_relay_until_its_lease_ends() {
    let now = Timestamp::from_micros(1_000_000);
    let (live, dead) = (relay_row(1, 1_500_000), relay_row(2, 1_000_000));
    let row = |bucket, owner: &(String, RelayRow), ends_at: Option<i64>| BucketRow {
        owner: Some(owner.1.relay),
        epoch: Epoch(3),
        since: Timestamp::from_micros(9),
        ends_at: ends_at.map(Timestamp::from_micros),
        ..BucketRow::new(Bucket(bucket))
    };
    let rows = [
        row(0, &live, None),
        row(1, &live, Some(1_200_000)),
        row(2, &live, Some(1_000_000)),
        row(3, &dead, None),
    ];
    let view = ownership([live.clone(), dead], rows, Paused::default(), now);
    let told = |bucket| {
        let owner = view.owner(Bucket(bucket)).unwrap();
        (owner.owner.is_some(), owner.until.map(Timestamp::as_micros), owner.yielding, owner.epoch.0)
    };
    assert_eq!(told(0), (true, Some(1_500_000), false, 3));
    assert_eq!(told(1), (true, Some(1_200_000), true, 3), "what is given up ends earlier");
    assert_eq!(told(2), (false, None, false, 3), "its end is over");
    assert_eq!(told(3), (false, None, false, 3), "its relay is dead");
    assert_eq!(told(4), (false, None, false, 0), "it has no row");
    assert_eq!(view.owner(Bucket(4)).unwrap().since, None);
    assert_eq!(view.owner(Bucket(3)).unwrap().since, Some(Timestamp::from_micros(9)));
    assert_eq!(view.buckets.len(), 256);
    let relays: Vec<_> =
        view.relays.iter().map(|relay| (relay.label.as_str(), relay.live, relay.buckets)).collect();
    assert_eq!(relays, [("relay 1", true, 2), ("relay 2", false, 0)]);
    assert_eq!(view.relay(live.1.relay).unwrap().label, "relay 1");
}
