//! Wake-ups of a relay by another process, on every database that can't notify: the relay hears of
//! a commit although none of its own looks at the database comes through.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use outbox_contract::backend::{StoreCall, StoreLayer, Wakeup};
use outbox_contract::{Message, Outgoing, Store, StoreError};
use outbox_testkit::{RecordingTransport, eventually};
use outbox_tests::fresh::Fresh;
use outbox_tests::kind::{StoreKind, TransportKind};
use outbox_tests::ledger::{self, Written};
use outbox_tests::pair::Pair;
use outbox_tests::record::PATIENCE;
use tokio::sync::watch;

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_another_process_wakes_a_relay_on_mysql() {
    a_commit_of_another_process_wakes_a_relay(StoreKind::MySql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_another_process_wakes_a_relay_on_mariadb() {
    a_commit_of_another_process_wakes_a_relay(StoreKind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_another_process_wakes_a_relay_on_sqlite() {
    a_commit_of_another_process_wakes_a_relay(StoreKind::Sqlite).await;
}

/// A store whose relay looks for messages only behind a wake-up, once the gate was closed.
struct Gated {
    inner: Arc<dyn Store>,
    is_open: Arc<watch::Sender<bool>>,
    waits: AtomicBool,
}

impl StoreLayer for Gated {
    type Inner = dyn Store;

    fn inner(&self) -> &Self::Inner {
        &*self.inner
    }

    async fn around<T: Send, E: From<StoreError> + Send>(
        &self,
        call: StoreCall,
        effect: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        if matches!(call, StoreCall::Fetch | StoreCall::FetchBelow | StoreCall::Stripes) {
            let mut is_open = self.is_open.subscribe();
            if !*is_open.borrow_and_update() {
                self.waits.store(true, Ordering::SeqCst);
                is_open.wait_for(|is_open| *is_open).await.expect("the gate lives");
            }
        }
        effect.await
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        let is_open = Arc::clone(&self.is_open);
        Store::wakeups(&*self.inner)
            .inspect(move |_| {
                is_open.send_replace(true);
            })
            .boxed()
    }
}

async fn a_commit_of_another_process_wakes_a_relay(kind: StoreKind) {
    let Some(fresh) = Fresh::new(kind, TransportKind::Memory).await else { return };
    let relayed = ledger::open(&fresh.pair.database).await.unwrap();
    relayed.prepare().await.unwrap();
    let other = ledger::open(&fresh.pair.database).await.unwrap();
    let (gate, _) = watch::channel(true);
    let store =
        Arc::new(Gated { inner: relayed.store(), is_open: Arc::new(gate), waits: AtomicBool::new(false) });
    let broker = Arc::new(RecordingTransport::new());
    let relay = Pair::relay(Arc::<Gated>::clone(&store), Arc::<RecordingTransport>::clone(&broker));
    let relay = relay.start().await.unwrap();
    let write = async || {
        let message = Message::new("orders", "order.placed").unwrap().with_key("a").unwrap();
        let written = other.write(&[Outgoing::from(message)], &|| {}).await;
        assert!(matches!(written, Written::Yes), "{written:?}");
    };

    write().await;
    assert!(eventually(PATIENCE, || async { broker.len() == 1 }).await);
    // From now on the relay looks for nothing, until it is woken. One look waits, so none is under
    // way.
    store.is_open.send_replace(false);
    assert!(eventually(PATIENCE, || async { store.waits.load(Ordering::SeqCst) }).await);
    write().await;
    assert!(eventually(PATIENCE, || async { broker.len() == 2 }).await, "the relay is not woken");
    assert!(relay.stop(Duration::from_secs(60)).await);
}
