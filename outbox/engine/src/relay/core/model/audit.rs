//! Checks of the model inside a core after each event, and faults that it injects there.

use outbox_contract::backend::{Position, RowId, StripeMark};

use super::super::key::Doing;
use super::super::reading::{Part, Plan, Turn};
use super::super::table::KeyRef;
use super::super::{Core, Purpose};
use super::Sabotage;
use super::cast::number_of;
use super::judge::{Judged, broken};

impl Core {
    /// Checks that the budget equals the content of the table, and that the bounds are kept.
    pub(super) fn audit(&self) -> Judged {
        let (mut messages, mut bytes, mut rows) = (0, 0, 0);
        for (_, state) in self.table.iter() {
            let parked = state.retry.iter().flat_map(|retry| retry.parked.iter());
            for held in state.mailbox.iter().chain(parked) {
                messages += 1;
                bytes += held.bytes;
            }
            rows += state.rows;
            if state.retry.is_some() && !state.mailbox.is_empty() {
                let of = number_of(&state.name);
                return Err(broken(
                    "out of order",
                    of,
                    format!("k{of} is retried while messages before it wait"),
                ));
            }
            if let Doing::Batch(number) = state.doing
                && number > self.numbers
            {
                return Err(broken("audit", None, format!("batch {number} was never begun")));
            }
        }
        let (in_batches, bytes_in_batches) = self.batches.in_flight();
        messages += in_batches + self.removals.messages();
        bytes += bytes_in_batches + self.removals.bytes();
        let budget = self.in_flight();
        if budget != (messages, bytes) {
            let words = format!("{budget:?} of the budget are taken, and {:?} are held", (messages, bytes));
            return Err(broken("in flight", None, words));
        }
        if messages > self.limits.max_in_flight + self.removals.messages() {
            return Err(broken("in flight", None, format!("{messages} messages are in memory")));
        }
        let (counted, waiting) = (self.table.counted_rows(), self.table.waiting());
        if rows > counted || waiting != self.table.counted_waiting() {
            let words = format!("keys count {rows} rows of {counted}, and {waiting} that wait");
            return Err(broken("in flight", None, words));
        }
        if self.lines.out() > self.limits.publishers + self.limits.silent_publishers {
            return Err(broken("in flight", None, "more batches than publishers".to_owned()));
        }
        Ok(())
    }

    /// Returns true if nothing is in memory.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight() == (0, 0) && self.table.counted_rows() == 0 && self.table.waiting() == 0
    }

    /// Describes the state of a key.
    pub(super) fn tell(&self, of: usize) -> String {
        let states = self.table.iter().filter(|(_, state)| number_of(&state.name) == of);
        let states: Vec<String> = states.map(|(_, state)| format!("{state:?}")).collect();
        format!("{states:?}, {:?}, next tick {:?}", self.due, self.next_tick())
    }

    fn is_sabotaged(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    /// Applies a fault to the windows when a fetch is taken.
    pub(in crate::relay::core) fn sabotage_window(
        &mut self,
        part: Option<&Part>,
        plan: &Plan,
        cursor: Position,
    ) {
        if let Some(sabotage) = self.sabotage {
            self.reading.sabotage_window(sabotage, part, plan, cursor);
        }
    }

    /// Applies a fault to the next fetch.
    pub(in crate::relay::core) fn sabotage_plan(&self, mut plan: Plan) -> Plan {
        let Turn::Wide(part) = &plan.turn else { return plan };
        let is_ignored = self.is_sabotaged(Sabotage::NewsIgnored)
            || (self.is_sabotaged(Sabotage::TakeoverAtLowest)
                && self.reading.has_seen_nothing(part.as_ref()));
        if is_ignored {
            plan.request.after = self.reading.windows.cursor(part.as_ref());
            plan.request.except = self.table.rows_behind(plan.request.after).collect();
        }
        plan
    }

    /// The marks are read when the fetch has returned.
    pub(super) fn sabotage_marks(&mut self, marks: Vec<StripeMark>) {
        if let Some(asked) = &mut self.asked
            && let Purpose::Fetch(plan) = &mut asked.purpose
        {
            plan.believe(marks);
        }
    }

    pub(in crate::relay::core) fn sabotage_base(&mut self) {
        if self.is_sabotaged(Sabotage::BaseAtOnce) {
            self.reading.sabotage_base();
        }
    }

    pub(in crate::relay::core) fn sabotage_gaps(&mut self) {
        if let Some(sabotage) = self.sabotage {
            self.reading.sabotage_gaps(sabotage);
        }
    }

    pub(in crate::relay::core) fn sabotage_stay(&self, key: KeyRef) -> KeyRef {
        if self.is_sabotaged(Sabotage::StaysMixed) { self.table.any_stay(key) } else { key }
    }

    pub(in crate::relay::core) fn sabotage_removal(&mut self, row: RowId, parked: bool) {
        if self.is_sabotaged(Sabotage::RemovesWhatStopped) && !parked {
            self.removals.remove_too(row);
        }
    }

    pub(in crate::relay::core) fn sabotage_waiting(&mut self, rows: usize) {
        if self.is_sabotaged(Sabotage::WaitingLeaks) {
            self.table.waits_more(rows);
        }
    }

    /// Of messages of a key of which some are confirmed all count as confirmed.
    pub(in crate::relay::core) fn sabotage_heard(&self, number: u64, delivered: &[bool]) -> Vec<bool> {
        if !self.is_sabotaged(Sabotage::PartIsWhole) {
            return delivered.to_vec();
        }
        let Some(sent) = self.batches.sent_in(number) else { return delivered.to_vec() };
        let keys: Vec<_> = sent.iter().map(|sent| sent.as_ref().map(|sent| sent.key)).collect();
        let is_heard =
            |key: &Option<KeyRef>| keys.iter().zip(delivered).any(|(other, word)| other == key && *word);
        keys.iter().map(is_heard).collect()
    }
}
