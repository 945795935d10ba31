//! Fetching: limits, windows, parts, flags; only under the caller's unexpired lease; never a
//! message that was settled before.

use outbox_contract::backend::{
    Bucket, BucketSet, FetchRequest, FetchedRow, Ordering, Position, RelayId, Scope,
};
use outbox_contract::{Outgoing, Store};

use super::support::{
    LATER, LONG, OVER, Relay, SHORT, ids, message, messages, prepared, published, route, stored_ids, topic,
    write,
};
use super::{Capability, StoreHarness, has};

/// A fetch returns at most the requested number of rows, the lowest positions first, and reports
/// whether there may be more.
pub async fn a_fetch_stops_at_its_limit_of_rows<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all = messages("orders", "a", 5);
    write(&*store, all.iter().cloned()).await;
    let mut request = relay.fetch_request();

    request.limit = 2;
    let first = relay.fetch_with(&request).await;
    assert_eq!(read_ids(first.rows), ids(&all[..2]));
    assert!(first.full, "the limit cut it short");
    request.limit = 10;
    let whole = relay.fetch_with(&request).await;
    assert_eq!(read_ids(whole.rows), ids(&all));
    assert!(!whole.full, "nothing cut it short");
}

/// A fetch returns at most the requested bytes of content.
pub async fn a_fetch_stops_at_its_limit_of_bytes<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all: Vec<_> =
        messages("orders", "a", 4).into_iter().map(|m| m.with_payload(vec![7; 1_000])).collect();
    write(&*store, all.iter().cloned()).await;
    let mut request = relay.fetch_request();
    request.bytes = 2_500;
    let fetched = relay.fetch_with(&request).await;
    assert_eq!(read_ids(fetched.rows), ids(&all[..2]), "two payloads of 1,000 bytes fit in 2,500");
    assert!(fetched.full, "the limit cut it short");
}

/// A message over the limit of bytes is returned alone instead of never.
pub async fn the_first_row_comes_whatever_it_has<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    for first_bytes in [10_000, 0] {
        // Even if the first message has no bytes, it is the first one.
        let first = messages("orders", "a", 1).into_iter().map(|m| m.with_payload(vec![7; first_bytes]));
        let second = messages("orders", "a", 1).into_iter().map(|m| m.with_payload(vec![7; 10_000]));
        let all: Vec<_> = first.chain(second).collect();
        write(&*store, all.iter().cloned()).await;
        let mut request = relay.fetch_request();
        request.bytes = 1;
        let fetched = relay.fetch_with(&request).await;
        assert_eq!(read_ids(fetched.rows), ids(&all[..1]), "the first has {first_bytes} bytes");
        assert!(fetched.full);
        relay.settle(&relay.read().await).await;
    }
}

/// A complete fetch reports that it has looked as far as there are rows, even rows of other routes
/// and other relays. So no relay reads them again. It never reports this of rows that it was cut
/// short of, or was not allowed to see, nor of positions that are yet to be given out.
pub async fn a_fetch_says_how_far_it_has_looked<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    write(&*store, messages("orders", "a", 3)).await;
    let last = relay.read().await.last().expect("three rows").position;

    let whole = relay.fetch_with(&relay.fetch_request()).await;
    assert!(whole.reached == Position::START || whole.reached >= last, "{} and {last}", whole.reached);
    write(&*store, messages("orders", "a", 1)).await;
    let later = relay.read().await.last().expect("another row").position;
    assert!(
        whole.reached < later,
        "relays read on behind {}, which a fetch has reached: they would pass {later}, which was written later",
        whole.reached
    );
    let mut cut = relay.fetch_request();
    cut.limit = 2;
    assert_eq!(relay.fetch_with(&cut).await.reached, Position::START, "it was cut short");
    let mut bounded = relay.fetch_request();
    bounded.until = last.before();
    assert!(relay.fetch_with(&bounded).await.reached <= last.before(), "it was not to look further");
    let mut stranger = relay.fetch_request();
    stranger.relay = RelayId::new();
    assert_eq!(
        relay.fetch_with(&stranger).await.reached,
        Position::START,
        "a relay without leases sees nothing"
    );
}

