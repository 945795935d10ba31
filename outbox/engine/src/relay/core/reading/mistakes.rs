//! Mistakes of the fetch rule, for the model: each is a part of the rule left out.

use outbox_contract::backend::{Ordering, Position, StripeMark};

use super::marks::Marks;
use super::windows::Windows;
use super::{Part, Plan, Reading};
use crate::relay::core::model::Sabotage;

impl Reading {
    /// A fetch was taken through a window whose cursor was there before.
    pub(in crate::relay::core) fn sabotage_window(
        &mut self,
        sabotage: Sabotage,
        part: Option<&Part>,
        plan: &Plan,
        cursor: Position,
    ) {
        let established = self.horizon.established;
        let window = self.windows.window_mut(part);
        match sabotage {
            Sabotage::HorizonAtOnce => window.horizon = established,
            Sabotage::HorizonOfCutFetch => window.horizon = window.horizon.max(plan.horizon),
            Sabotage::CursorPassesLateCommits => window.horizon = window.horizon.max(window.cursor),
            Sabotage::BaseOfCutFetch => {
                if let (Some(base), Some(claim)) = (&mut window.base, &plan.claim) {
                    base.last = base.last.max(claim.last);
                }
            }
            Sabotage::CursorOfCutFetch => window.cursor = window.cursor.max(cursor),
            Sabotage::PassedForgotten => self.windows.main.passed.clear(),
            _ => {}
        }
    }

    /// A claim makes a base at once.
    pub(in crate::relay::core) fn sabotage_base(&mut self) {
        let claim = self.horizon.claim().cloned();
        self.windows.main.base = claim.filter(|claim| claim.last > self.windows.main.horizon);
    }

    /// A topic was closed.
    pub(in crate::relay::core) fn sabotage_gaps(&mut self, sabotage: Sabotage) {
        let seen = self.windows.main.seen.clone();
        for window in self.windows.all_mut() {
            match sabotage {
                Sabotage::GapAtMain => window.seen = seen.clone(),
                Sabotage::GapAtBase => {
                    if let Some(base) = window.base.take() {
                        window.horizon = base.last;
                        window.cursor = window.cursor.max(base.last);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns true if a window knows nothing of shards yet.
    pub(in crate::relay::core) fn has_seen_nothing(&self, part: Option<&Part>) -> bool {
        self.windows.ordering == Ordering::Stripes && self.windows.window(part).seen.is_empty()
    }
}

impl Windows {
    /// Returns the position up to which a window has looked.
    pub(in crate::relay::core) fn cursor(&self, part: Option<&Part>) -> Position {
        self.window(part).cursor
    }
}

impl Plan {
    /// Puts other marks in place of those that were read before the fetch.
    pub(in crate::relay::core) fn believe(&mut self, marks: Vec<StripeMark>) {
        self.marks = Marks::new(marks);
    }
}
