//! Leases: which relay owns which bucket, for how long, and how it changes owners.

use std::time::Duration;

use outbox_contract::backend::{BUCKETS, Bucket, BucketSet, Epoch, Lease, Ordering, Position};
use outbox_contract::{AdminExt, Store};

use super::StoreHarness;
use super::support::{LONG, OVER, Relay, SHORT, message, messages, prepared, route, topic, write};

/// The first relay of a route owns everything, lowest bucket first.
pub async fn a_relay_alone_acquires_every_bucket<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut relay = Relay::start(&store).await;
    let leased = relay.beat().await;
    let buckets: Vec<Bucket> = leased.leases.iter().map(|lease| lease.bucket).collect();
    assert_eq!(buckets, (0..=255).map(Bucket).collect::<Vec<_>>());
    assert_eq!((leased.fair_share, leased.relays), (BUCKETS, 1));
}

/// A second relay acquires no owned bucket; it acquires the buckets that the first gives back, up
/// to its share.
pub async fn two_relays_come_to_share_fairly<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut first = Relay::start(&store).await;
    let mut second = Relay::start(&store).await;
    assert!(second.leases.is_empty(), "nothing is taken from a live relay");
    let leased = first.beat().await;
    assert_eq!((leased.leases.len(), leased.fair_share, leased.relays), (BUCKETS, 128, 2));

    first.release(&first.leases[leased.fair_share..], false).await;
    let leased = second.beat().await;
    assert_eq!((leased.leases.len(), leased.fair_share, leased.relays), (128, 128, 2));
    assert_eq!(first.beat().await.leases.len(), 128, "the first relay keeps its share");
    assert!(first.owned().intersection(&second.owned()).is_empty(), "no bucket has two owners");
    assert_eq!(first.owned().union(&second.owned()), BucketSet::ALL);
}

/// 256 buckets by three relays, rounded up: no relay gets more, and no bucket is left over.
pub async fn three_relays_come_to_share_fairly<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut relays = Vec::new();
    for _ in 0..3 {
        relays.push(Relay::start(&store).await);
    }
    // Two rounds: in the first, surplus is given back; in the second, all of it is taken.
    for _ in 0..2 {
        for relay in &mut relays {
            let leased = relay.beat().await;
            assert_eq!((leased.fair_share, leased.relays), (86, 3));
            if leased.leases.len() > 86 {
                relay.release(&leased.leases[86..], false).await;
                relay.beat().await;
            }
        }
    }
    let mut all = BucketSet::EMPTY;
    for relay in &relays {
        let owned = relay.owned();
        assert!(owned.len() <= 86, "{} buckets are more than a fair share", owned.len());
        assert!(all.intersection(&owned).is_empty(), "no bucket has two owners");
        all = all.union(&owned);
    }
    assert_eq!(all, BucketSet::ALL, "no bucket is without an owner");
}

/// However many relays ask at once, no bucket gets two owners.
pub async fn relays_that_start_at_once_share_without_overlap<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let other_process = harness.as_another_process().await;
    let starting = (0..6).map(|at| Relay::start(if at % 2 == 0 { &store } else { &other_process }));
    let relays = futures_util::future::join_all(starting).await;
    let mut all = BucketSet::EMPTY;
    for relay in &relays {
        assert!(all.intersection(&relay.owned()).is_empty(), "a bucket has two owners");
        all = all.union(&relay.owned());
    }
    assert_eq!(all, BucketSet::ALL, "the first of them acquires what there is");
}

/// A relay without heartbeats loses its buckets when its lease expires, and not before; the next
/// owner has the next epoch.
pub async fn an_expired_bucket_is_taken_under_the_next_epoch<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let gone = Relay::on(&store, Default::default(), SHORT).await;
    let mut next = Relay::start(&store).await;
    assert!(next.leases.is_empty(), "the first relay's time is not over yet");
    harness.advance(OVER).await;
    let leased = next.beat().await;
    assert_eq!(
        (leased.leases.len(), leased.relays),
        (BUCKETS, 1),
        "a relay whose time is over counts no more"
    );
    for (old, new) in gone.leases.iter().zip(&leased.leases) {
        assert!(new.epoch > old.epoch, "bucket {}: {} after {}", new.bucket, new.epoch, old.epoch);
    }
}

/// A relay whose leases expired and were not taken owns them again at its next heartbeat, under the
/// next epoch: it can't know whether another relay had them in between.
pub async fn a_relay_that_slept_through_its_lease_acquires_again<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut relay = Relay::on(&store, Default::default(), SHORT).await;
    let before = relay.leases.clone();
    harness.advance(OVER).await;
    let leased = relay.beat().await;
    assert_eq!(leased.leases.len(), BUCKETS);
    for (old, new) in before.iter().zip(&leased.leases) {
        assert!(new.epoch > old.epoch, "bucket {}: {} after {}", new.bucket, new.epoch, old.epoch);
    }
}

