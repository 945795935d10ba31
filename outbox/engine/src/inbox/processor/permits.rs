//! Permits to run a handler: as often at once as it may, whatever the messages come from.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::{Codec, Message, Transactional};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::Processor;
use crate::inbox::process::{Errand, Process};

/// Time that stored messages wait for a handler that runs as often as it may: as long as short
/// calls take. Then others get their turn. Without a wait, nearly all would be put off where calls
/// are short; with a long one, they would hold the publishers of other handlers until
/// `publish_timeout`.
const PERMIT_WAIT: Duration = Duration::from_millis(50);

impl<S: Transactional, C: Codec> Processor<S, C> {
    /// Takes the permits of all handlers of these messages, always in the same order, so that two
    /// transactions never wait for each other. With those handlers of which there was none to be
    /// had.
    pub(super) async fn permits(
        &self,
        errand: &Errand<'_>,
        messages: impl Iterator<Item = &Message>,
    ) -> (Vec<OwnedSemaphorePermit>, BTreeSet<usize>) {
        let wanted: BTreeSet<usize> = messages.filter_map(|message| self.handler_of(message)).collect();
        let (mut permits, mut missing) = (Vec::with_capacity(wanted.len()), BTreeSet::new());
        let enough = Instant::now() + PERMIT_WAIT;
        for at in wanted {
            let Some(registered) = self.handlers.get(at) else { continue };
            let permit = Arc::clone(&registered.permits).acquire_owned();
            let permit =
                if errand.origin.is_store() { timeout_at(enough, permit).await } else { Ok(permit.await) };
            match permit {
                Ok(Ok(permit)) => permits.push(permit),
                // Too late. Never closed.
                Ok(Err(_)) | Err(_) => _ = missing.insert(at),
            }
        }
        (permits, missing)
    }
}