/// A fetch that finds nothing behind its cursor is complete, whatever stands at or below it, and
/// however many positions there were before. A relay repeats one that says otherwise at once.
pub async fn a_fetch_behind_the_last_row_is_complete<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let of_no_relay = Outgoing::from(message("orders", "a")).by(route("attic"));
    write(&*store, [of_no_relay, message("orders", "a").into()]).await;
    if has::<H>(Capability::LastPosition) {
        harness.set_last_position(1_000_000_000).await;
    }
    write(&*store, messages("orders", "a", 2)).await;

    let mut request = relay.fetch_request();
    let mut found = Vec::new();
    // Each may be cut short in front of the distant rows, and continues behind the one before it.
    for fetches in 1.. {
        assert!(fetches <= 10, "it came no further than {}", request.after);
        let fetched = relay.fetch_with(&request).await;
        request.after = fetched.rows.last().map_or(request.after, FetchedRow::position);
        found.extend(fetched.rows.into_iter().filter(|row| !matches!(row, FetchedRow::Muted(_))));
        if !fetched.full {
            break;
        }
    }
    let in_flight: Vec<Position> = found.iter().map(FetchedRow::position).collect();
    assert_eq!(in_flight.len(), 3, "{found:?}");
    let last = in_flight[2];
    let (mut window, mut busy) = (request.clone(), request.clone());
    window.until = last;
    busy.except = in_flight.into_iter().collect();
    for request in [request, window, busy] {
        let behind = relay.fetch_with(&request).await;
        assert!(behind.rows.is_empty() && !behind.full, "behind {last}, {request:?}: {behind:?}");
        assert!(behind.reached == Position::START || behind.reached >= last, "{} and {last}", behind.reached);
    }
}

/// Rows in flight are left out in the statement itself: they use up neither the limit of rows nor
/// that of bytes.
pub async fn rows_in_flight_count_for_nothing<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all: Vec<_> = messages("orders", "a", 30).into_iter().map(|m| m.with_payload(vec![7; 100])).collect();
    write(&*store, all.iter().cloned()).await;
    let stored = relay.read().await;

    let mut request = relay.fetch_request();
    request.except = stored[..20].iter().map(|stored| stored.position).collect();
    (request.limit, request.bytes) = (5, 550);
    assert_eq!(read_ids(relay.fetch_with(&request).await.rows), ids(&all[20..25]));
    // Not only a prefix of them.
    request.except = [1, 3, 4].map(|at: usize| stored[at].position).into();
    request.limit = 3;
    assert_eq!(read_ids(relay.fetch_with(&request).await.rows), [all[0].id, all[2].id, all[5].id]);
}

/// More rows in flight than a statement has parameters are left out.
pub async fn thousands_of_rows_in_flight_are_left_out<H: StoreHarness>(harness: &H) {
    const IN_FLIGHT: usize = 4_000;
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    write(&*store, messages("orders", "a", IN_FLIGHT + 1)).await;
    let stored = relay.read().await;
    let mut request = relay.fetch_request();
    request.except = stored[..IN_FLIGHT].iter().map(|stored| stored.position).collect();
    request.limit = 1;
    let rest = relay.fetch_with(&request).await.rows;
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].position(), stored[IN_FLIGHT].position);
}

/// A window holds the rows behind `after`, up to and including `until`.
pub async fn a_window_leaves_out_what_is_before_and_behind_it<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all = messages("orders", "a", 6);
    write(&*store, all.iter().cloned()).await;
    let stored = relay.read().await;
    let mut request = relay.fetch_request();
    (request.after, request.until) = (stored[1].position, stored[4].position);
    assert_eq!(read_ids(relay.fetch_with(&request).await.rows), ids(&all[2..=4]));
    (request.after, request.until) = (stored[5].position, Position::END);
    assert!(relay.fetch_with(&request).await.rows.is_empty(), "nothing is behind the last");
}

/// A part is one topic, or one key.
pub async fn a_scope_reads_only_its_topic_or_key<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (a, b, other) = (message("orders", "a"), message("orders", "b"), message("customers", "a"));
    write(&*store, [other.clone(), a.clone(), b.clone()]).await;
    let mut request = relay.fetch_request();
    request.scope = Scope::Topic(topic("orders"));
    assert_eq!(sorted(read_ids(relay.fetch_with(&request).await.rows)), sorted(vec![a.id, b.id]));
    request.scope = Scope::Key(a.key_id());
    request.limit = 1;
    assert_eq!(read_ids(relay.fetch_with(&request).await.rows), [a.id]);
}

/// The key of a message that has none is its id.
pub async fn a_message_without_a_key_is_read_by_its_id<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let keyless = outbox_contract::Message::new("orders", "suite.event").expect("a valid topic");
    write(&*store, [message("orders", "a"), keyless.clone()]).await;
    assert_eq!(stored_ids(&relay.read_key(&keyless.key_id()).await), [keyless.id]);
}

