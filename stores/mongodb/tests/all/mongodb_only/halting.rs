//! A program that stops in the middle of something: its statements up to then are done, and nothing
//! more is heard of it until it may go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};

use mongodb::Client;
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::ClientOptions;
use outbox_store_mongodb::MongoDbStore;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::support::{Fixture, LONG};

/// A store on threads of its own, which stop right before the first command of a kind is sent.
pub(crate) struct Halting {
    pub(crate) store: MongoDbStore,
    runtime: Option<Runtime>,
    halted: UnboundedReceiver<()>,
    /// Dropped: it goes on.
    goes_on: Option<mpsc::Sender<()>>,
}

impl Halting {
    /// `command` and the collection that it is of.
    pub(crate) async fn before(fixture: &Fixture, command: &'static str, collection: &'static str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (tells, halted) = unbounded_channel();
        let (goes_on, waits) = mpsc::channel::<()>();
        let waits = Mutex::new(waits);
        let is_first = AtomicBool::new(true);
        let halts = EventHandler::callback(move |event| {
            let CommandEvent::Started(started) = event else { return };
            let is_meant = started.command.get_str(command).is_ok_and(|of| of == collection);
            if is_meant && is_first.swap(false, Ordering::SeqCst) {
                tells.send(()).ok();
                waits.lock().unwrap().recv().ok();
            }
        });
        let (url, options) = (fixture.url.clone(), fixture.store.options().clone());
        let opened = runtime.spawn(async move {
            let mut client = ClientOptions::parse(&url).await.unwrap();
            client.command_event_handler = Some(halts);
            let database = client.default_database.clone().unwrap();
            let client = Client::with_options(client).unwrap();
            MongoDbStore::with_options(client, &database, options).unwrap()
        });
        let store = opened.await.unwrap();
        Self { store, runtime: Some(runtime), halted, goes_on: Some(goes_on) }
    }

    /// Begins something, and returns when it has stopped in it.
    pub(crate) async fn begin<T: Send + 'static>(
        &mut self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        let begun = self.runtime.as_ref().unwrap().spawn(work);
        tokio::time::timeout(LONG, self.halted.recv()).await.unwrap().unwrap();
        begun
    }

    pub(crate) fn go_on(&mut self) {
        self.goes_on = None;
    }
}

/// A command that it has begun never ends.
impl Drop for Halting {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
