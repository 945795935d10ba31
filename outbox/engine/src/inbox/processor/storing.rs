//! Messages into the store, behind those that wait there for the consumer.

use std::borrow::Cow;
use std::collections::BTreeSet;

use outbox_contract::backend::Dedup;
use outbox_contract::{AppendError, Codec, Failure, Message, Outgoing, StoreErrorKind, Transactional};
use tokio::time::Instant;

use super::{CONFLICT_TRIES, Processor};
use crate::inbox::handlers::Action;
use crate::inbox::process::Errand;
use crate::inbox::steps::Step;
use crate::inbox::transaction_pool::Turn;
use crate::inbox::undecodable::{is_record, place_of, refused};
use crate::inbox::verdict::{Done, TransactionError, Verdict};

impl<S: Transactional, C: Codec> Processor<S, C> {
    /// Writes messages in their order: together; where the store refuses to keep one of them, the
    /// others by themselves, and what stands for it.
    pub(super) async fn store_all(
        &self,
        errand: &Errand<'_>,
        messages: &[&Message],
    ) -> Result<(), TransactionError> {
        let Some(turn) = self.pool.turn(errand).await else { return Err(TransactionError::NoTurn) };
        let wanted = self.wanted(messages).await?;
        // The first last.
        let mut left = if wanted.is_empty() { Vec::new() } else { vec![&*wanted] };
        while let Some(some) = left.pop() {
            let Some(refusal) = self.store_together(&turn, some).await? else { continue };
            if let [message] = some {
                self.store_stand_in(&turn, message, &refusal).await?;
            } else {
                let (first, second) = some.split_at(some.len() / 2);
                left.extend([second, first]);
            }
        }
        Ok(())
    }

