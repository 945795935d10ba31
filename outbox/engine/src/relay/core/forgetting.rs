//! Forgetting: drops messages from memory unsent, to be read again later.

use outbox_contract::backend::{BucketSet, Position};
use outbox_contract::{Failure, Topic};

use super::key::{Doing, KeyState, Verdict};
use super::outcomes::Silence;
use super::table::KeyRef;
use super::{Core, in_model, sabotaged};

impl Core {
    /// Drops the messages of a key behind its first `kept` ones, to be read again. Messages in
    /// flight stay: their outcome comes back.
    pub(super) fn forget(&mut self, key: KeyRef, kept: usize) {
        let Some(state) = self.table.get_mut(key) else { return };
        let messages = state.mailbox.split_off(kept);
        let rows: Vec<Position> = messages.iter().map(|held| held.stored.position).collect();
        self.table.drop_content(&messages);
        self.forget_rows(key, rows);
        self.forget_rows_to_park(key);
    }

    /// Drops the rows of a key that are still to be parked, to be read again.
    pub(super) fn forget_rows_to_park(&mut self, key: KeyRef) {
        let Some(state) = self.table.get_mut(key) else { return };
        let rows: Vec<Position> = state.to_park.drain(..).map(|row| row.position).collect();
        self.forget_rows(key, rows);
    }

    /// Removes rows of a key from the index, to be read again.
    pub(super) fn forget_rows(&mut self, key: KeyRef, rows: Vec<Position>) {
        let Some(first) = rows.iter().min().copied() else { return };
        for position in rows {
            self.table.remove_row(position, key.stay);
        }
        self.read_again(key, first.before());
    }

    /// Frees credit for other keys.
    ///
    /// It drops the messages behind those that are unanswered or in transition. Then it parks
    /// silent messages, even if no other message was delivered meanwhile: they hold the room that
    /// others would need to prove that the broker works. Blocked ones are parked last.
    pub(super) fn shed(&mut self) {
        if self.breaker.is_said_to_be_away() {
            return;
        }
        let has_followers = |state: &KeyState| {
            let waits = state.unknown > 0 && matches!(state.doing, Doing::Batch(_));
            let is_leaving = matches!(state.doing, Doing::Transition(..));
            (waits || is_leaving) && !state.mailbox.is_empty()
        };
        for key in self.table.select(has_followers) {
            self.forget(key, 0);
            self.place(key);
        }
        let is_silent = |state: &KeyState| {
            state.unknown > 0
                && state.doing == Doing::Nothing
                && state.retry.is_none()
                && !state.mailbox.is_empty()
        };
        for key in self.table.select(is_silent) {
            if !self.table.credit.is_short() {
                return;
            }
            let Some(state) = self.table.get(key) else { continue };
            let Some(row) = state.mailbox.first().map(|held| held.stored.row()) else { continue };
            let (name, unknown) = (state.name.clone(), state.unknown);
            let strikes = self.strikes(&name);
            self.remember_silence(name, Silence { strikes, delivered: self.delivered });
            let rest = self.rest_of_silence(unknown.max(strikes));
            let failure =
                Failure::new("silent", "no answer, and other keys had no room; not counted as an attempt");
            self.failed(key, row, false, failure, Verdict::Silent(rest));
        }
        self.set_blocked_aside();
    }

    /// Drops everything of buckets that this relay lost. Nothing of them is read again, and
    /// messages in flight may only be settled.
    pub(super) fn lose(&mut self, buckets: BucketSet) {
        if buckets.is_empty() {
            return;
        }
        self.reading.lose(buckets);
        for key in self.table.select(|state| buckets.contains(state.bucket)) {
            self.drop_key(key);
        }
        self.malformed.lose(&buckets);
        self.table.remove_rows_of(&buckets);
        self.due.lose(&buckets);
        self.silent.retain(|name, _| !buckets.contains(name.bucket()));
    }

    /// Removes a key and its messages in memory from the table, but not its rows from the index.
    fn drop_key(&mut self, key: KeyRef) {
        let Some(mut state) = self.table.remove(key) else { return };
        if sabotaged!(self, LostKeysKeepCredit) {
            return;
        }
        self.table.drop_content(&state.mailbox.split_off(0));
        if let Some(mut retry) = state.retry.take() {
            self.table.drop_content(&retry.parked.split_off(0));
            self.due_back(&state.name);
        }
    }

    /// Closes a topic: nothing of it is read until it is opened again. Its messages in memory are
    /// dropped, those in flight when they come back.
    pub(super) fn close_topic(&mut self, topic: &Topic) {
        let keys = self.table.select(|state| state.name.topic == *topic);
        let forgets = sabotaged!(self, CloseForgetsWindows);
        let cursors = keys.iter().filter_map(|key| {
            let window = self.table.get_mut(*key)?.window.take()?;
            Some(window.cursor)
        });
        let lowest = cursors.min();
        self.reading.close_topic(topic, lowest.filter(|_| !forgets));
        in_model!(self.sabotage_gaps());
        for key in keys {
            self.forget_key(key);
        }
    }

    /// Forgets everything of a key.
    pub(super) fn forget_key(&mut self, key: KeyRef) {
        self.forget(key, 0);
        self.drop_retry(key);
        let Some(state) = self.table.get_mut(key) else { return };
        match &state.doing {
            Doing::Nothing => {}
            Doing::Batch(_) => state.forget = !sabotaged!(self, ForgetFlagLost),
            Doing::Transition(_, kind) => {
                // The answer to the transition will find no key. The next read shows whether it was
                // made.
                let rows = kind.rows().iter().map(|row| row.position).collect();
                state.doing = Doing::Nothing;
                self.forget_rows(key, rows);
                self.drop_retry(key);
            }
        }
        self.place(key);
    }

    /// Drops the parked messages of a key; they are fetched again when due. Delivered ones are
    /// removed first.
    fn drop_retry(&mut self, key: KeyRef) {
        let Some(state) = self.table.get_mut(key) else { return };
        let is_busy = state.doing != Doing::Nothing;
        let Some(retry) = &mut state.retry else { return };
        let parked = retry.parked.split_off(0);
        if retry.delivered.is_empty() && !is_busy {
            state.retry = None;
            let name = state.name.clone();
            if !sabotaged!(self, RetryLostOnPause) {
                self.due_back(&name);
            }
            self.due_at(self.now);
        }
        self.table.drop_content(&parked);
    }
}