/// Muted parts are returned as bare positions, in their place, and count as rows.
pub async fn muted_rows_come_bare_and_count_as_rows<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (muted, heard) = (message("broken", "a").with_payload(vec![7; 1_000]), message("orders", "a"));
    let (muted_key, other_key) = (message("orders", "muted"), message("orders", "other"));
    write(&*store, [muted, heard.clone(), muted_key.clone(), other_key.clone()]).await;

    let mut request = relay.fetch_request();
    request.muted = vec![Scope::Topic(topic("broken")), Scope::Key(muted_key.key_id())];
    let rows = relay.fetch_with(&request).await.rows;
    let is_muted = |row: &FetchedRow| matches!(row, FetchedRow::Muted(_));
    assert_eq!(rows.iter().filter(|row| is_muted(row)).count(), 2, "{rows:?}");
    let shown = read_ids(rows.iter().filter(|row| !is_muted(row)).cloned().collect());
    assert_eq!(sorted(shown), sorted(vec![heard.id, other_key.id]));
    if store.frontier().ordering() != Ordering::Stripes {
        // In stripes, rows of different keys are unordered.
        let kinds: Vec<bool> = rows.iter().map(is_muted).collect();
        assert_eq!(kinds, [true, false, true, false], "{rows:?}");
    }
    // The content of a muted row is not read, so it uses up no bytes; its row counts toward the
    // limit.
    (request.limit, request.bytes) = (2, 100);
    let fetched = relay.fetch_with(&request).await;
    let cut: Vec<Position> = fetched.rows.iter().map(FetchedRow::position).collect();
    assert_eq!(cut, [rows[0].position(), rows[1].position()], "{:?}", fetched.rows);
    assert!(fetched.full);
}

/// A row of a failing key in a muted scope is muted: a relay parks nothing of what is paused.
pub async fn rows_of_failing_keys_are_muted_with_their_scope<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    write(&*store, messages("orders", "a", 2)).await;
    let stored = relay.read().await;
    relay.fail(&stored[..1], LATER).await;
    let mut request = relay.fetch_request();
    for muted in [Scope::Everything, Scope::Topic(topic("orders")), Scope::Key(stored[0].message.key_id())] {
        request.muted = vec![muted];
        let rows = relay.fetch_with(&request).await.rows;
        let is_muted = matches!(&rows[..], [FetchedRow::Muted(at)] if *at == stored[1].position);
        assert!(is_muted, "with {:?} muted: {rows:?}", request.muted);
    }
}

/// A relay that owns nothing reads nothing.
pub async fn only_the_owner_of_a_bucket_reads_it<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let owner = Relay::start(&store).await;
    let late = Relay::start(&store).await;
    write(&*store, messages("orders", "a", 3)).await;
    assert_eq!(owner.read().await.len(), 3);
    assert!(late.leases.is_empty(), "everything belongs to the first relay");
    assert!(late.fetch().await.is_empty(), "a relay without a lease reads nothing");
    let mut stranger = owner.fetch_request();
    stranger.relay = RelayId::new();
    assert!(owner.fetch_with(&stranger).await.rows.is_empty(), "nor does one that was never heard of");
}

/// Each of two relays reads its own buckets, and both together everything.
pub async fn two_relays_read_disjoint_parts<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut first = Relay::start(&store).await;
    let mut second = Relay::start(&store).await;
    let surplus: Vec<_> = first.leases[..128].to_vec();
    first.release(&surplus, false).await;
    first.beat().await;
    second.beat().await;
    let written: Vec<_> = (0..100).map(|at| message("orders", &format!("key-{at}"))).collect();
    write(&*store, written.iter().cloned()).await;

    let (one, two) = (first.read().await, second.read().await);
    assert!(!one.is_empty() && !two.is_empty(), "a hundred keys are in the buckets of both");
    assert!(one.iter().all(|stored| first.owned().contains(stored.bucket)));
    assert!(two.iter().all(|stored| second.owned().contains(stored.bucket)));
    assert_eq!(one.len() + two.len(), written.len());
}

/// An expired lease reads nothing, even if no other relay took the bucket.
pub async fn an_expired_lease_reads_nothing<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut relay = Relay::on(&store, Default::default(), SHORT).await;
    write(&*store, messages("orders", "a", 1)).await;
    harness.advance(OVER).await;
    assert!(relay.fetch().await.is_empty(), "the lease is over");
    relay.lasts = LONG;
    relay.beat().await;
    assert_eq!(relay.read().await.len(), 1, "and with a new one it reads again");
}

