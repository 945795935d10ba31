//! Moves the rows of a fetch into the table.

use outbox_contract::backend::{Bucket, Fetched, FetchedRow, Ordering, Position, RowId};

use super::window::Shown;
use super::{Part, Plan, Turn};
use crate::relay::core::key::{Doing, Held, Kind};
use crate::relay::core::table::{KeyRef, Name};
use crate::relay::core::{Core, in_model, sabotaged};

/// Result for one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// In memory now, or before.
    Here,
    /// Covered by another window.
    Elsewhere,
    /// No room, so nothing behind it may be taken either.
    NoRoom,
}

impl Core {
    /// Handles the rows of a fetch. Rows, topics and buckets may have changed meanwhile. If that
    /// changes what is to be read, the answer is discarded, and the fetch repeated. Where leases
    /// have expired by the database's clock, missing rows prove nothing: the answer is discarded
    /// too.
    pub(in crate::relay::core) fn fetched(&mut self, plan: &Plan, fetched: Fetched) {
        self.reading.under_way = None;
        if fetched.lapsed && !sabotaged!(self, LapseCounts) {
            self.looking.lapsed = true;
        } else if self.reading.is_of_use(plan) || sabotaged!(self, FetchFence) {
            self.looking.found += fetched.rows.len();
            match &plan.turn {
                Turn::Wide(part) => self.take_wide(part.as_ref(), plan, fetched),
                Turn::Key(key) => self.take_of_key(*key, plan, fetched),
            }
        } else if sabotaged!(self, UselessFetchCounts)
            && let Turn::Wide(part) = &plan.turn
        {
            self.reading.windows.window_mut(part.as_ref()).more = false;
        }
        // These keys were kept because this fetch might not reflect their transitions.
        for key in std::mem::take(&mut self.guarded) {
            self.place(key);
        }
        if let Turn::Key(key) = plan.turn {
            self.place(key);
        }
    }

    fn take_wide(&mut self, part: Option<&Part>, plan: &Plan, fetched: Fetched) {
        let Fetched { rows, mut full, mut reached, .. } = fetched;
        self.reading.windows.window_mut(part).waits = false;
        let mut last = None;
        let mut passed = Vec::new();
        let mut first_early = None;
        for row in rows {
            let position = row.position();
            if self.is_early(plan, &row) {
                last = Some(position);
                if !self.reading.early.is_astray(&row) {
                    first_early = first_early.or(Some(position));
                }
                continue;
            }
            match self.take_row(plan, row) {
                Taken::Here => {}
                Taken::Elsewhere => {
                    self.reading.passed = self.reading.passed.saturating_add(1);
                    passed.push(position);
                }
                Taken::NoRoom => {
                    // As if the fetch had been cut short before this row.
                    self.reading.windows.window_mut(part).waits = true;
                    (full, reached) = (true, Position::START);
                    last = last.or(Some(plan.request.after));
                    break;
                }
            }
            last = Some(position);
        }
        if self.reading.windows.ordering != Ordering::Writers {
            passed.clear();
        }
        // Everything that the store scanned counts as seen, even rows of other relays: none of this
        // relay's were there, and no fetch need scan it again.
        let horizon = &mut self.reading.horizon;
        horizon.seen = horizon.seen.max(last.unwrap_or_default()).max(reached);
        self.advance(part, plan, last, full, &passed);
        if let Some(position) = first_early {
            // The gap may have ended, and then the main window reads it.
            self.reading.windows.window_mut(part).stay_below(position);
        }
    }

    fn advance(
        &mut self,
        part: Option<&Part>,
        plan: &Plan,
        last: Option<Position>,
        full: bool,
        passed: &[Position],
    ) {
        let (ordering, walk) = (self.reading.windows.ordering, self.limits.walk);
        #[cfg(any(test, feature = "_simulation"))]
        let cursor = self.reading.windows.window(part).cursor;
        // The main window was shown everything. So it passes what other windows have seen, even if
        // it is gone now.
        let last = if full || part.is_some() { last } else { Some(self.reading.horizon.seen) };
        let shown = Shown {
            last,
            full,
            muted: passed,
            horizon: plan.horizon,
            claim: plan.claim.as_ref(),
            marks: &plan.marks,
        };
        self.reading.windows.window_mut(part).advance(shown, ordering, walk);
        in_model!(self.sabotage_window(part, plan, cursor));
        if let Some(part) = part.filter(|_| !full || sabotaged!(self, GapEndsEarly)) {
            self.reading.windows.end_gap(part, &plan.marks);
        }
    }

    fn take_of_key(&mut self, key: KeyRef, plan: &Plan, fetched: Fetched) {
        let is_current = |core: &Self| {
            let state = core.table.get(key)?;
            let window = state.window?;
            (window.as_of.max(state.as_of) < plan.sequence).then_some(window.cursor)
        };
        let Some(mut cursor) = is_current(self) else { return };
        let Fetched { rows, mut full, .. } = fetched;
        for row in rows {
            let position = row.position();
            if self.is_early(plan, &row) {
                // Messages that wait until the relay goes back are read from the beginning then,
                // through the wide windows.
                full = !self.reading.early.is_astray(&row);
                break;
            }
            let taken = self.take_row(plan, row);
            // Taking the row may have lowered the key's window.
            if taken == Taken::NoRoom || is_current(self).is_none() {
                full = true;
                break;
            }
            cursor = position;
        }
        let Some(state) = self.table.get_mut(key) else { return };
        let topic = state.name.topic.clone();
        if let Some(window) = state.window.as_mut().filter(|window| window.as_of < plan.sequence) {
            window.cursor = window.cursor.max(cursor);
            if !full || sabotaged!(self, KeyWindowEndsEarly) {
                state.window = None;
                self.reading.windows.look_again(&topic);
            }
        }
    }

