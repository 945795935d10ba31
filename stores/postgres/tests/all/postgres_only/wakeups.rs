//! Wake-ups between programs: after the commit, through the server, and again after the connection
//! was lost.

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use outbox_contract::Store;
use outbox_contract::backend::Wakeup;

use super::support::{Fixture, LONG, append, message};

const LISTENING: &str =
    "select count(*) from pg_stat_activity where datname = current_database() and query like 'LISTEN%'";

/// Waits for the next wake-up of a kind.
async fn woken(stream: &mut BoxStream<'static, Wakeup>, kind: Wakeup) {
    let waiting = async { while stream.next().await.unwrap() != kind {} };
    tokio::time::timeout(LONG, waiting).await.expect("nobody is woken");
}

/// Starts to listen: a stream does nothing until it is polled.
async fn listening(fixture: &Fixture, store: &impl Store) -> BoxStream<'static, Wakeup> {
    let mut stream = store.wakeups();
    // The first one reports that it listens: messages may have been committed before.
    woken(&mut stream, Wakeup::Now).await;
    fixture.until(LISTENING, 1).await;
    stream
}

#[tokio::test]
async fn a_commit_of_another_program_wakes_listeners() {
    let Some(fixture) = Fixture::new().await else { return };
    let other = fixture.another().await;
    let mut stream = listening(&fixture, &fixture.store).await;
    append(&other, [message("a")]).await;
    woken(&mut stream, Wakeup::Now).await;
}

/// A program that commits on its own announces at the append that there will be a message soon.
#[tokio::test]
async fn a_plain_commit_of_another_program_is_hinted_at() {
    use outbox_contract::Transactional;
    let Some(fixture) = Fixture::new().await else { return };
    let other = fixture.another().await;
    let mut stream = listening(&fixture, &fixture.store).await;
    let mut tx = other.pool().begin().await.unwrap();
    other.append(&mut tx, &[message("a").into()]).await.unwrap();
    tx.commit().await.unwrap();
    woken(&mut stream, Wakeup::Soon).await;
}

#[tokio::test]
async fn a_notify_from_any_client_wakes_listeners() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut stream = listening(&fixture, &fixture.store).await;
    fixture.run("notify outbox").await;
    woken(&mut stream, Wakeup::Now).await;
}

#[tokio::test]
async fn a_listener_whose_connection_was_lost_listens_again() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut stream = listening(&fixture, &fixture.store).await;
    let ended = fixture
        .number(&format!(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where pid in (select pid {})",
            &LISTENING["select count(*) ".len()..]
        ))
        .await;
    assert_eq!(ended, 1);
    // A notification may have been lost meanwhile.
    woken(&mut stream, Wakeup::Now).await;
    fixture.run("notify outbox").await;
    woken(&mut stream, Wakeup::Now).await;
}

/// No transaction of the user waits for the lock of those that notify.
#[tokio::test]
async fn nothing_is_notified_inside_the_users_transaction() {
    let mut options = super::support::options();
    options.notify_interval = None;
    let Some(fixture) = Fixture::with(options).await else { return };
    let mut listener = sqlx::postgres::PgListener::connect(&fixture.url).await.unwrap();
    listener.listen("outbox").await.unwrap();
    append(&fixture.store, [message("a")]).await;
    // Earlier notifications arrive before this one.
    fixture.run("select pg_notify('outbox', 'end')").await;
    let heard = tokio::time::timeout(LONG, listener.recv()).await.unwrap().unwrap();
    assert_eq!(heard.payload(), "end");
}