    /// Selects what is to be stored of these: all but records that are no messages where this
    /// consumer ignores such, or has too many dead letters.
    async fn wanted<'m>(&self, messages: &[&'m Message]) -> Result<Vec<&'m Message>, TransactionError> {
        let records = messages.iter().filter(|message| is_record(message)).count();
        if records == 0 {
            return Ok(messages.to_vec());
        }
        if self.undecodables.is_stale(Instant::now()) {
            let backlog = self.pool.call("backlog", self.store.backlog(&self.route)).await?;
            self.undecodables.count(Instant::now(), backlog.dead);
        }
        let full = self.undecodables.full();
        let is_wanted = |message: &&&Message| {
            let Some(place) = place_of(message) else { return true };
            match (self.handlers.action(message), full) {
                (Action::Ignore, _) => {
                    self.counters.count(&Verdict::Done(Done::Ignored));
                    false
                }
                (Action::Reject(failure), Some(dead)) => {
                    self.counters.dropped(dead, place, &failure.message);
                    false
                }
                _ => true,
            }
        };
        Ok(messages.iter().filter(is_wanted).copied().collect())
    }

    async fn store_stand_in(
        &self,
        turn: &Turn<'_>,
        message: &Message,
        refusal: &Failure,
    ) -> Result<(), TransactionError> {
        let (consumer, id) = (&self.consumer, message.id);
        tracing::error!(%consumer, %id, %refusal, "the store refused a message; storing it as a dead letter without its payload");
        match self.store_together(turn, &[&refused(message, &refusal.message)]).await? {
            None => Ok(()),
            // Then it is not the message that is wrong.
            Some(refusal) => Err(TransactionError::unavailable(format!(
                "the store refused it without its payload too: {refusal}"
            ))),
        }
    }

    /// Writes messages in one transaction. Says why, if the store refuses to keep one of them.
    async fn store_together(
        &self,
        turn: &Turn<'_>,
        messages: &[&Message],
    ) -> Result<Option<Failure>, TransactionError> {
        let rows: Vec<Outgoing> = messages
            .iter()
            .map(|message| Outgoing::from((*message).clone()).by(self.route.clone()))
            .collect();
        let mut tries = 1;
        loop {
            match self.store_once(turn, &rows).await {
                Ok(()) => return Ok(None),
                Err(TransactionError::Handler(Verdict::Rejected(refusal))) => return Ok(Some(refusal)),
                Err(error @ (TransactionError::Store(_) | TransactionError::NoTurn)) => return Err(error),
                Err(_) if tries < CONFLICT_TRIES => {
                    self.pool.pause(tries).await;
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn store_once(&self, turn: &Turn<'_>, rows: &[Outgoing]) -> Result<(), TransactionError> {
        let mut open = self.begin(turn).await?;
        match self.append_new(&mut open.tx, rows).await {
            Ok(0) => {
                self.pool.roll_back(open).await;
                return Ok(());
            }
            Ok(_) => {}
            Err(error) => {
                self.pool.roll_back(open).await;
                return Err(error);
            }
        }
        self.steps.over(Step::Appended);
        self.commit(open, None).await
    }

    /// Appends rows, but for records that were stored before. Says how many.
    async fn append_new(
        &self,
        tx: &mut S::Tx<'static>,
        rows: &[Outgoing],
    ) -> Result<usize, TransactionError> {
        let known = self.known_records(tx, rows).await?;
        let new: Cow<'_, [Outgoing]> = if known.is_empty() {
            rows.into()
        } else {
            let new = rows.iter().enumerate().filter(|(at, _)| !known.contains(at));
            new.map(|(_, row)| row.clone()).collect()
        };
        if !new.is_empty() {
            self.pool.in_time("append", self.store.append(tx, &new), error_of).await?;
            self.undecodables.add(new.iter().filter(|row| is_record(&row.message)).count());
        }
        Ok(new.len())
    }

    /// Notes the records among these that are no messages as handled: each becomes one dead letter,
    /// whatever is delivered again. Gives those that were noted before.
    async fn known_records(
        &self,
        tx: &mut S::Tx<'static>,
        rows: &[Outgoing],
    ) -> Result<BTreeSet<usize>, TransactionError> {
        let (mut places, mut records) = (Vec::new(), Vec::new());
        for (at, row) in rows.iter().enumerate().filter(|(_, row)| is_record(&row.message)) {
            places.push(at);
            // Without its key: it is asked whether it is known, not whether it is its turn.
            records.push(Message::of(row.message.id, row.message.topic.clone(), &*row.message.event_type));
        }
        if records.is_empty() {
            return Ok(BTreeSet::new());
        }
        let asked: Vec<&Message> = records.iter().collect();
        let handled_ids =
            self.pool.call("deduplicate", self.store.deduplicate(tx, &self.consumer, &asked)).await?;
        let known = places.into_iter().zip(handled_ids);
        Ok(known.filter(|(_, deduplication)| *deduplication == Dedup::Duplicate).map(|(at, _)| at).collect())
    }
}

/// Translates an error of a write: a rejection, where one of the messages is at fault.
fn error_of(error: &AppendError) -> TransactionError {
    let is_refused = match error {
        AppendError::Message(_) => true,
        AppendError::Store(error) => error.kind() == StoreErrorKind::Invalid,
        _ => false,
    };
    match error {
        _ if is_refused => {
            TransactionError::Handler(Verdict::Rejected(Failure::new("refused", error.to_string())))
        }
        AppendError::Conflict(error) | AppendError::Store(error) => TransactionError::of(error),
        other => TransactionError::unavailable(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::{MessageError, StoreError};

    use super::*;
    use crate::inbox::verdict::StoreFailure;

    #[test]
    fn only_what_the_store_refuses_is_the_messages_fault() {
        let store = |kind| AppendError::Store(StoreError::new(kind, "append", "tested"));
        for refused in [MessageError::SchemaVersion.into(), store(StoreErrorKind::Invalid)] {
            assert!(
                matches!(error_of(&refused), TransactionError::Handler(Verdict::Rejected(_))),
                "{refused}"
            );
        }
        for kind in [StoreErrorKind::NotPermitted, StoreErrorKind::NotMigrated, StoreErrorKind::Other] {
            assert!(
                matches!(error_of(&store(kind)), TransactionError::Store(StoreFailure::Unavailable(_))),
                "{kind:?}"
            );
        }
        let conflict = AppendError::Conflict(StoreError::new(StoreErrorKind::Conflict, "append", "tested"));
        assert!(matches!(error_of(&conflict), TransactionError::Again(_)));
    }
}
