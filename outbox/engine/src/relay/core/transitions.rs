//! Transitions of failing keys: decides which one is needed, and handles the store's answers.

use outbox_contract::backend::{BucketSet, KeyTransition, RowId, Step, Then, Transitioned};
use outbox_contract::retry::{Decision, Tried};
use outbox_contract::{Failure, Topic};

use super::event::{Command, Report};
use super::key::{Buried, Doing, Kind, Next, Verdict};
use super::lines::Line;
use super::table::KeyRef;
use super::{Core, in_model, sabotaged};

/// Time to wait for further parked messages of a recovering key, in times of `due_poll`. After that
/// an operator may hold the key, and parking continues.
const RECOVERS_IN: u32 = 2;

impl Core {
    /// Starts the transitions that keys need before more of them can be sent.
    pub(super) fn begin_transitions(&mut self) {
        if self.draining.is_some() {
            return;
        }
        self.bury_malformed();
        while let Some(key) = self.lines.pop(Line::Transition) {
            if self.leave_line(key, Line::Transition) {
                self.begin_transition(key);
            }
        }
    }

    /// Starts the transition that a key needs next.
    fn begin_transition(&mut self, key: KeyRef) {
        let Some(state) = self.table.get_mut(key) else { return };
        if let Some(retry) = &state.retry {
            let (version, mut delivered) = (Some(retry.version), retry.delivered.clone());
            if sabotaged!(self, ResumeTakesNext) {
                delivered.extend(retry.parked.first().map(|held| held.stored.row()));
            }
            return self.ask_for(key, version, Step::Resume { delivered }, Kind::Resume);
        }
        let count = state.to_park.len().min(self.limits.rows_per_transition);
        let rows: Vec<RowId> = state.to_park.drain(..count).collect();
        self.ask_for(key, None, Step::Park { rows: rows.clone() }, Kind::Park(rows));
    }

    fn ask_for(&mut self, key: KeyRef, version: Option<i64>, step: Step, kind: Kind) {
        let number = self.next_number();
        let Some(state) = self.table.get_mut(key) else { return };
        state.doing = Doing::Transition(number, kind);
        // A key that makes room for others may stand in a line: what is in none of its hands is in
        // no batch either.
        state.line = None;
        let transition = KeyTransition::new(
            self.route.clone(),
            self.relay,
            (state.bucket, state.epoch),
            state.name.clone(),
            version,
            step,
        );
        self.stepping.insert(number, key);
        self.commands.push(Command::Transition { number, transition });
    }

    /// Handles the failure of the first message of a key.
    pub(super) fn failed(
        &mut self,
        key: KeyRef,
        row: RowId,
        parked: bool,
        failure: Failure,
        verdict: Verdict,
    ) {
        self.counts.failed += u64::from(verdict.counts());
        if parked {
            return self.parked_failed(key, row, failure, verdict);
        }
        let attempts = verdict.counts();
        let Some(decision) = self.decide(key, attempts, &failure, verdict) else { return };
        let first = failure.clone();
        let next = match after(decision, &failure) {
            After::Stays(next) => next,
            After::Leaves { discard } => {
                let buried = Buried { id: row.id, failure: failure.clone(), discard };
                let step =
                    Step::Bury { row, discard, reason: verdict.reason(), attempts, first, last: failure };
                self.take_rows_out(key, 1);
                self.ask_for(key, None, step, Kind::Bury { row, buried });
                if sabotaged!(self, DeadLetterUnblocksEarly)
                    && let Some(state) = self.table.get_mut(key)
                {
                    state.doing = Doing::Nothing;
                    self.place(key);
                }
                return;
            }
        };
        let rows = self.take_rows_out(key, self.limits.rows_per_transition);
        // The rows beyond those are read again, and parked behind them.
        self.forget(key, 0);
        let behind = rows.get(1..).unwrap_or_default().to_vec();
        let step = Step::Fail { row, attempts, first, last: failure, then: next.then, behind };
        self.ask_for(key, None, step, Kind::Fail { rows, next });
    }

    /// Decides what follows the failure of the first message of a key.
    fn decide(
        &mut self,
        key: KeyRef,
        attempts: u32,
        failure: &Failure,
        verdict: Verdict,
    ) -> Option<Decision> {
        let draw = self.draws.f64();
        let topic = &self.table.get(key)?.name.topic;
        let tried = match verdict {
            Verdict::Failed => Tried::Times(attempts),
            Verdict::Rejected => Tried::Rejected,
            Verdict::Silent(rest) | Verdict::Postponed(rest) => return Some(Decision::Retry(rest)),
        };
        Some(self.policy.decide(topic, failure, tried, draw))
    }

    /// Removes the first rows of a key from its mailbox and from its rows to be parked. Their
    /// content is dropped, as parked messages are fetched again when due.
    fn take_rows_out(&mut self, key: KeyRef, max: usize) -> Vec<RowId> {
        let mut rows = Vec::new();
        while rows.len() < max {
            let Some(state) = self.table.get_mut(key) else { break };
            if let Some(held) = state.mailbox.take() {
                let row = held.stored.row();
                self.table.row_waits(row.position);
                self.drop_held(&held);
                rows.push(row);
            } else if max > 1
                && let Some(row) = state.to_park.pop_front()
            {
                rows.push(row);
            } else {
                break;
            }
        }
        rows
    }

