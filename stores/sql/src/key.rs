//! Steps and operations on one key: the program over a store's statements.
//!
//! A store opens a transaction, names the key, and runs [`step`] or [`steer`] in it; the rule in
//! [`failing_key`] decides, and the store's statements carry it out. A store whose database does
//! this in functions of its own needs [`in_parts`] only.

use outbox_contract::admin::Actor;
use outbox_contract::backend::rules::failing_key::{self, KeyState};
use outbox_contract::backend::{AuditNote, KeyOperation, KeyTransition, RowId, Steered, Step, Transitioned};
use outbox_contract::{KeyId, MessageId, Route, StoreError, Timestamp};

/// Maximum number of messages that one transaction discards: whoever waits for it, such as a relay
/// that parks another message of the key, waits no longer than that takes.
pub const MAX_DISCARDED: u32 = 1_000;

/// Statements on one key, in an open transaction in which nothing else changes the key's row.
pub trait OpenKey: Send {
    /// Error of the database.
    type Error;

    /// Returns the time of the transaction.
    fn instant(&self) -> Timestamp;

    /// Returns the number of the key's next state, which no key has had.
    fn next_version(&mut self) -> impl Future<Output = Result<i64, Self::Error>> + Send;

    /// Returns the key's row, if it has one.
    fn state(&mut self) -> impl Future<Output = Result<Option<KeyState>, Self::Error>> + Send;

    /// Writes the key's next state, if it differs from the one before; `None` removes the row.
    fn put(
        &mut self,
        before: Option<&KeyState>,
        next: Option<&KeyState>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Returns the id of the first parked message.
    fn first_parked(&mut self) -> impl Future<Output = Result<Option<MessageId>, Self::Error>> + Send;

    /// Returns the ids of the first parked messages, as many as the audit keeps.
    fn parked_ids(&mut self) -> impl Future<Output = Result<Vec<MessageId>, Self::Error>> + Send;

    /// Turns the first parked messages into dead letters, up to this number. Returns their number.
    fn parked_to_dead(
        &mut self,
        reason: &'static str,
        most: u32,
    ) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// Returns true if a message is hot or parked.
    fn is_there(&mut self, row: RowId) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Moves hot messages to the parked ones; skips missing ones.
    fn park(&mut self, rows: &[RowId]) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Turns a message, hot or parked, into a dead letter. Returns false if it is neither.
    fn bury(&mut self, row: RowId, step: &Step) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Deletes a message, hot or parked.
    fn delete(&mut self, row: RowId) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Removes delivered messages from the parked ones, to the history if one is kept.
    fn deliver(&mut self, delivered: &[RowId]) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Records an operation on so many messages, of which these are known.
    fn record(
        &mut self,
        note: &AuditNote,
        affected: u64,
        ids: &[MessageId],
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Applies a step of a relay whose lease was checked.
///
/// # Errors
///
/// Those of the statements; the transaction has to be rolled back.
pub async fn step<K: OpenKey>(
    key: &mut K,
    transition: &KeyTransition,
    actor: &Actor,
) -> Result<Transitioned, K::Error> {
    let (state, step) = (key.state().await?, &transition.step);
    if failing_key::is_stale(state.as_ref(), transition) || !move_messages(key, step).await? {
        return Ok(Transitioned::Stale);
    }
    if let Some((note, id)) = AuditNote::discarded(actor, transition) {
        key.record(&note, 1, &[id]).await?;
    }
    let first = match failing_key::depends_on_first(state.as_ref(), step) {
        true => key.first_parked().await?,
        false => None,
    };
    let version = key.next_version().await?;
    let next = failing_key::after(state.clone(), step, first, version, key.instant());
    key.put(state.as_ref(), next.as_ref()).await?;
    Ok(Transitioned::Done(next.map(|state| state.version)))
}

/// Moves the messages of a step. Returns false if its own message is neither hot nor parked;
/// nothing has changed then.
async fn move_messages<K: OpenKey>(key: &mut K, step: &Step) -> Result<bool, K::Error> {
    match step {
        Step::Fail { row, behind, .. } => {
            let is_there = key.is_there(*row).await?;
            if is_there {
                let rows: Vec<RowId> = [*row].into_iter().chain(behind.iter().copied()).collect();
                key.park(&rows).await?;
            }
            Ok(is_there)
        }
        Step::Park { rows } => key.park(rows).await.map(|()| true),
        Step::Bury { row, discard: true, .. } => {
            let is_there = key.is_there(*row).await?;
            if is_there {
                key.delete(*row).await?;
            }
            Ok(is_there)
        }
        Step::Bury { row, .. } => key.bury(*row, step).await,
        Step::Resume { delivered } => key.deliver(delivered).await.map(|()| true),
    }
}

/// Performs an operation on a key and records it: one part of it, if it discards more than
/// [`MAX_DISCARDED`] messages. Returns `None` if the operation needs a key that is failing or held,
/// and this one flows.
///
/// # Errors
///
/// Those of the statements; the transaction has to be rolled back.
pub async fn steer<K: OpenKey>(
    key: &mut K,
    operation: KeyOperation,
    note: &AuditNote,
) -> Result<Option<Steered>, K::Error> {
    let state = key.state().await?;
    if operation == KeyOperation::Hold {
        let version = key.next_version().await?;
        let held = failing_key::hold(state.clone(), version, key.instant());
        key.put(state.as_ref(), Some(&held)).await?;
        key.record(note, 0, &[]).await?;
        return Ok(Some(Steered::NOTHING));
    }
    let Some(state) = state else { return Ok(None) };
    let (version, now) = (key.next_version().await?, key.instant());
    let (steered, ids) = match operation {
        KeyOperation::Hold | KeyOperation::Release => {
            key.put(None, Some(&state.release(version, now))).await?;
            (Steered::NOTHING, Vec::new())
        }
        KeyOperation::Skip => {
            let first = key.first_parked().await?;
            if first.is_none() {
                return Ok(Some(Steered::NOTHING));
            }
            key.parked_to_dead("skipped", 1).await?;
            key.put(None, Some(&state.skip(version, now))).await?;
            (Steered::skipped(first), first.into_iter().collect())
        }
        KeyOperation::Discard => {
            let ids = key.parked_ids().await?;
            let discarded = key.parked_to_dead("discarded", MAX_DISCARDED).await?;
            // After the last message the key flows again; until then it is held, so that none of
            // the others is sent.
            let is_part = discarded == u64::from(MAX_DISCARDED);
            let next = is_part.then(|| state.clone().discard_in_part(version, now));
            key.put(Some(&state), next.as_ref()).await?;
            (Steered::discarded(discarded), ids)
        }
    };
    key.record(note, steered.buried, &ids).await?;
    Ok(Some(steered))
}

/// Performs an operation on a key in as many transactions as it takes: `part` does one, and returns
/// `None` if the key flows.
///
/// # Errors
///
/// `Invalid` if the first part finds that the key flows; those of `part`.
pub async fn in_parts<F>(
    (route, key): (&Route, &KeyId),
    operation: KeyOperation,
    part: impl Fn() -> F + Send,
) -> Result<Steered, StoreError>
where
    F: Future<Output = Result<Option<Steered>, StoreError>> + Send,
{
    let mut steered = part().await?.ok_or_else(|| failing_key::flows(operation, route, key))?;
    let mut last = steered.buried;
    while last == u64::from(MAX_DISCARDED) {
        // A key that flows by now has nothing parked.
        last = part().await?.unwrap_or_default().buried;
        steered.buried += last;
    }
    Ok(steered)
}

#[cfg(test)]
mod tests;