/// A fetch says when the relay lacks the lease of a bucket that it asks for: then missing rows
/// prove nothing.
pub async fn a_fetch_says_when_a_lease_is_missing<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    write(&*store, messages("orders", "a", 3)).await;
    let relay = Relay::start(&store).await;
    let all = relay.fetch_request();
    let said = async |request: &FetchRequest| {
        let fetched = relay.fetch_with(request).await;
        let below = store.fetch_below(request).await.expect("a look below is answered");
        assert_eq!(below.lapsed, fetched.lapsed, "a look below says the same");
        (fetched.rows.len(), fetched.lapsed)
    };
    // One is cut short by its limit of bytes, one by its limit of rows, one has nothing to look at.
    let (mut by_bytes, mut by_rows, mut nothing) = (all.clone(), all.clone(), all.clone());
    (by_bytes.bytes, by_rows.limit, nothing.until) = (1, 2, Position::START);
    let every = [(&all, 3), (&by_bytes, 1), (&by_rows, 2), (&nothing, 0)];
    for (request, rows) in every {
        assert_eq!(said(request).await, (rows, false), "every lease is held: {request:?}");
    }

    let own = message("orders", "a").bucket();
    let given = relay.leases.iter().find(|lease| lease.bucket != own).copied();
    let given = given.expect("it owns every bucket");
    relay.release(&[given], false).await;
    for (request, rows) in every {
        assert_eq!(said(request).await, (rows, true), "one lease is missing: {request:?}");
    }
    let mut held = all.clone();
    held.buckets = all.buckets.without(&[given.bucket].into_iter().collect());
    assert_eq!(said(&held).await, (3, false), "it holds every bucket that it asks for");

    let mut stranger = all.clone();
    stranger.relay = RelayId::new();
    assert_eq!(said(&stranger).await, (0, true), "a relay without leases");
    stranger.route = route("audit");
    assert_eq!(said(&stranger).await, (0, true), "a route that no relay has asked for");
    let late = Relay::on(&store, route("late"), SHORT).await;
    harness.advance(OVER).await;
    assert_eq!(said(&late.fetch_request()).await, (0, true), "leases that have expired");
}

/// A fetch returns only the requested buckets among those that are owned.
pub async fn a_fetch_reads_only_the_buckets_asked_for<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let written: Vec<_> = (0..50).map(|at| message("orders", &format!("key-{at}"))).collect();
    write(&*store, written.iter().cloned()).await;
    let wanted: BucketSet = (0..=127).map(Bucket).collect();
    let mut request = relay.fetch_request();
    request.buckets = wanted;
    let expected = written.iter().filter(|message| wanted.contains(message.bucket()));
    assert_eq!(sorted(read_ids(relay.fetch_with(&request).await.rows)), sorted(ids(expected)));
    request.buckets = BucketSet::EMPTY;
    assert!(relay.fetch_with(&request).await.rows.is_empty());
}

/// Rows behind a failing message of their key are flagged, and come without content; rows of other
/// keys do not.
pub async fn rows_of_failing_keys_are_flagged<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let failing = messages("orders", "failing", 3);
    let fine = message("orders", "fine");
    write(&*store, failing.iter().cloned().chain([fine.clone()])).await;
    let head = relay.read_key(&failing[0].key_id()).await;
    relay.fail(&head[..1], LATER).await;

    let (mut flagged, mut others) = (Vec::new(), Vec::new());
    for row in relay.fetch().await {
        match row {
            FetchedRow::Failing(waiting) => {
                assert_eq!((&waiting.key, waiting.bucket), (&failing[0].key_id(), failing[0].bucket()));
                flagged.push(waiting.at);
            }
            row => others.push(published(row).message.id),
        }
    }
    assert_eq!(flagged, [head[1].row(), head[2].row()], "the failing message itself is not hot any more");
    assert_eq!(others, [fine.id]);
}

/// A fetch sees every settle that returned before it began: a relay that waits for its own writes
/// reads nothing twice.
pub async fn a_fetch_sees_every_settle_that_returned_before_it<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    for turn in 0..20 {
        write(&*store, messages("orders", &format!("key-{turn}"), 2)).await;
        let read = relay.read().await;
        assert_eq!(read.len(), 2, "turn {turn}: only what was not settled");
        relay.settle(&read).await;
    }
    assert!(relay.fetch().await.is_empty());
}

/// Each route has rows, relays and leases of its own.
pub async fn routes_do_not_see_each_other<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let default = Relay::start(&store).await;
    write(&*store, messages("orders", "a", 1)).await;
    let audit = Relay::on(&store, route("audit"), LONG).await;
    assert_eq!(
        audit.leases.len(),
        outbox_contract::backend::BUCKETS,
        "the other route's relay is no competition"
    );
    assert!(audit.fetch().await.is_empty());
    let mut foreign = default.fetch_request();
    foreign.route = route("audit");
    assert!(
        store.fetch(&foreign).await.expect("answered").rows.is_empty(),
        "leases of one route read no other"
    );
}

/// A fetch changes nothing: a second one returns the same rows.
pub async fn a_fetch_repeated_gives_the_same_rows<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    write(&*store, messages("orders", "a", 3)).await;
    assert_eq!(relay.read().await, relay.read().await);
}

/// Sorts rows of several keys, which are unordered among each other.
fn sorted(mut ids: Vec<outbox_contract::MessageId>) -> Vec<outbox_contract::MessageId> {
    ids.sort_unstable();
    ids
}

fn read_ids(rows: Vec<FetchedRow>) -> Vec<outbox_contract::MessageId> {
    rows.into_iter().map(|row| published(row).message.id).collect()
}