/// A relay that returns after another took over learns what it lost.
pub async fn a_relay_that_was_replaced_is_told_so<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut slept = Relay::on(&store, Default::default(), SHORT).await;
    harness.advance(OVER).await;
    let next = Relay::start(&store).await;
    assert_eq!(next.leases.len(), BUCKETS);
    let leased = slept.beat().await;
    assert!(leased.leases.is_empty(), "what is missing from the answer was lost");
    assert_eq!(leased.relays, 2);
}

/// Each heartbeat extends the leases from its own time.
pub async fn a_heartbeat_renews_every_lease<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    // Long steps against a lease of twice that, so that a slow machine causes no expired lease.
    let lasts = Duration::from_secs(2);
    let mut relay = Relay::on(&store, Default::default(), lasts).await;
    let before = relay.leases.clone();
    for _ in 0..3 {
        harness.advance(Duration::from_secs(1)).await;
        assert_eq!(relay.beat().await.leases, before, "the same leases under the same epochs");
    }
    let other = Relay::start(&store).await;
    assert!(other.leases.is_empty(), "after 3 s the lease of 2 s is still good, for it was renewed");
}

/// A bucket that was given back is free at once, under the next epoch.
pub async fn a_released_bucket_is_taken_at_once<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut first = Relay::start(&store).await;
    let mut second = Relay::start(&store).await;
    let given: Vec<Lease> = first.leases[..10].to_vec();
    first.release(&given, false).await;
    let leased = second.beat().await;
    assert_eq!(buckets(&leased.leases), buckets(&given));
    for (old, new) in given.iter().zip(&leased.leases) {
        assert!(new.epoch > old.epoch, "the next owner has the next epoch");
    }
    assert_eq!(first.beat().await.leases.len(), BUCKETS - 10);
}

/// Giving back a bucket that is not owned, or was owned under another epoch, frees nothing.
pub async fn only_the_owner_gives_a_bucket_back<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut owner = Relay::start(&store).await;
    let mut other = Relay::start(&store).await;
    other.release(&owner.leases, false).await;
    let stale: Vec<Lease> =
        owner.leases.iter().map(|lease| Lease { epoch: Epoch(lease.epoch.0 - 1), ..*lease }).collect();
    owner.release(&stale, false).await;
    assert!(other.beat().await.leases.is_empty(), "nothing was freed");
    assert_eq!(owner.beat().await.leases.len(), BUCKETS);
}

/// A relay does not acquire a bucket again that it is giving up.
pub async fn a_yielded_bucket_is_not_acquired_again<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut relay = Relay::start(&store).await;
    let given: Vec<Lease> = relay.leases[..10].to_vec();
    let mut request = relay.lease_request();
    request.yielding = buckets(&given);
    relay.beat_with(&request).await;
    relay.release(&given, false).await;
    let leased = relay.beat_with(&request).await;
    assert_eq!(leased.leases.len(), BUCKETS - 10, "given up is given up, though no other relay wants it");
    assert_eq!(relay.beat().await.leases.len(), BUCKETS, "until the relay changes its mind");
}

/// A relay that left no longer counts in the shares.
pub async fn a_relay_that_leaves_counts_no_more<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let leaving = Relay::start(&store).await;
    let mut staying = Relay::start(&store).await;
    assert_eq!(staying.beat().await.relays, 2);
    leaving.leave().await;
    let leased = staying.beat().await;
    assert_eq!((leased.relays, leased.fair_share, leased.leases.len()), (1, BUCKETS, BUCKETS));
}

/// A relay without a transport stops counting after a lease, not before, if another relay has one.
pub async fn a_relay_without_transport_is_counted_out<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut healthy = Relay::start(&store).await;
    let mut cut_off = Relay::on(&store, Default::default(), Duration::from_secs(1)).await;
    let mut request = cut_off.lease_request();
    request.transport_available = false;
    assert_eq!(cut_off.beat_with(&request).await.fair_share, 128, "not before a lease is over");

    let mut share = 128;
    for _ in 0..10 {
        harness.advance(Duration::from_millis(400)).await;
        healthy.beat().await;
        share = cut_off.beat_with(&request).await.fair_share;
        if share == 0 {
            break;
        }
    }
    assert_eq!(share, 0, "it has had no transport for longer than its lease, and another relay has one");
    assert_eq!(healthy.beat().await.fair_share, BUCKETS, "the other one's share is everything");
    request.transport_available = true;
    assert_eq!(cut_off.beat_with(&request).await.fair_share, 128, "with a transport it counts again");
}

