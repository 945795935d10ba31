//! A store that fails, or gives no answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox::admin::{Filter, Listed, View};
use outbox::backend::{StoreCall, StoreLayer};
use outbox::memory::MemoryStore;
use outbox::{Admin, StoreError, StoreErrorKind};
use outbox_dashboard::Dashboard;

use crate::world::{Browser, PAGES, World};

/// A store in which counting takes two seconds.
#[derive(Clone)]
struct Slow {
    store: MemoryStore,
    counts: Arc<AtomicUsize>,
}

impl StoreLayer for Slow {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.store
    }

    async fn around<T: Send, E: From<StoreError> + Send>(
        &self,
        call: StoreCall,
        effect: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        if matches!(call, StoreCall::Backlog | StoreCall::Topics) {
            tokio::time::sleep(Duration::from_secs(2)).await;
            self.counts.fetch_add(1, Ordering::Relaxed);
        }
        effect.await
    }
}

/// A store with a history that takes a minute to be searched.
#[derive(Clone)]
struct LongHistory(MemoryStore);

impl StoreLayer for LongHistory {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.0
    }

    async fn browse(&self, view: View, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        if view == View::History {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        self.0.browse(view, filter).await
    }
}

#[tokio::test]
async fn a_key_is_shown_however_long_its_history_takes() {
    let world = World::full().await;
    let store = LongHistory(world.store.clone());
    let browser = Browser::of(Dashboard::builder(store).build());
    let page = browser.get("/key?topic=orders&key=held").await.is(200);
    let page = page.says("Release").says("it is parked").says("The history is large");
    page.says("/messages?route=default&amp;topic=orders&amp;key=held&amp;view=history");
}

/// A store whose calls fail after so many.
#[derive(Clone)]
struct Failing {
    store: MemoryStore,
    left: Arc<AtomicUsize>,
    /// True: it gives no answer instead of an error.
    hangs: bool,
}

impl StoreLayer for Failing {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.store
    }

    async fn around<T: Send, E: From<StoreError> + Send>(
        &self,
        _: StoreCall,
        effect: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left.is_ok() {
            return effect.await;
        }
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let said = "connection <b>lost</b> to db with s3cret";
        Err(StoreError::new(StoreErrorKind::Unavailable, "browse", said).into())
    }
}

fn failing(world: &World, after: usize, hangs: bool) -> (Browser, Arc<AtomicUsize>) {
    let left = Arc::new(AtomicUsize::new(after));
    let store = Failing { store: world.store.clone(), left: Arc::clone(&left), hangs };
    let timeout = Duration::from_millis(if hangs { 20 } else { 60_000 });
    let builder =
        Dashboard::builder(store).store_timeout(timeout).redact(|text| text.replace("s3cret", "***"));
    // Samples would take some of the calls.
    let browser = Browser::of(builder.sample_every(Duration::from_secs(86_400)).build());
    (browser, left)
}

#[tokio::test]
async fn a_store_that_fails_is_a_page_with_its_code_and_a_remedy() {
    let world = World::full().await;
    for path in PAGES.into_iter().chain(["/settings", "/key?topic=orders&key=held", "/confirm?op=purge"]) {
        let (browser, _) = failing(&world, 0, false);
        let page = browser.get(path).await.is(503);
        let page = page.says("OBX-STORE-UNAVAILABLE").says("What to do:").says("connection &lt;b&gt;lost");
        page.hides("s3cret").says("Overview");
    }
}

#[tokio::test]
async fn a_store_that_fails_in_the_middle_of_a_page_fails_the_page() {
    let world = World::full().await;
    for after in 0..12 {
        for path in PAGES.into_iter().chain(["/key?topic=orders&key=held"]) {
            let (browser, _) = failing(&world, after, false);
            let answer = browser.get(path).await;
            assert!([200, 503].contains(&answer.status.as_u16()), "{path} after {after}: {answer:#?}");
            if answer.status == 503 {
                answer.says("OBX-STORE-UNAVAILABLE");
            }
        }
    }
}

#[tokio::test]
async fn a_store_that_gives_no_answer_holds_up_no_page() {
    let world = World::full().await;
    for path in PAGES.into_iter().chain(["/settings"]) {
        let (browser, _) = failing(&world, 0, true);
        browser.get(path).await.is(504).says("OBX-STORE-UNAVAILABLE").says("may have taken effect");
    }
}

#[tokio::test]
async fn an_operation_that_is_cut_short_tells_what_it_did() {
    let world = World::new();
    for key in ["a", "b", "c"] {
        let id = world.order(key).await;
        world.fail(id, "no", true).await;
    }
    let (browser, left) = failing(&world, usize::MAX, false);
    let form = browser.get("/keys").await.is(200).form("Release all");
    // The first sample would take some of the calls.
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    // The list of keys, and one of the three.
    left.store(2, Ordering::Relaxed);
    let sent = browser.send(&form).await.is(303);
    left.store(usize::MAX, Ordering::Relaxed);
    browser.get(&sent.location()).await.is(200).says("Released 1 key. More remain; do it again to continue.");
}

#[tokio::test]
async fn an_operation_that_did_nothing_is_an_error() {
    let world = World::full().await;
    let (browser, left) = failing(&world, usize::MAX, false);
    let form = browser.get("/confirm?op=purge").await.is(200).form_of_confirmation();
    left.store(0, Ordering::Relaxed);
    browser.send(&form).await.is(503).says("an operation may have taken effect");
    assert_eq!(world.number(View::DeadLetters).await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_took_long_to_count_is_counted_again_after_a_while_or_an_operation() {
    let world = World::full().await;
    let counts = Arc::new(AtomicUsize::new(0));
    let store = Slow { store: world.store.clone(), counts: Arc::clone(&counts) };
    let day = Duration::from_secs(86_400);
    let browser = Browser::of(Dashboard::builder(store).sample_every(day).build());
    // The first sample is taken meanwhile.
    browser.get("/settings").await.is(200);
    tokio::time::sleep(day / 2).await;
    for path in ["/", "/topics"] {
        // Of the samples.
        counts.store(0, Ordering::Relaxed);
        let page = async || {
            browser.get(path).await.is(200);
            counts.swap(0, Ordering::Relaxed)
        };
        assert_eq!([page().await, page().await], [1, 0], "{path}");
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert_eq!(page().await, 0, "{path}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!([page().await, page().await], [1, 0], "{path}");
        browser.press("/key?topic=orders&key=waiting", "Hold").await;
        // What began to be counted in the instant of the operation may not know of it.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!([page().await, page().await], [1, 0], "{path} after an operation");
        browser.press("/key?topic=orders&key=waiting", "Release: try again now").await;
        tokio::time::sleep(day / 2).await;
    }
}
