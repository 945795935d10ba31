//! Polling: decides when the store is queried, and for what. One query is in flight at a time.

use std::time::Duration;

use outbox_contract::backend::Wakeup;

use super::due::PAUSE;
use super::event::{Answer, Command, Question, Report};
use super::pace::Pace;
use super::reading::Plan;
use super::reading::Turn;
use super::{Asked, Core, Purpose, in_model, sabotaged};

/// Minimum interval of queries for writing transactions.
const PROBE_EVERY: Duration = Duration::from_millis(200);

/// State of polling. A *look* is a polling round: it runs queries until there is nothing to read or
/// no room.
#[derive(Debug)]
pub(super) struct Looking {
    pace: Pace,
    /// Instant at which the next look begins.
    at: Duration,
    is_under_way: bool,
    /// Number of rows found by this look.
    pub(super) found: usize,
    /// True if a fetch had to wait for credit.
    pub(super) starved: bool,
    /// True if the last fetch returned rows that count only from the next fetch on.
    pub(super) early: bool,
    /// True if the last fetch found leases expired: the next look is after a heartbeat.
    pub(super) lapsed: bool,
    next_probe: Duration,
    topics_apart: usize,
    /// True if marks were read since the last fetch.
    has_marks: bool,
}

impl Looking {
    pub(super) fn new(idle: Duration) -> Self {
        Self {
            pace: Pace::new(idle),
            at: Duration::ZERO,
            is_under_way: false,
            found: 0,
            starved: false,
            early: false,
            lapsed: false,
            next_probe: Duration::ZERO,
            // The report of an earlier incarnation is still shown.
            topics_apart: usize::MAX,
            has_marks: false,
        }
    }

    /// Returns when the next look begins.
    pub(super) fn at(&self) -> Duration {
        self.at
    }

    pub(super) fn woken(&mut self, wakeup: Wakeup) {
        self.pace.woken(wakeup);
    }
}

impl Core {
    /// Schedules a look now, or as soon as the minimum interval allows.
    pub(super) fn look_soon(&mut self) {
        self.look_at(self.now);
    }

    /// Schedules a look at this instant, or as soon after it as the minimum interval allows.
    pub(super) fn look_at(&mut self, at: Duration) {
        let soonest = self.now + self.looking.pace.min_wait(self.now);
        self.looking.at = self.looking.at.min(at.max(soonest));
    }

    /// Resumes fetching if it stopped for lack of credit and half of the credit is free again.
    pub(super) fn has_room(&mut self) {
        if self.looking.starved && self.table.credit.is_half_free() {
            self.looking.starved = false;
            self.look_soon();
        }
    }

    /// Resumes fetching if it stopped because of rows to be parked or buried, and many of those are
    /// done.
    pub(super) fn has_room_to_wait(&mut self) {
        if self.may_wait() && self.reading.wants_room_to_wait() {
            self.look_soon();
        }
    }

    /// Returns true if there is room for more rows that are to be parked or buried.
    fn may_wait(&self) -> bool {
        self.table.waiting() <= self.limits.max_in_flight / 2
    }

    /// Sends the next query to the store, if none is running.
    pub(super) fn look(&mut self) {
        if self.asked.is_some() || self.draining.is_some() {
            return;
        }
        if !self.looking.is_under_way {
            if self.now < self.looking.at {
                return;
            }
            self.looking.pace.looked(self.now);
            if self.leases.is_paused() || !self.leases.holds(self.now) {
                self.looking.at = self.now + self.limits.idle_poll;
                return;
            }
            self.begin_look();
        }
        if let Some((purpose, question)) = self.next_question() {
            let number = self.next_number();
            self.asked = Some(Asked { number, purpose });
            self.commands.push(Command::Ask { number, question });
        } else {
            self.end_look();
        }
    }

    fn begin_look(&mut self) {
        (self.looking.is_under_way, self.looking.found, self.looking.early) = (true, 0, false);
        (self.looking.has_marks, self.looking.lapsed) = (false, false);
        for topic in self.topics.open_due(self.now) {
            if !sabotaged!(self, TopicStaysClosed) {
                self.reading.open_topic(&topic);
            }
        }
        let windows = &self.reading.windows;
        self.topics.keep(self.now, |topic| windows.is_apart(topic));
    }

    fn next_question(&mut self) -> Option<(Purpose, Question)> {
        if self.leases.is_paused() || !self.leases.holds(self.now) || self.looking.lapsed {
            return None;
        }
        let rows_first = self.due.gives_way(self.now);
        if !rows_first && let Some(question) = self.ask_for_due() {
            return Some((Purpose::Due, question));
        }
        if let Some(question) = self.ask_for_rows() {
            self.due.gave_way();
            return Some(question);
        }
        if rows_first
            && !self.looking.starved
            && let Some(question) = self.ask_for_due()
        {
            return Some((Purpose::Due, question));
        }
        if self.reading.wants_writers() && self.now >= self.looking.next_probe {
            self.looking.next_probe = self.now + PROBE_EVERY;
            return Some((Purpose::Writers, Question::Writers));
        }
        None
    }