/// If no relay has a transport, every relay keeps its share.
pub async fn relays_keep_their_shares_when_no_transport_is_available<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut relay = Relay::on(&store, Default::default(), Duration::from_secs(1)).await;
    let mut request = relay.lease_request();
    request.transport_available = false;
    for _ in 0..5 {
        harness.advance(Duration::from_millis(400)).await;
        let leased = relay.beat_with(&request).await;
        assert_eq!((leased.fair_share, leased.leases.len()), (BUCKETS, BUCKETS));
    }
}

/// A new owner of a bucket starts at the mark of its last owner.
pub async fn the_low_water_mark_is_handed_over<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut first = Relay::start(&store).await;
    assert!(first.leases.iter().all(|lease| lease.low_water == Position::START), "nothing is known at first");
    write(&*store, messages("orders", "a", 4)).await;
    let read = first.read().await;
    first.settle(&read[..2]).await;
    if store.frontier().ordering() == Ordering::Stripes {
        // A stripe that was not written to for long may still be far below the others.
        return;
    }
    first.low_water = first.mark(&first.leases, read[1].position);
    first.shorten().await;

    // By an expired lease: the mark of the last heartbeat.
    harness.advance(OVER).await;
    let mut second = Relay::start(&store).await;
    assert_eq!(second.leases.len(), BUCKETS);
    assert!(second.leases.iter().all(|lease| lease.low_water == read[1].position), "{:?}", second.leases[0]);

    // By giving back: the mark at that time.
    second.settle(&read[2..3]).await;
    second.low_water = second.mark(&second.leases, read[2].position);
    second.leave().await;
    let third = Relay::start(&store).await;
    assert!(third.leases.iter().all(|lease| lease.low_water == read[2].position), "{:?}", third.leases[0]);
    assert_eq!(third.read().await.len(), 1, "and nothing is lost by it");
}

/// A mark that comes after the end of its lease is not saved, by whichever call: the relay may have
/// read when it was shown nothing.
pub async fn an_expired_lease_keeps_its_mark<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut relay = Relay::on(&store, Default::default(), SHORT).await;
    for leaving in [false, true] {
        relay.low_water = relay.mark(&relay.leases, Position(49_000));
        harness.advance(OVER).await;
        relay.release(&relay.leases, leaving).await;
        relay.beat().await;
        let known = relay.leases.iter().find(|lease| lease.low_water > Position::START);
        assert_eq!((relay.leases.len(), known), (BUCKETS, None), "given back too late, leaving {leaving}");
    }
    relay.low_water = relay.mark(&relay.leases, Position(49_000));
    harness.advance(OVER).await;
    let leased = relay.beat().await;
    let known = leased.leases.iter().find(|lease| lease.low_water > Position::START);
    assert_eq!((leased.leases.len(), known), (BUCKETS, None), "renewed too late");
}

/// A relay may own more than it knows, through a heartbeat whose answer was lost. Its mark is saved
/// for the leases that it names. The next owner reads and counts the messages below the mark in the
/// others.
pub async fn a_low_water_mark_holds_for_the_leases_that_it_covers<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    if store.frontier().ordering() == Ordering::Stripes {
        return;
    }
    write(&*store, messages("orders", "a", 4)).await;
    let mut first = Relay::start(&store).await;
    let read = first.read().await;
    let bucket = message("orders", "a").bucket();
    let others: Vec<Lease> = first.leases.iter().filter(|lease| lease.bucket != bucket).copied().collect();
    let high = read[3].position;
    let expected = |lease: &Lease| if lease.bucket == bucket { Position::START } else { high };
    let check = |leases: &[Lease], what: &str| {
        assert_eq!(leases.len(), BUCKETS);
        for lease in leases {
            assert_eq!(lease.low_water, expected(lease), "bucket {}, {what}", lease.bucket);
        }
    };

    first.low_water = first.mark(&others, high);
    // A lease of another epoch is not the one that it owns.
    first.low_water.covered.insert(bucket, Epoch(first.leases[usize::from(bucket.0)].epoch.0 + 1));
    check(&first.beat().await.leases, "in the answer to the heartbeat");
    check(&first.beat().await.leases, "in the answer to the next");
    assert_eq!(pending(&*store).await, 4, "what stands below the mark of other buckets waits all the same");

    first.shorten().await;
    harness.advance(OVER).await;
    let mut second = Relay::start(&store).await;
    check(&second.leases, "taken over from a relay whose time was over");

    second.low_water = second.mark(&second.leases[..1], Position(high.0 + 1));
    second.low_water.covered.insert(bucket, Epoch(0));
    let first_bucket = second.leases[0].bucket;
    assert!(first_bucket != bucket, "else the test shows nothing");
    second.leave().await;
    let third = Relay::start(&store).await;
    let (given, rest): (Vec<Lease>, Vec<Lease>) =
        third.leases.iter().partition(|lease| lease.bucket == first_bucket);
    assert_eq!(given[0].low_water, Position(high.0 + 1), "what was given back with a mark");
    assert!(rest.iter().all(|lease| lease.low_water == expected(lease)), "and without");
    assert_eq!(third.read().await.len(), 4);
    assert_eq!(pending(&*store).await, 4);
}

