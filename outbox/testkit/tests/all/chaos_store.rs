//! The faults that are injected are the faults that are seen, and after a calm nothing goes wrong
//! any more.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test, also in its helpers")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use outbox_contract::admin::{Actor, Filter};
use outbox_contract::backend::{BucketSet, Committed, FetchRequest, RelayId};
use outbox_contract::{Admin, AdminExt, Message, Route, Store, StoreErrorKind, Transactional};
use outbox_store_memory::MemoryStore;
use outbox_testkit::StoreCall;
use outbox_testkit::chaos_store::{ChaosStore, CommitFault, StoreFault, StoreFaultRates};
use outbox_testkit::store_suite::{Capability, StoreHarness};
use tokio::time::{Instant, timeout};

fn chaos(seed: u64) -> ChaosStore<MemoryStore> {
    ChaosStore::new(Arc::new(MemoryStore::builder().build()), seed)
}

fn message() -> Message {
    Message::new("orders", "test.event").unwrap().with_key("a").unwrap()
}

async fn pending(store: &ChaosStore<MemoryStore>) -> u64 {
    store.inner().backlog(&Route::default()).await.unwrap().pending
}

/// Appends one message and commits, with this fault at the commit.
async fn commit_with(store: &ChaosStore<MemoryStore>, fault: StoreFault) -> Option<Committed> {
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, &[message().into()]).await.unwrap();
    store.inject(StoreCall::Commit, fault, 1);
    timeout(Duration::from_secs(60), store.commit(tx)).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_fault_before_has_no_effect_and_one_after_has() {
    let store = chaos(1);
    for (fault, expected) in [(StoreFault::Before, false), (StoreFault::After, true)] {
        store.inject(StoreCall::Elect, fault, 1);
        let role = format!("{fault:?}");
        let lasts = Duration::from_secs(60);
        let error = store.elect(&role, RelayId::new(), lasts).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        // Somebody else gets the role only if the first one did not.
        assert_eq!(store.elect(&role, RelayId::new(), lasts).await.unwrap(), !expected);
    }
    assert_eq!((store.counts().before, store.counts().after, store.counts().calls), (1, 1, 4));
}

