use super::*;

fn at(ownership: &mut Ownership, millis: i64) -> &mut Ownership {
    ownership.now = Some(DateTime::from_millis(millis));
    ownership
}

fn request(relay: RelayId) -> LeaseRequest {
    let mut request = LeaseRequest::new(relay, Route::default(), Duration::from_millis(10));
    request.label = "test".to_owned();
    request
}

fn fresh() -> Ownership {
    Ownership::new(&Route::default())
}

#[test]
fn a_relay_owns_what_it_acquired_until_its_time_is_over() {
    let (mut route, relay) = (fresh(), RelayId::new());
    let leased = at(&mut route, 100).beat(&request(relay));
    assert_eq!((leased.leases.len(), leased.fair_share), (BUCKETS, BUCKETS));
    let lease = leased.leases[7];
    assert!(at(&mut route, 109).holds(relay, lease.bucket, lease.epoch));
    assert!(!route.holds(relay, lease.bucket, Epoch(lease.epoch.0 + 1)));
    assert!(!route.holds(RelayId::new(), lease.bucket, lease.epoch));
    assert!(!at(&mut route, 110).holds(relay, lease.bucket, lease.epoch), "its time is over");
    assert!(!at(&mut route, 50).holds(relay, lease.bucket, lease.epoch), "implausibly far ahead");
}

#[test]
fn a_live_relay_loses_nothing_and_a_dead_one_everything() {
    let (mut route, first, second) = (fresh(), RelayId::new(), RelayId::new());
    at(&mut route, 100).beat(&request(first));
    assert!(at(&mut route, 105).beat(&request(second)).leases.is_empty());
    let taken = at(&mut route, 110).beat(&request(second));
    assert_eq!((taken.leases.len(), taken.relays), (BUCKETS, 1));
    assert!(taken.leases.iter().all(|lease| lease.epoch == Epoch(2)));
    assert!(at(&mut route, 111).beat(&request(first)).leases.is_empty(), "it is told that it lost them");
}

#[test]
fn what_is_given_up_is_kept_no_longer_than_it_was() {
    let (mut route, first, second) = (fresh(), RelayId::new(), RelayId::new());
    let leases = at(&mut route, 100).beat(&request(first)).leases;
    let mut gives_up = request(first);
    gives_up.yielding = BucketSet::from_iter([Bucket(3)]);
    at(&mut route, 105).beat(&gives_up);
    assert!(route.holds(first, Bucket(3), leases[3].epoch), "until then it is still its own");
    at(&mut route, 108).beat(&gives_up);
    let taken = at(&mut route, 110).beat(&request(second));
    assert_eq!(taken.leases.iter().map(|lease| lease.bucket).collect::<Vec<_>>(), [Bucket(3)]);
    assert!(route.owned(first).len() == BUCKETS - 1);
}

/// A mark of these leases.
fn mark(leases: &[Lease], position: i64) -> LowWater {
    let covered = leases.iter().map(|lease| (lease.bucket, lease.epoch)).collect();
    LowWater::new(Position(position), covered, 0)
}

#[test]
fn a_low_water_mark_is_of_the_leases_that_it_covers_and_of_no_others() {
    let (mut route, first, second) = (fresh(), RelayId::new(), RelayId::new());
    let leases = at(&mut route, 100).beat(&request(first)).leases;
    at(&mut route, 101).give_back(first, &leases[..100], &mark(&leases[..100], 7), false);
    let mut high = request(first);
    // It does not know yet that it has the first ones again, under the next epoch.
    high.low_water = mark(&leases, 9);
    let again = at(&mut route, 102).beat(&high).leases;
    assert_eq!((again[0].low_water, again[100].low_water), (Position(7), Position(9)));
    let still = at(&mut route, 103).beat(&high).leases;
    assert_eq!(still, again, "it covers none of what was acquired with it");
    at(&mut route, 103).give_back(second, &again, &mark(&again, 50), true);
    let stale: Vec<Lease> = again.iter().map(|lease| Lease { epoch: Epoch(9), ..*lease }).collect();
    at(&mut route, 103).give_back(first, &stale, &mark(&stale, 50), false);
    assert_eq!(route.owned(first).len(), BUCKETS, "only the owner gives back, under its own epoch");
}

#[test]
fn relays_that_are_long_gone_are_removed() {
    let (mut route, gone, there) = (fresh(), RelayId::new(), RelayId::new());
    at(&mut route, 100).beat(&request(gone));
    at(&mut route, 10_000).beat(&request(there));
    assert_eq!(route.bury_relays(Duration::from_secs(1)), 1);
    assert_eq!(route.owned(there).len(), BUCKETS);
    assert_eq!(route.bury_relays(Duration::from_secs(1)), 0);
}
