//! The ledger: a service that receives events and books each exactly once, in a database of its
//! own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use examples_shared::transports::Failed;
use outbox::inbox::InboxObserver;
use outbox::prelude::*;
use tokio::time::Instant;

use crate::databases::Database;
use crate::progress::Seen;
use crate::shop::OrderEvent;

/// Maximum time without progress.
const PATIENCE: Duration = Duration::from_secs(120);

// ANCHOR: book
/// Books an event. The booking and the record that the event was handled commit together.
async fn book<D: Database>(
    event: OrderEvent,
    context: &mut HandlerContext<'_, D, Arc<Seen>>,
) -> Result<(), HandlerError> {
    let (customer, number) = event.place_in_order();
    context.state().handled(customer, number);
    D::book(context.tx(), customer, i64::try_from(event.cents())?).await
}
// ANCHOR_END: book

/// The ledger's database, and its service.
pub(crate) struct Ledger<D: Database> {
    store: D,
    service: ServiceHandle<D>,
    booked_before: u64,
}

/// Content of the ledger at the end.
#[derive(Debug)]
pub(crate) struct Booked {
    /// Number of events of each customer that had their effect.
    pub(crate) effects: HashMap<String, u32>,
    /// Money that they moved.
    pub(crate) cents: i64,
    /// Number of deliveries, repeats included.
    pub(crate) delivered: u64,
    /// Number of deliveries of events that were booked before.
    pub(crate) repeated: u64,
}

impl<D: Database> Ledger<D> {
    /// Creates its table if it is missing, and begins to receive.
    pub(crate) async fn open(
        store: D,
        transport: Arc<dyn Transport>,
        seen: Arc<Seen>,
    ) -> Result<Self, Failed> {
        store.migrate().await?;
        store.make_ledger().await?;
        let mut booked_before = 0;
        for account in store.accounts().await? {
            seen.booked_before(&account.customer, account.events);
            booked_before += u64::from(account.events);
        }
        // ANCHOR: service
        let service = Service::builder("ledger", store.clone(), transport)
            .state(seen)
            .inbox("ledger", |inbox| inbox.on(book::<D>).batch(100))
            .without_relay() // it publishes nothing
            .start()
            .await?;
        // ANCHOR_END: service
        Ok(Self { store, service, booked_before })
    }

    /// Waits until this many events were booked, earlier runs included.
    pub(crate) async fn wait_for(&self, events: u64) -> Result<(), Failed> {
        let mut last = (0, Instant::now());
        loop {
            let booked = self.booked_before + self.stats().handled;
            if booked >= events {
                return Ok(());
            }
            if booked > last.0 {
                last = (booked, Instant::now());
            } else if last.1.elapsed() > PATIENCE {
                let reasons = self.service.health().reasons;
                let reasons = reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                let words =
                    format!("{booked} of {events} events are booked, and nothing more for {PATIENCE:?}");
                return Err(format!("{words}: {reasons}").into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn stats(&self) -> outbox::inbox::InboxStats {
        self.service.inbox("ledger").map(InboxObserver::stats).unwrap_or_default()
    }

    /// Stops the ledger, and returns its content.
    pub(crate) async fn close(self) -> Result<Booked, Failed> {
        self.service.shutdown(PATIENCE).await?;
        let (accounts, stats) = (self.store.accounts().await?, self.stats());
        Ok(Booked {
            cents: accounts.iter().map(|account| account.cents).sum(),
            effects: accounts.into_iter().map(|account| (account.customer, account.events)).collect(),
            delivered: stats.handled + stats.duplicates,
            repeated: stats.duplicates,
        })
    }
}
