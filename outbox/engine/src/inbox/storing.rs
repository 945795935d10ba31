//! Messages into the store, behind those that wait there for the consumer.

use outbox_contract::{AppendError, Codec, Failure, Message, Outgoing, StoreErrorKind, Transactional};

use super::processor::{CONFLICT_TRIES, Processor};
use super::stand_in::refused;
use super::steps::Step;
use super::verdict::{Broken, Trouble, Verdict};

impl<S: Transactional, C: Codec> Processor<S, C> {
    /// Writes messages in their order: together; where the store refuses to keep one of them, the others by themselves, and what stands for it.
    pub(crate) async fn store_all(&self, messages: &[&Message]) -> Result<(), Broken> {
        // The first last.
        let mut left = vec![messages];
        while let Some(some) = left.pop() {
            let Some(refusal) = self.store_together(some).await? else { continue };
            if let [message] = some {
                self.store_stand_in(message, &refusal).await?;
            } else {
                let (first, second) = some.split_at(some.len() / 2);
                left.extend([second, first]);
            }
        }
        Ok(())
    }

    async fn store_stand_in(&self, message: &Message, refusal: &Failure) -> Result<(), Broken> {
        let (consumer, id) = (&self.consumer, message.id);
        tracing::error!(%consumer, %id, %refusal, "the store does not keep a message; it becomes a dead letter without its payload");
        match self.store_together(&[&refused(message, &refusal.message)]).await? {
            None => Ok(()),
            // Then it is not the message that is wrong.
            Some(refusal) => Err(Broken::Away(format!("it keeps nothing at all: {refusal}"))),
        }
    }

    /// Writes messages in one transaction. Says why, if the store refuses to keep one of them.
    async fn store_together(&self, messages: &[&Message]) -> Result<Option<Failure>, Broken> {
        let rows: Vec<Outgoing> = messages
            .iter()
            .map(|message| Outgoing::from((*message).clone()).by(self.route.clone()))
            .collect();
        let mut tries = 1;
        loop {
            match self.store_once(&rows).await {
                Ok(()) => return Ok(None),
                Err(Trouble::Handler(Verdict::Rejected(refusal))) => return Ok(Some(refusal)),
                Err(Trouble::Broken(broken)) => return Err(broken),
                Err(_) if tries < CONFLICT_TRIES => {
                    self.transactions.pause(tries).await;
                    tries += 1;
                }
                Err(trouble) => return Err(Broken::Away(format!("{trouble:?}"))),
            }
        }
    }

    async fn store_once(&self, rows: &[Outgoing]) -> Result<(), Trouble> {
        let mut open = self.begin().await?;
        let append = self.store.append(&mut open.tx, rows);
        if let Err(trouble) = self.transactions.in_time("append", append, trouble_of).await {
            self.transactions.roll_back(open).await;
            return Err(trouble);
        }
        self.steps.over(Step::Appended);
        self.commit(open, None).await
    }
}

/// What it means that messages could not be written: a rejection, where one of them is at fault.
fn trouble_of(error: &AppendError) -> Trouble {
    let is_refused = match error {
        AppendError::Message(_) => true,
        AppendError::Store(error) => error.kind() == StoreErrorKind::Invalid,
        _ => false,
    };
    match error {
        _ if is_refused => Trouble::Handler(Verdict::Rejected(Failure::new("refused", error.to_string()))),
        AppendError::Conflict(error) | AppendError::Store(error) => Trouble::of(error),
        other => Trouble::away(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::{MessageError, StoreError};

    use super::*;

    #[test]
    fn only_what_the_store_refuses_is_the_messages_fault() {
        let store = |kind| AppendError::Store(StoreError::new(kind, "append", "tested"));
        for refused in [MessageError::SchemaVersion.into(), store(StoreErrorKind::Invalid)] {
            assert!(matches!(trouble_of(&refused), Trouble::Handler(Verdict::Rejected(_))), "{refused}");
        }
        for kind in [StoreErrorKind::NotPermitted, StoreErrorKind::NotMigrated, StoreErrorKind::Other] {
            assert!(matches!(trouble_of(&store(kind)), Trouble::Broken(Broken::Away(_))), "{kind:?}");
        }
        let conflict = AppendError::Conflict(StoreError::new(StoreErrorKind::Conflict, "append", "tested"));
        assert!(matches!(trouble_of(&conflict), Trouble::Again(_)));
    }
}
