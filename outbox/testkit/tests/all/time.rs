//! The clock and the ids of a test are under its control.

use std::time::Duration;

use outbox_contract::backend::Clock;
use outbox_testkit::time::{Ids, TestClock, eventually};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn the_wall_clock_and_the_elapsed_time_go_together() {
    let clock = TestClock::new(7);
    let began = clock.now();
    tokio::time::sleep(Duration::from_secs(10)).await;
    clock.suspend(Duration::from_secs(5));
    assert_eq!(clock.elapsed(), Duration::from_secs(15));
    assert_eq!(clock.now().since(began), Duration::from_secs(15));
}

#[tokio::test(start_paused = true)]
async fn one_seed_gives_one_time_and_one_row_of_ids() {
    assert_eq!(TestClock::new(7).now(), TestClock::new(7).now());
    assert_ne!(TestClock::new(7).now(), TestClock::new(8).now());
    let (one, same, other) = (Ids::new(7), Ids::new(7), Ids::new(8));
    let first = one.message();
    assert_eq!(first, same.message());
    assert_ne!(first, other.message());
    assert_ne!(first, one.message());
    assert_eq!(first.as_uuid().get_version_num(), 7);
    assert_eq!(first.as_uuid().get_variant(), uuid::Variant::RFC4122);
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_with_the_answer_or_at_the_limit() {
    let began = Instant::now();
    let after = |span| move || async move { began.elapsed() >= span };
    assert!(eventually(Duration::from_secs(10), after(Duration::from_secs(3))).await);
    assert!(began.elapsed() < Duration::from_secs(4));
    assert!(!eventually(Duration::from_secs(1), || async { false }).await);
}
