//! The writing side: transactions, appending and deduplication.

use std::collections::BTreeSet;
use std::sync::Arc;

use outbox_contract::backend::{Blame, Committed, Dedup, Ordering, Stored};
use outbox_contract::{
    AppendError, Consumer, Message, MessageId, Outgoing, Route, StoreError, Transactional, async_trait,
};

use crate::locks::LockName;
use crate::store::MemoryStore;
use crate::transaction::{MemoryTx, SessionTerminated};

#[async_trait]
impl Transactional for MemoryStore {
    type Tx<'t> = MemoryTx;
    type Connection = MemoryTx;

    fn connection(tx: &mut MemoryTx) -> &mut MemoryTx {
        tx
    }

    async fn begin(&self) -> Result<MemoryTx, StoreError> {
        Ok(MemoryTx::begin(Arc::clone(&self.shared)))
    }

    async fn commit(&self, tx: MemoryTx) -> Committed {
        if let Err(error) = tx.check(&self.shared, "commit") {
            return Committed::No(error);
        }
        match tx.commit() {
            Ok(()) => {
                self.shared.wakeup_signal.transaction_committed();
                Committed::Yes
            }
            Err(error) => Committed::No(error),
        }
    }

    async fn rollback(&self, tx: MemoryTx) -> Result<(), StoreError> {
        drop(tx);
        Ok(())
    }

    async fn append(&self, tx: &mut Self::Tx<'_>, messages: &[Outgoing]) -> Result<(), AppendError> {
        for outgoing in messages {
            outgoing.message.validate()?;
        }
        tx.check(&self.shared, "append")?;
        if messages.is_empty() {
            return Ok(());
        }
        tx.lock(self.locks_to_append(messages), "append").await?;
        tx.append(messages);
        self.shared.wakeup_signal.appended();
        Ok(())
    }

    /// This transaction blocks no other: it looks again when it commits.
    async fn fence(
        &self,
        tx: &mut Self::Tx<'_>,
        route: &Route,
        stored: &[&Stored],
    ) -> Result<Vec<bool>, StoreError> {
        tx.check(&self.shared, "fence")?;
        let state = self.shared.state();
        let wait: Vec<bool> = stored.iter().map(|stored| state.tables.waits(route, stored)).collect();
        let waiting = stored.iter().zip(&wait).filter(|(_, waits)| **waits);
        tx.written.fenced.extend(waiting.map(|(stored, _)| (route.clone(), (*stored).clone())));
        Ok(wait)
    }

    async fn deduplicate(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &Consumer,
        messages: &[&Message],
    ) -> Result<Vec<Dedup>, StoreError> {
        tx.check(&self.shared, "deduplicate")?;
        let locks = match self.shared.ordering {
            Ordering::Single => BTreeSet::from([LockName::Writer]),
            _ => messages.iter().map(|message| LockName::Dedup(consumer.clone(), message.id)).collect(),
        };
        tx.lock(locks, "deduplicate").await?;
        let shared = Arc::clone(&tx.shared);
        let mut state = shared.state();
        let mut handled_ids = Vec::with_capacity(messages.len());
        for message in messages {
            let deduplication = state.tables.deduplication(consumer, message, &tx.written);
            if deduplication == Dedup::New {
                let name = (message.topic.clone(), message.key.clone());
                tx.written.handled.insert((consumer.clone(), message.id), name);
            }
            handled_ids.push(deduplication);
        }
        Ok(handled_ids)
    }

    async fn is_handled(&self, consumer: &Consumer, id: MessageId) -> Result<bool, StoreError> {
        Ok(self.shared.state().tables.is_handled(consumer, id))
    }

    fn blame(&self, error: &(dyn std::error::Error + 'static)) -> Blame {
        if error.is::<SessionTerminated>() { Blame::Environment } else { Blame::Handler }
    }
}

impl MemoryStore {
    /// The locks under which these messages are appended. Scheduled ones join their keys later, and
    /// those without a key have no order.
    fn locks_to_append(&self, messages: &[Outgoing]) -> BTreeSet<LockName> {
        let ordering = self.shared.ordering;
        if ordering == Ordering::Single {
            return BTreeSet::from([LockName::Writer]);
        }
        // In a stripe every row has its number.
        let ordered = |outgoing: &&Outgoing| {
            outgoing.due.is_none() && (outgoing.message.key.is_some() || ordering == Ordering::Stripes)
        };
        let lock = |outgoing: &Outgoing| LockName::to_append(ordering, &outgoing.route, &outgoing.message);
        messages.iter().filter(ordered).map(lock).collect()
    }
}