    /// Returns a fetch, or the query that must precede it. `None`: there is nothing to read, or no
    /// room.
    fn ask_for_rows(&mut self) -> Option<(Purpose, Question)> {
        if self.table.credit.is_short() {
            self.shed();
        }
        if !self.table.credit.is_half_free() && !sabotaged!(self, BudgetIgnored) {
            self.looking.starved = true;
            return None;
        }
        let room_to_wait = self.may_wait();
        if self.reading.wants_marks(room_to_wait) && !self.looking.has_marks {
            return Some((Purpose::Marks, Question::Marks(self.reading.owned)));
        }
        let turn = {
            let (table, limits) = (&mut self.table, &self.limits);
            self.reading.choose(room_to_wait, |key| {
                let Some(state) = table.get_mut(key) else { return false };
                state.in_line_to_be_read = false;
                state.may_be_read(limits.max_per_key)
            })?
        };
        let mut plan = self.plan(turn)?;
        plan.request.life = Some(self.leases.life());
        let plan = in_model!(self.sabotage_plan(plan), plan);
        self.looking.has_marks = false;
        self.counts.fetches += 1;
        let question = Question::Fetch(plan.request.clone());
        Some((Purpose::Fetch(Box::new(plan)), question))
    }

    fn plan(&mut self, turn: Turn) -> Option<Plan> {
        let (mut messages, bytes) = self.table.credit.room_for_content();
        if sabotaged!(self, BudgetIgnored) {
            messages = usize::MAX;
        }
        let room = (messages.min(self.paced(self.limits.fetch_rows)), bytes.min(self.limits.fetch_bytes));
        let reader = (&self.route, self.relay);
        match turn {
            Turn::Wide(part) => {
                let muted = self.table.muted();
                Some(self.reading.plan_wide(part, reader, room, &self.table, muted))
            }
            Turn::Key(key) => {
                let state = self.table.get(key)?;
                let max = if state.is_failing {
                    self.limits.max_in_flight.saturating_sub(self.table.waiting())
                } else {
                    state.allowed(self.limits.max_per_key).saturating_sub(state.rows)
                };
                self.reading.plan_key(key, reader, (room.0.min(max.max(1)), room.1), &self.table)
            }
        }
    }

    fn end_look(&mut self) {
        self.looking.is_under_way = false;
        self.begin_looking_below();
        if self.looking.topics_apart > 0 || !self.topics.is_empty() {
            self.report_topics();
        }
        let mut wait = self.looking.pace.after_look(self.looking.found);
        // No event tells when another process appends. So the next look reads, whatever triggers
        // it.
        self.reading.look();
        if std::mem::take(&mut self.looking.early) {
            wait = wait.min(self.looking.pace.min_wait(self.now).max(Duration::from_millis(1)));
        }
        let probe = self.reading.wants_writers().then_some(self.looking.next_probe);
        // Without room, no due key could be taken. An event tells when there is room again.
        let has_room = self.table.credit.room().0 > 0 && self.due.room().is_some();
        let due = self.due.next().filter(|_| has_room);
        let back = self.goes_back_at();
        for at in [due, self.topics.next(), probe, back].into_iter().flatten() {
            wait = wait.min(at.saturating_sub(self.now).max(PAUSE));
        }
        self.looking.at = self.now + wait;
    }

    pub(super) fn report_topics(&mut self) {
        let names = self.topics.names();
        self.looking.topics_apart = names.len();
        self.report(Report::TopicsApart(names));
    }

    /// Handles the answer to a query.
    pub(super) fn answered(&mut self, number: u64, answer: Answer) {
        let Some(asked) = self.asked.take_if(|asked| asked.number == number) else { return };
        match (asked.purpose, answer) {
            (Purpose::Fetch(plan), Answer::Fetched(fetched)) => {
                if plan.wants_writers() && !sabotaged!(self, BaseNotConfirmed) {
                    // Its rows count only if none of the base's writers has ended meanwhile.
                    let number = self.next_number();
                    self.asked = Some(Asked { number, purpose: Purpose::Confirm(plan, fetched) });
                    self.commands.push(Command::Ask { number, question: Question::Writers });
                } else {
                    self.fetched(&plan, fetched);
                }
            }
            (Purpose::Confirm(plan, fetched), Answer::Writers(writers)) => {
                self.reading.wrote(&writers);
                self.fetched(&plan, fetched);
            }
            (Purpose::Writers, Answer::Writers(writers)) => {
                self.reading.wrote(&writers);
                in_model!(self.sabotage_base());
            }
            (Purpose::Marks, Answer::Marks(marks)) => {
                let has_passed = !self.topics.is_empty() || self.table.muted().next().is_some();
                self.reading.committed(marks, has_passed, self.limits.fetch_rows);
                self.looking.has_marks = true;
            }
            (Purpose::Due, Answer::Due(due)) => self.take_due(due),
            // An answer of the wrong kind, which no actor sends.
            _ => {}
        }
    }
}