#[tokio::test(start_paused = true)]
async fn a_method_takes_as_long_as_it_was_told_to_through_a_calm_too() {
    let store = chaos(1);
    let latency = Duration::from_millis(7);
    store.set_latency_of(StoreCall::Backlog, latency);
    for _ in 0..2 {
        let began = Instant::now();
        store.backlog(&Route::default()).await.unwrap();
        assert_eq!(began.elapsed(), latency);
        store.check().await.unwrap();
        assert_eq!(began.elapsed(), latency, "the others take no time");
        store.calm();
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_goes_wrong_exactly_as_it_was_told_to() {
    let store = chaos(1);
    let commit = async || {
        let mut tx = store.begin().await.unwrap();
        store.append(&mut tx, &[message().into()]).await.unwrap();
        store.commit(tx).await
    };
    store.inject_commit(CommitFault::No, 2);
    assert_eq!(store.unspent(StoreCall::Commit), 2);
    for left in [1, 0] {
        assert!(matches!(commit().await, Committed::No(_)));
        assert_eq!((pending(&store).await, store.unspent(StoreCall::Commit)), (0, left));
    }
    store.inject_commit(CommitFault::Unknown, 1);
    assert!(matches!(commit().await, Committed::Unknown(_)));
    assert_eq!(pending(&store).await, 0);
    store.inject_commit(CommitFault::UnknownCommitted, 1);
    assert!(matches!(commit().await, Committed::Unknown(_)));
    assert_eq!(pending(&store).await, 1);
    let later = Duration::from_secs(60);
    store.inject_commit(CommitFault::UnknownCommitsLater(later), 1);
    let told = Instant::now();
    assert!(matches!(commit().await, Committed::Unknown(_)));
    assert_eq!((pending(&store).await, told.elapsed()), (1, Duration::ZERO), "it is told at once");
    // One transaction writes at a time here: the next one has to wait for it.
    assert!(matches!(commit().await, Committed::Yes));
    assert_eq!(pending(&store).await, 3);
    assert!(told.elapsed() >= later);
    let counts = store.counts();
    assert_eq!((counts.before, counts.after, counts.late), (3, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_never_returns_with_or_without_its_effect() {
    let store = chaos(1);
    for (fault, expected) in [(StoreFault::HangBefore, false), (StoreFault::HangAfter, true)] {
        store.inject(StoreCall::Elect, fault, 1);
        let role = format!("{fault:?}");
        let lasts = Duration::from_secs(1_000_000);
        let hung = timeout(Duration::from_secs(3_600), store.elect(&role, RelayId::new(), lasts)).await;
        assert!(hung.is_err());
        assert_eq!(store.elect(&role, RelayId::new(), lasts).await.unwrap(), !expected);
    }
    assert_eq!(store.counts().hung, 2);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_call_to_hang_finds_its_effect() {
    let delay = StoreFaultRates { delay: Duration::from_secs(1_000), ..StoreFaultRates::default() };
    let slow = Arc::new(chaos(1).with_rates(delay));
    let store = Arc::new(ChaosStore::new(Arc::clone(&slow), 1));
    let lasts = Duration::from_secs(1_000_000);
    store.inject(StoreCall::Elect, StoreFault::HangAfter, 1);
    let hanging = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.elect("role", RelayId::new(), lasts).await }
    });
    store.hangs().await;
    let another = slow.inner().elect("role", RelayId::new(), lasts).await.unwrap();
    assert!(!another, "the one that hangs was not elected yet");
    store.hangs().await;
    assert!(!hanging.is_finished());
    hanging.abort();
}

#[tokio::test(start_paused = true)]
async fn a_commit_tells_no_more_than_a_lost_connection_would() {
    let (mut nos, mut unknowns) = (0, 0);
    for seed in 0..20 {
        let store = chaos(seed);
        match commit_with(&store, StoreFault::Before).await {
            Some(Committed::No(_)) => nos += 1,
            Some(Committed::Unknown(_)) => unknowns += 1,
            other => panic!("a commit without an effect said {other:?}"),
        }
        assert_eq!(pending(&store).await, 0);
        let after = commit_with(&store, StoreFault::After).await;
        assert!(matches!(after, Some(Committed::Unknown(_))), "{after:?}");
        assert_eq!(pending(&store).await, 1);
        assert!(commit_with(&store, StoreFault::HangBefore).await.is_none());
        assert_eq!(pending(&store).await, 1, "dropped, it is rolled back");
        assert!(commit_with(&store, StoreFault::HangAfter).await.is_none());
        assert_eq!(pending(&store).await, 2);
    }
    assert!(nos > 0 && unknowns > 0, "both happen: {nos} and {unknowns}");
}

#[tokio::test(start_paused = true)]
async fn a_delay_is_part_of_the_longest() {
    let most = Duration::from_secs(10);
    let store = chaos(7).with_rates(StoreFaultRates { delay: most, ..StoreFaultRates::default() });
    let mut longest = Duration::ZERO;
    for _ in 0..50 {
        let began = Instant::now();
        store.check().await.unwrap();
        assert!(began.elapsed() <= most + Duration::from_millis(1));
        longest = longest.max(began.elapsed());
    }
    assert!(longest > most / 2, "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn one_seed_gives_one_sequence_of_faults_and_another_another() {
    async fn run(seed: u64) -> Vec<bool> {
        let store =
            chaos(seed).with_rates(StoreFaultRates { before: 0.3, after: 0.2, ..StoreFaultRates::default() });
        let request = FetchRequest::new(Route::default(), RelayId::new(), BucketSet::ALL);
        let mut failed = Vec::new();
        for _ in 0..200 {
            failed.push(store.fetch(&request).await.is_err());
        }
        let share = failed.iter().filter(|failed| **failed).count();
        assert!((60..=140).contains(&share), "about half of 200 fail, {share} did");
        failed
    }
    assert_eq!(run(1).await, run(1).await);
    assert_ne!(run(1).await, run(2).await);
}

#[tokio::test(start_paused = true)]
async fn rates_of_one_method_leave_the_others_alone() {
    let always = StoreFaultRates { before: 1.0, ..StoreFaultRates::default() };
    let store = chaos(1).with_rates_of(StoreCall::Backlog, always);
    assert!(store.backlog(&Route::default()).await.is_err());
    assert!(store.check().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn wake_ups_are_lost_and_the_stream_goes_on() {
    let always = StoreFaultRates { before: 1.0, ..StoreFaultRates::default() };
    let store = chaos(1).with_rates_of(StoreCall::Wakeups, always);
    let mut wakeups = store.wakeups();
    store.wakeup_signal().committed();
    assert!(timeout(Duration::from_secs(60), wakeups.next()).await.is_err(), "lost");
    store.calm();
    store.wakeup_signal().committed();
    assert!(timeout(Duration::from_secs(60), wakeups.next()).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn after_a_calm_nothing_goes_wrong() {
    let worst = StoreFaultRates { before: 0.5, hang_before: 0.5, ..StoreFaultRates::default() };
    let store = chaos(1).with_rates(worst.clone()).with_rates_of(StoreCall::Check, worst);
    store.inject(StoreCall::Backlog, StoreFault::HangAfter, 9);
    store.calm();
    for _ in 0..100 {
        store.check().await.unwrap();
        store.backlog(&Route::default()).await.unwrap();
    }
}

/// Without faults it is the store behind it: every method is passed on with its arguments and its
/// answer.
struct WithoutFaults(Arc<ChaosStore<MemoryStore>>);

impl StoreHarness for WithoutFaults {
    type Store = ChaosStore<MemoryStore>;
    const LACKS: &'static [Capability] = &[
        Capability::Migrations,
        Capability::OtherRetention,
        Capability::ClockBack,
        Capability::RefusedAudit,
        Capability::LastPosition,
        Capability::RestoredParked,
        Capability::SpoiledParked,
        Capability::ReleaseByHand,
    ];

    async fn fresh() -> Self {
        let store = MemoryStore::builder().history(Duration::from_secs(3_600)).build();
        Self(Arc::new(ChaosStore::new(Arc::new(store), 1)))
    }

    fn store(&self) -> Arc<ChaosStore<MemoryStore>> {
        Arc::clone(&self.0)
    }

    fn max_time(&self) -> Duration {
        Duration::from_secs(366 * 24 * 3_600)
    }
}

mod without_faults {
    use super::WithoutFaults;

    outbox_testkit::store_conformance!(WithoutFaults, start_paused = true);
}

/// Operations under another name fail, and are counted, as those of the store itself.
#[tokio::test(start_paused = true)]
async fn operations_under_the_name_of_an_actor_pass_the_layer() {
    let store = ChaosStore::new(Arc::new(MemoryStore::new()), 1);
    let (route, ann) = (Route::default(), Actor::new("ann"));
    store.inject(StoreCall::SetPaused, StoreFault::Before, 1);
    let admin = store.acting_as(Actor::new("bob"));
    let admin = admin.acting_as(ann.clone());
    admin.pause(&route, None).await.unwrap_err();
    admin.pause(&route, None).await.unwrap();
    assert_eq!((store.unspent(StoreCall::SetPaused), store.calls(StoreCall::SetPaused)), (0, 2));
    let entries = admin.audit(&Filter::all_routes()).await.unwrap();
    assert_eq!(entries.iter().map(|entry| &entry.actor).collect::<Vec<_>>(), [&ann]);
    assert_eq!(store.calls(StoreCall::Audit), 1);
}