    fn parked_failed(&mut self, key: KeyRef, row: RowId, failure: Failure, verdict: Verdict) {
        let Some(retry) = self.table.get_mut(key).and_then(|state| state.retry.as_mut()) else { return };
        if !retry.delivered.is_empty() {
            // First remove the delivered messages; then the failing message is the first of the
            // key.
            retry.failed = Some((row, failure, verdict));
            return self.place(key);
        }
        self.fail_again(key, row, failure, verdict);
    }

    /// Handles the failure of a parked message: it is retried later, held, or buried.
    fn fail_again(&mut self, key: KeyRef, row: RowId, failure: Failure, verdict: Verdict) {
        let Some(state) = self.table.get(key) else { return };
        let retry = state.retry.as_ref();
        let again = retry.filter(|retry| retry.failing == Some(row.id));
        let attempts = again.map_or(0, |retry| retry.attempts).saturating_add(verdict.counts());
        let first = again.and_then(|retry| retry.first_failure.clone()).unwrap_or_else(|| failure.clone());
        let version = retry.map(|retry| retry.version);
        let Some(decision) = self.decide(key, attempts, &failure, verdict) else { return };
        match after(decision, &failure) {
            After::Leaves { discard } => {
                let buried = Buried { id: row.id, failure: failure.clone(), discard };
                let step =
                    Step::Bury { row, discard, reason: verdict.reason(), attempts, first, last: failure };
                self.ask_for(key, version, step, Kind::BuryParked { buried });
            }
            After::Stays(next) => {
                let (then, behind) = (next.then, Vec::new());
                let step = Step::Fail { row, attempts, first, last: failure, then, behind };
                self.ask_for(key, version, step, Kind::FailAgain { next });
            }
        }
    }

    /// Handles the store's answer to a transition.
    pub(super) fn transitioned(&mut self, number: u64, answer: Transitioned) {
        if self.malformed_transitioned(number, answer) {
            return;
        }
        let Some(key) = self.stepping.remove(&number) else { return };
        let Some(state) = self.table.get_mut(key) else { return };
        let Doing::Transition(asked, kind) = &mut state.doing else { return };
        if *asked != number {
            return;
        }
        let kind = std::mem::replace(kind, Kind::Resume);
        state.doing = Doing::Nothing;
        match answer {
            Transitioned::Done(version) => self.made(key, kind, version),
            Transitioned::LeaseLost => {
                self.counts.refused += 1;
                let bucket: BucketSet = [state.bucket].into_iter().collect();
                self.lose_lease(bucket);
            }
            Transitioned::Stale if sabotaged!(self, StaleIsDone) => self.made(key, kind, None),
            Transitioned::Stale => {
                self.counts.refused += 1;
                self.give_up_retry(key);
                self.forget_rows(key, kind.rows().iter().map(|row| row.position).collect());
                self.forget_key(key);
            }
        }
    }

    /// Handles a transition that was made. `version`: the key's new state, `None` when it flows.
    fn made(&mut self, key: KeyRef, kind: Kind, version: Option<i64>) {
        match kind {
            Kind::Fail { rows, next } => {
                self.counts.parked += rows.len() as u64;
                self.set_aside(key, &rows);
                self.follow(key, next);
            }
            Kind::Park(rows) => {
                self.counts.parked += rows.len() as u64;
                self.set_aside(key, &rows);
            }
            Kind::Bury { row, buried } => {
                self.is_buried(key, buried);
                self.table.remove_row(row.position, key.stay);
                self.clear_suspicion(key);
            }
            Kind::Resume => self.resumed(key, version),
            Kind::FailAgain { next } => {
                self.give_up_retry(key);
                self.follow(key, next);
            }
            Kind::BuryParked { buried } => {
                self.is_buried(key, buried);
                self.parked_is_buried(key, version);
            }
        }
        self.place(key);
        self.has_room_to_wait();
    }

    /// Does what follows a failure that is recorded: schedules the retry, and pauses the topic.
    fn follow(&mut self, key: KeyRef, next: Next) {
        if let Then::RetryAfter(delay) = next.then {
            self.due_at(self.now + delay);
        }
        if let Some(failure) = next.hold
            && let Some(name) = self.table.get(key).map(|state| state.name.clone())
        {
            self.report(Report::KeyHeld(name, failure));
        }
        if let Some(failure) = next.pause
            && let Some(topic) = self.table.get(key).map(|state| state.name.topic.clone())
        {
            self.pause_topic(&topic, failure);
        }
    }

