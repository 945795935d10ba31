//! Watch: relays hear of what others commit to the file, and one watches for all of them.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use outbox_contract::Store;
use outbox_contract::backend::Wakeup;
use outbox_store_sqlite::SqliteStore;

use super::support::{Fixture, append, fetch, lease, message, messages, relay};

/// Longer than anything takes that a test waits for, on however slow a machine.
const LONG: Duration = Duration::from_secs(60);

async fn woken(stream: &mut BoxStream<'static, Wakeup>) {
    let heard = tokio::time::timeout(LONG, stream.next()).await.expect("nobody is woken");
    assert_eq!(heard, Some(Wakeup::Now));
}

#[tokio::test]
async fn a_commit_of_another_process_wakes_relays() {
    let fixture = Fixture::new().await;
    let other = SqliteStore::open(fixture.path()).await.unwrap();
    let relay = relay(&fixture.store).await;
    let mut stream = fixture.store.wakeups();
    for turn in 0..3 {
        assert_eq!(fetch(&fixture.store, relay).await.rows.len(), turn);
        append(&other, [message(&format!("key-{turn}"), "")]).await;
        woken(&mut stream).await;
    }
}

/// Leases and settlements change the file as well.
#[tokio::test]
async fn what_relays_write_wakes_nobody() {
    let fixture = Fixture::new().await;
    let other = SqliteStore::open(fixture.path()).await.unwrap();
    let relay = relay(&fixture.store).await;
    append(&other, (0..200).map(|n| message(&format!("key-{n}"), ""))).await;
    let read = messages(&fetch(&fixture.store, relay).await);
    let mut stream = fixture.store.wakeups();
    let writing = async {
        for stored in &read {
            other.settle(&Default::default(), &[stored.row()]).await.unwrap();
            lease(&other, relay).await;
        }
    };
    tokio::select! {
        biased;
        heard = stream.next() => panic!("{heard:?}"),
        () = writing => {}
    }
    append(&other, [message("a", "")]).await;
    woken(&mut stream).await;
}

#[tokio::test]
async fn one_relays_watch_serves_all_and_another_takes_its_seat() {
    let fixture = Fixture::new().await;
    let other = SqliteStore::open(fixture.path()).await.unwrap();
    let relay = relay(&fixture.store).await;
    assert_eq!(fetch(&fixture.store, relay).await.rows.len(), 0);
    let (mut first, mut second) = (fixture.store.wakeups(), fixture.store.wakeups());
    append(&other, [message("a", "")]).await;
    tokio::join!(woken(&mut first), woken(&mut second));
    drop(first);
    append(&other, [message("b", "")]).await;
    woken(&mut second).await;
}