    fn take_row(&mut self, plan: &Plan, row: FetchedRow) -> Taken {
        let position = row.position();
        let (name, bucket, failing) = match &row {
            FetchedRow::Muted(_) => return Taken::Elsewhere,
            FetchedRow::Message(stored) => (stored.message.key_id(), stored.bucket, None),
            FetchedRow::Failing(waiting) => (waiting.key.clone(), waiting.bucket, Some(waiting.at)),
            FetchedRow::Malformed(waiting, reason) => {
                // Any window may return a malformed row: it is never sent, so its key need not wait
                // for it, nor it for the key.
                if self.table.has_row(position) || !self.reading.owned.contains(waiting.bucket) {
                    return Taken::Here;
                }
                if self.table.waiting() >= self.limits.max_in_flight {
                    return Taken::NoRoom;
                }
                let epoch = self.leases.epoch(waiting.bucket);
                let stay = self.table.insert_malformed(position, waiting.bucket);
                self.malformed.push(waiting.clone(), epoch, stay, reason.clone());
                return Taken::Here;
            }
            // Unknown kind of row: it stays in the store, and later fetches return it again.
            _ => return Taken::Here,
        };
        if self.table.has_row(position) || !self.reading.owned.contains(bucket) {
            return Taken::Here;
        }
        // The store muted the gaps that existed when the fetch began. This check catches gaps made
        // since then, or by this very batch.
        let name = Name::new(name, bucket);
        let found = self.table.find(&name);
        if !self.is_governed(plan, found, &name) {
            return Taken::Elsewhere;
        }
        let key = found.unwrap_or_else(|| self.table.add(name, self.leases.epoch(bucket)));
        let taken = match self.deduplicate(key, plan, position, failing) {
            taken @ (Taken::Elsewhere | Taken::NoRoom) => taken,
            Taken::Here => {
                match (failing, row) {
                    (Some(row), _) => self.take_failing(key, row, bucket),
                    (None, FetchedRow::Message(stored)) => self.take_message(key, stored.into(), bucket),
                    (None, _) => {}
                }
                Taken::Here
            }
        };
        self.place(key);
        taken
    }

    /// Returns true if a key is read through the window of this fetch.
    fn is_governed(&self, plan: &Plan, key: Option<KeyRef>, name: &Name) -> bool {
        let has_window = key.and_then(|key| self.table.get(key)).is_some_and(|state| state.window.is_some());
        match &plan.turn {
            Turn::Key(own) => key == Some(*own),
            Turn::Wide(_) if has_window => sabotaged!(self, WindowsOverlap),
            Turn::Wide(part) => self.reading.windows.governor(&name.key, name.bucket) == *part,
        }
    }

    /// Decides whether a row of a key may be taken now. Otherwise it is read again later, through a
    /// window of the key.
    fn deduplicate(&mut self, key: KeyRef, plan: &Plan, position: Position, failing: Option<RowId>) -> Taken {
        let (max_per_key, max_waiting) = (self.limits.max_per_key, self.limits.max_in_flight);
        let is_crowded = failing.is_some() && self.table.waiting() >= max_waiting;
        let ignores_transitions = sabotaged!(self, TransitionsForgotten);
        let is_blind = sabotaged!(self, ContradictionTaken);
        let Some(state) = self.table.get_mut(key) else { return Taken::Elsewhere };
        state.is_failing = failing.is_some();
        let does_not_know = state.as_of >= plan.sequence && !ignores_transitions;
        // The row is not failing, but the key has rows to be parked: one of the two facts is
        // outdated.
        let is_parking = matches!(&state.doing, Doing::Transition(_, Kind::Fail { .. } | Kind::Park(_)));
        let contradicts = !is_blind
            && failing.is_none()
            && (!state.to_park.is_empty() || is_parking)
            && !ignores_transitions;
        // Rows to be parked have no content, so their number per key does not matter.
        let has_no_room = is_crowded || (failing.is_none() && state.rows >= state.allowed(max_per_key));
        if does_not_know || contradicts || state.retry.is_some() || state.recovering {
            self.forget_rows_to_park(key);
            self.read_again(key, position.before());
            return Taken::Elsewhere;
        }
        if !has_no_room {
            return Taken::Here;
        }
        if matches!(plan.turn, Turn::Key(_)) {
            return Taken::NoRoom;
        }
        let (failing_passes, hot_passes) =
            (sabotaged!(self, FailingKeyPassed), sabotaged!(self, HotKeyPassed));
        let passes = if is_crowded { failing_passes } else { hot_passes };
        if !passes {
            self.read_again(key, position.before());
        }
        Taken::Elsewhere
    }

    fn take_message(&mut self, key: KeyRef, held: Held, bucket: Bucket) {
        self.table.credit.take(1, held.bytes);
        self.table.insert_row(held.stored.position, key, bucket, false);
        if let Some(state) = self.table.get_mut(key) {
            state.mailbox.push(held);
        }
    }

    fn take_failing(&mut self, key: KeyRef, row: RowId, bucket: Bucket) {
        self.table.insert_row(row.position, key, bucket, true);
        if let Some(state) = self.table.get_mut(key) {
            state.to_park.push_back(row);
        }
    }
}