    /// Pauses a topic as an operator does: here at once, and in the store, for all relays. If that
    /// fails, the key is tried again, and the topic paused after its next failure.
    fn pause_topic(&mut self, topic: &Topic, failure: Failure) {
        if sabotaged!(self, NeverPausesTopic) {
            return;
        }
        let number = self.next_number();
        if !self.topics.ask_to_pause(topic, number) {
            return;
        }
        if !sabotaged!(self, PausedTopicGoesOn) {
            self.close_topic(topic);
        }
        self.report(Report::TopicPaused(topic.clone(), failure.clone()));
        self.report_topics();
        self.commands.push(Command::PauseTopic { number, topic: topic.clone(), failure });
    }

    /// Records that the first message of a key became a dead letter, or is deleted.
    fn is_buried(&mut self, key: KeyRef, buried: Buried) {
        let Buried { id, failure, discard } = buried;
        let count = if discard { &mut self.counts.discarded } else { &mut self.counts.buried };
        *count += 1;
        if let Some(topic) = self.table.get(key).map(|state| state.name.topic.clone()) {
            let report = if discard { Report::Discarded } else { Report::DeadLetter };
            self.report(report(topic, id, failure));
        }
    }

    /// Records that rows of a key are parked.
    fn set_aside(&mut self, key: KeyRef, rows: &[RowId]) {
        for row in rows {
            self.table.remove_row(row.position, key.stay);
        }
        in_model!(self.sabotage_waiting(rows.len()));
        self.guard(key);
        if let Some(state) = self.table.get_mut(key) {
            state.is_failing = true;
            // Suspicion is recorded for the key, beyond this stay.
            (state.unknown, state.blocked, state.moves) = (0, false, true);
        }
    }

    /// Keeps a key until the running fetch returns, because that may not reflect the last
    /// transition.
    fn guard(&mut self, key: KeyRef) {
        if self.reading.under_way().is_some() && !sabotaged!(self, TransitionsForgotten) {
            let fetches = self.reading.fetches();
            if let Some(state) = self.table.get_mut(key) {
                state.as_of = fetches;
                self.guarded.push(key);
            }
        }
    }

    /// Clears the suspicion against a key whose first message is gone.
    fn clear_suspicion(&mut self, key: KeyRef) {
        if let Some(state) = self.table.get_mut(key) {
            (state.unknown, state.moves) = (0, true);
            self.silent.remove(&state.name);
        }
    }

    /// Handles the removal of delivered parked messages.
    fn resumed(&mut self, key: KeyRef, version: Option<i64>) {
        self.guard(key);
        let recovers_in = self.limits.due_poll.saturating_mul(RECOVERS_IN);
        let Some(state) = self.table.get_mut(key) else { return };
        let Some(retry) = &mut state.retry else { return };
        retry.delivered.clear();
        state.moves = true;
        match version {
            Some(version) if !retry.parked.is_empty() => {
                (retry.version, retry.attempts) = (version, 0);
                if let Some((row, failure, verdict)) = retry.failed.take() {
                    self.fail_again(key, row, failure, verdict);
                }
            }
            Some(_) => {
                self.give_up_retry(key);
                self.due_at(self.now);
                if let Some(state) = self.table.get_mut(key) {
                    state.recovering = true;
                    self.timers.insert((self.now + recovers_in, key));
                }
            }
            None => {
                state.is_failing = false;
                self.give_up_retry(key);
            }
        }
    }

    fn parked_is_buried(&mut self, key: KeyRef, version: Option<i64>) {
        self.clear_suspicion(key);
        let Some(state) = self.table.get_mut(key) else { return };
        let Some((retry, version)) = state.retry.as_mut().zip(version) else {
            return self.give_up_retry(key);
        };
        (retry.version, retry.failing, retry.attempts) = (version, None, 0);
        if let Some(held) = retry.parked.take() {
            self.drop_held(&held);
        }
    }

    /// Drops the parked messages of a key, whether or not delivered ones are still to be removed.
    pub(super) fn give_up_retry(&mut self, key: KeyRef) {
        let Some(state) = self.table.get_mut(key) else { return };
        let Some(mut retry) = state.retry.take() else { return };
        let name = state.name.clone();
        self.due_back(&name);
        self.table.drop_content(&retry.parked.split_off(0));
    }
}

/// Consequences of a decision for the failed message.
enum After {
    /// It stays, with its key's next state.
    Stays(Next),
    /// It becomes a dead letter, or is deleted.
    Leaves { discard: bool },
}

fn after(decision: Decision, failure: &Failure) -> After {
    let stays = |then, pause, hold| After::Stays(Next { then, pause, hold });
    match decision {
        Decision::Retry(delay) => stays(Then::RetryAfter(delay), None, None),
        Decision::Hold => stays(Then::Hold, None, Some(failure.clone())),
        Decision::PauseTopic(delay) => stays(Then::RetryAfter(delay), Some(failure.clone()), None),
        Decision::DeadLetter => After::Leaves { discard: false },
        Decision::Discard => After::Leaves { discard: true },
    }
}

impl Verdict {
    /// Returns the number of attempts that it counts as.
    fn counts(self) -> u32 {
        u32::from(!matches!(self, Self::Silent(_) | Self::Postponed(_)))
    }

    /// Returns the reason to record with a dead letter.
    fn reason(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Failed | Self::Silent(_) | Self::Postponed(_) => "exhausted",
        }
    }
}