/// A saved mark is only a relay's memory; the rows are the truth. The backlog counts rows below it,
/// and a look below returns them.
pub async fn what_stands_below_a_saved_mark_is_shown_and_counted<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    write(&*store, messages("orders", "a", 4)).await;
    let mut relay = Relay::start(&store).await;
    let read = relay.read().await;
    relay.low_water = relay.mark(&relay.leases, read[3].position);
    relay.beat().await;
    assert_eq!(pending(&*store).await, 4);
    let mut request = relay.fetch_request();
    (request.until, request.except) = (read[2].position, vec![read[1].position]);
    let shown = store.fetch_below(&request).await.expect("it is looked");
    let shown: Vec<Position> = shown.rows.iter().map(|row| row.position()).collect();
    assert_eq!(shown, [read[0].position, read[2].position]);
}

/// A relay that lost its state begins to read anew: it has read nothing yet, and learns its saved
/// marks.
pub async fn a_relay_that_begins_anew_is_told_its_marks<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    if store.frontier().ordering() == Ordering::Stripes {
        return;
    }
    let mut relay = Relay::start(&store).await;
    let (some, rest) = relay.leases.split_at(100);
    let (some, rest) = (some.to_vec(), rest.to_vec());
    relay.low_water = relay.mark(&some, Position(49_000));
    relay.beat().await;
    let marks = |leases: &[Lease]| leases.iter().map(|lease| lease.low_water).collect::<Vec<_>>();
    let expected: Vec<Position> =
        [vec![Position(49_000); some.len()], vec![Position::START; rest.len()]].concat();
    relay.low_water = Default::default();
    for _ in 0..2 {
        assert_eq!(marks(&relay.beat().await.leases), expected);
    }
    // Rows that it has read since are told apart from those that it has not, and may stand lower.
    relay.low_water = relay.mark(&rest, Position(7));
    let expected: Vec<Position> =
        [vec![Position(49_000); some.len()], vec![Position(7); rest.len()]].concat();
    assert_eq!(marks(&relay.beat().await.leases), expected);
    relay.low_water = Default::default();
    relay.leave().await;
    assert_eq!(marks(&Relay::start(&store).await.leases), expected, "and so is its successor");
}

/// Relays with different configurations learn of it.
pub async fn relays_are_told_whether_they_agree<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut first = Relay::start(&store).await;
    let mut second = Relay::start(&store).await;
    assert!(second.beat().await.fingerprints_agree);
    let mut other = second.lease_request();
    other.fingerprint = -8;
    assert!(!second.beat_with(&other).await.fingerprints_agree);
    assert!(!first.beat().await.fingerprints_agree);
    second.leave().await;
    assert!(first.beat().await.fingerprints_agree, "one that left disagrees no more");
}

/// Relays of another route do not count in the shares.
pub async fn relays_of_another_route_count_in_no_share<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut one = Relay::start(&store).await;
    let other = Relay::on(&store, route("audit"), LONG).await;
    let leased = one.beat().await;
    assert_eq!((leased.leases.len(), leased.relays, leased.fair_share), (BUCKETS, 1, BUCKETS));
    assert_eq!(other.leases.len(), BUCKETS);
}

/// Pauses by operators are in the answer to every heartbeat, from the next one on.
pub async fn a_heartbeat_tells_what_is_paused<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut relay = Relay::start(&store).await;
    assert_eq!(relay.beat().await.paused, Default::default());
    store.pause(&relay.route, Some(&topic("orders"))).await.expect("a topic is paused");
    let paused = relay.beat().await.paused;
    assert!(!paused.route && paused.topics == [topic("orders")], "{paused:?}");
    store.pause(&relay.route, None).await.expect("a route is paused");
    let paused = relay.beat().await.paused;
    assert!(paused.route && paused.topics == [topic("orders")], "{paused:?}");
}

async fn pending<S: Store>(store: &S) -> u64 {
    store.backlog(&Default::default()).await.expect("the backlog is measured").pending
}

fn buckets(leases: &[Lease]) -> BucketSet {
    leases.iter().map(|lease| lease.bucket).collect()
}
