//! What the model looks at inside a core after each event, and what it leaves out of it.

use super::super::Core;
use super::super::key::Doing;
use super::super::reading::Part;
use super::Sabotage;

impl Core {
    /// Whether the credit is what the table holds, and the bounds are kept.
    pub(super) fn audit(&self) -> Result<(), String> {
        let (mut messages, mut bytes, mut rows) = (0, 0, 0);
        for (_, state) in self.table.iter() {
            let parked = state.retry.iter().flat_map(|retry| retry.parked.iter());
            for held in state.mailbox.iter().chain(parked) {
                messages += 1;
                bytes += held.bytes;
            }
            rows += state.rows;
            if state.retry.is_some() && !state.mailbox.is_empty() {
                return Err(format!("a key is retried while messages before it wait: {state:?}"));
            }
            if let Doing::Batch(number) = state.doing
                && number > self.numbers
            {
                return Err(format!("batch {number} was never begun"));
            }
        }
        let (in_batches, bytes_in_batches) = self.batches.in_flight();
        messages += in_batches + self.removals.messages();
        bytes += bytes_in_batches + self.removals.bytes();
        let credit = self.in_flight();
        if credit != (messages, bytes) {
            return Err(format!("credit leaked: {credit:?} is taken, and {:?} held", (messages, bytes)));
        }
        if messages > self.limits.max_in_flight + self.removals.messages() {
            return Err(format!("{messages} messages are in memory"));
        }
        if rows > self.table.counted_rows() {
            return Err(format!("keys count {rows} rows, and there are {}", self.table.counted_rows()));
        }
        if self.lines.out() > self.limits.publishers + self.limits.silent_publishers {
            return Err("more batches than publishers".to_owned());
        }
        Ok(())
    }

    /// Whether nothing is in memory.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight() == (0, 0) && self.table.counted_rows() == 0 && self.table.waiting() == 0
    }

    /// What a part of the rule that is left out does to the windows when a fetch is taken.
    pub(in crate::relay::core) fn sabotage_window(&mut self, part: Option<&Part>) {
        match self.sabotage {
            Some(Sabotage::HorizonAtOnce) => self.reading.sabotage_horizon(),
            Some(Sabotage::CursorPassesLateCommits) => self.reading.sabotage_cursor(part),
            _ => {}
        }
    }
}
