//! The rule with a part left out, each of which the model must find.

use std::sync::Arc;

use super::horizon::Claim;
use super::marks::Marks;
use super::*;
use crate::relay::model_cast::first_failure;

/// A part of the rule, left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sabotage {
    /// A horizon counts at once.
    HorizonAtOnce,
    /// The last position is read after the writers, not before.
    LastReadLast,
    /// A fetch that was cut short lifts the horizon beyond its last row.
    HorizonOfCutFetch,
    /// What is read from a base counts without a look at the writers.
    BaseNotConfirmed,
    /// A claim makes a base at once.
    BaseAtOnce,
    /// A fetch that was cut short lifts the base beyond its last row.
    BaseOfCutFetch,
    /// A base counts on the writers that are there when its fetch has returned, not on those from before.
    BaseOfLateClaim,
    /// A topic that is closed takes a base for its horizon.
    GapAtBase,
    /// What narrower gaps have is shown again and again above the horizon.
    ForgetsPassed,
    /// A gap ends with its first fetch.
    MergesEarly,
    /// A key that has too much in memory loses its window of its own.
    HotKeysPass,
    /// Which failing keys had no room is forgotten.
    ForgetsAside,
    /// With stripes: rows count that were committed after the marks were read.
    RowsAboveMarks,
    /// With stripes: each fetch begins at the cursor, whatever was committed below it.
    NewsIgnored,
    /// With stripes: the marks are read when the fetch has returned.
    MarksReadLast,
    /// With stripes: what was committed is taken for the last append alone.
    LastAppendOnly,
    /// With stripes: a fetch that was cut short leaves the cursor where it was.
    CursorOfCutFetch,
    /// With stripes: a bucket that was taken over is read from its lowest row on, and counts as seen below that.
    TakeoverAtLowest,
    /// With stripes: a topic that is closed has seen what the main window has.
    GapAtMain,
    /// With stripes: a look below believes that nothing was committed since the main window's last fetch.
    BelowWithoutMarks,
}

impl Model {
    pub(super) fn sabotage_plan(&self, plan: &mut Plan, fetched: &mut Fetched) {
        match self.case.sabotage {
            Some(Sabotage::BaseNotConfirmed) => plan.to_confirm = None,
            Some(Sabotage::MarksReadLast) => {
                plan.marks = Marks::new(self.table.marks(&self.reader.owned()));
            }
            Some(Sabotage::RowsAboveMarks) => fetched.rows.iter_mut().for_each(|row| match row {
                FetchedRow::Message(stored) => Arc::make_mut(stored).stripe = None,
                FetchedRow::Failing(waiting) => waiting.stripe = None,
                _ => {}
            }),
            _ => {}
        }
    }

    pub(super) fn sabotage_marks(&self, marks: &mut [StripeMark]) {
        if self.case.sabotage == Some(Sabotage::LastAppendOnly) {
            marks.iter_mut().for_each(|mark| mark.first_number = 1);
        }
    }

    pub(super) fn sabotage_start(&self, plan: &mut Plan) {
        let window = self.reader.windows.window(plan.window.as_ref());
        let ignored = match self.case.sabotage {
            Some(Sabotage::NewsIgnored) => true,
            Some(Sabotage::TakeoverAtLowest) => window.seen.is_empty(),
            _ => false,
        };
        if ignored {
            plan.request.after = window.cursor;
            plan.request.except = self.reader.in_flight.behind(plan.request.after).collect();
        }
    }

    /// Of a bucket that is taken over in the middle of its rows, only what can be seen is known.
    pub(super) fn sabotage_takeover(&mut self, gained: &BucketSet) {
        if self.case.sabotage != Some(Sabotage::TakeoverAtLowest) {
            return;
        }
        let lowest = self.table.lowest_seen(gained).before();
        for (part, gap) in &mut self.reader.windows.gaps {
            if matches!(part, Part::Buckets(_)) && gap.window.cursor == Position::START {
                gap.window.cursor = lowest;
            }
        }
    }

    pub(super) fn sabotage_answer(&self, writers: &mut Writers) {
        if self.case.sabotage == Some(Sabotage::LastReadLast) {
            writers.last = Position(self.table.last);
        }
    }

    pub(super) fn sabotage_gaps(&mut self) {
        if self.case.sabotage == Some(Sabotage::GapAtMain) {
            let seen = &self.reader.windows.main.seen;
            self.reader.windows.gaps.values_mut().for_each(|gap| gap.window.seen = seen.clone());
        }
        if self.case.sabotage == Some(Sabotage::GapAtBase) {
            for gap in self.reader.windows.gaps.values_mut() {
                if let Some(base) = gap.window.base.take() {
                    gap.window.horizon = base.last;
                    gap.window.cursor = gap.window.cursor.max(base.last);
                }
            }
        }
    }

    pub(super) fn sabotage_horizon(&mut self) {
        match self.case.sabotage {
            Some(Sabotage::HorizonAtOnce) => {
                let horizon = self.reader.horizon.established;
                self.reader.windows.all_mut().for_each(|window| window.horizon = horizon);
            }
            Some(Sabotage::BaseAtOnce) => {
                let claim = self.reader.horizon.claim().cloned();
                self.reader.windows.main.base =
                    claim.filter(|claim| claim.last > self.reader.windows.main.horizon);
            }
            _ => {}
        }
    }

    /// What a part of the rule that is left out does to the windows when a fetch is taken.
    pub(super) fn sabotage_windows(
        &mut self,
        plan: &Plan,
        last: Option<Position>,
        gaps_before: &[Part],
        cursor: Position,
    ) {
        let windows = &mut self.reader.windows;
        let is_new = |part: &Part| !gaps_before.contains(part);
        match self.case.sabotage {
            Some(Sabotage::HorizonOfCutFetch) => {
                let window = windows.window_mut(plan.window.as_ref());
                window.horizon = window.horizon.max(plan.horizon);
            }
            Some(Sabotage::BaseOfCutFetch) => {
                let window = windows.window_mut(plan.window.as_ref());
                if let (Some(base), Some(claim)) = (&mut window.base, &plan.claim) {
                    base.last = base.last.max(claim.last);
                }
            }
            Some(Sabotage::BaseOfLateClaim) => {
                let claim = self.reader.horizon.claim().cloned();
                let window = windows.window_mut(plan.window.as_ref());
                if let (Some(Claim { last: claimed, open }), Some(last)) = (claim, last) {
                    window.base = Some(Claim { last: last.min(claimed), open })
                        .filter(|base| base.last > window.horizon);
                }
            }
            Some(Sabotage::CursorOfCutFetch) => {
                let window = windows.window_mut(plan.window.as_ref());
                window.cursor = window.cursor.max(cursor);
            }
            Some(Sabotage::ForgetsPassed) => windows.main.passed.clear(),
            Some(Sabotage::ForgetsAside) => {
                windows.gaps.remove(&Part::Failing);
                windows.aside.clear();
            }
            Some(Sabotage::MergesEarly) => {
                if let Some(part) = &plan.window {
                    windows.gaps.remove(part);
                }
            }
            Some(Sabotage::HotKeysPass) => {
                windows.gaps.retain(|part, gap| gap.state != GapState::Hot || !is_new(part));
            }
            _ => {}
        }
    }
}

fn is_caught(case: Case) {
    let failed = first_failure(2_000, |seed, loud| Model::new(case, seed, loud).run());
    let failed = failed.expect("a rule that is wrong is found out");
    let harm = ["before", "twice", "stranded", "still to be settled"];
    assert!(harm.iter().any(|harm| failed.contains(harm)), "{failed}");
}

#[test]
fn rows_of_narrower_gaps_that_are_shown_again_and_again_hold_up_the_others() {
    let sabotage = Some(Sabotage::ForgetsPassed);
    is_caught(Case { lasting: true, sabotage, ..Case::of(Ordering::Writers) });
}

#[test]
fn a_plain_cursor_loses_rows_of_several_writers() {
    is_caught(Case { belief: Ordering::Single, faults: false, ..Case::of(Ordering::Writers) });
}

#[test]
fn a_horizon_that_counts_at_once_loses_rows() {
    let sabotage = Some(Sabotage::HorizonAtOnce);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Writers) });
}

#[test]
fn a_last_position_that_is_read_behind_the_writers_loses_rows() {
    let sabotage = Some(Sabotage::LastReadLast);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Writers) });
}

#[test]
fn a_horizon_that_counts_beyond_where_a_fetch_was_cut_short_loses_rows() {
    let sabotage = Some(Sabotage::HorizonOfCutFetch);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Writers) });
}

#[test]
fn a_gap_that_ends_before_it_has_caught_up_loses_rows() {
    let sabotage = Some(Sabotage::MergesEarly);
    is_caught(Case { sabotage, ..Case::of(Ordering::Single) });
}

#[test]
fn a_hot_key_without_a_window_of_its_own_loses_rows() {
    let sabotage = Some(Sabotage::HotKeysPass);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Single) });
}

#[test]
fn failing_keys_that_are_passed_and_forgotten_lose_rows() {
    let sabotage = Some(Sabotage::ForgetsAside);
    for ordering in [Ordering::Single, Ordering::Writers, Ordering::Stripes] {
        is_caught(Case { sabotage, ..Case::of(ordering) });
    }
}

#[test]
fn a_base_that_is_not_confirmed_loses_rows() {
    let sabotage = Some(Sabotage::BaseNotConfirmed);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Writers) });
}

#[test]
fn a_base_that_counts_at_once_loses_rows() {
    let sabotage = Some(Sabotage::BaseAtOnce);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Writers) });
}

#[test]
fn a_base_beyond_where_a_fetch_was_cut_short_loses_rows() {
    let sabotage = Some(Sabotage::BaseOfCutFetch);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Writers) });
}

#[test]
fn a_base_that_counts_on_later_writers_loses_rows() {
    let sabotage = Some(Sabotage::BaseOfLateClaim);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Writers) });
}

#[test]
fn a_topic_that_takes_a_base_for_its_horizon_loses_rows() {
    let sabotage = Some(Sabotage::GapAtBase);
    is_caught(Case { sabotage, ..Case::of(Ordering::Writers) });
}

#[test]
fn a_plain_cursor_loses_rows_of_other_stripes() {
    is_caught(Case { belief: Ordering::Single, faults: false, ..Case::of(Ordering::Stripes) });
}

#[test]
fn rows_above_the_marks_pass_earlier_ones() {
    let sabotage = Some(Sabotage::RowsAboveMarks);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Stripes) });
}

#[test]
fn a_fetch_that_begins_at_the_cursor_loses_what_was_committed_below_it() {
    let sabotage = Some(Sabotage::NewsIgnored);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Stripes) });
}

#[test]
fn marks_that_are_read_behind_the_fetch_lose_rows() {
    let sabotage = Some(Sabotage::MarksReadLast);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Stripes) });
}

#[test]
fn several_appends_that_are_taken_for_the_last_one_lose_rows() {
    let sabotage = Some(Sabotage::LastAppendOnly);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Stripes) });
}

#[test]
fn a_cursor_that_stays_beyond_where_a_fetch_was_cut_short_loses_rows() {
    let sabotage = Some(Sabotage::CursorOfCutFetch);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Stripes) });
}

#[test]
fn a_bucket_that_is_taken_over_at_its_lowest_row_loses_rows() {
    let sabotage = Some(Sabotage::TakeoverAtLowest);
    is_caught(Case { sabotage, ..Case::of(Ordering::Stripes) });
}

#[test]
fn a_topic_that_takes_the_marks_of_the_main_window_for_its_own_loses_rows() {
    let sabotage = Some(Sabotage::GapAtMain);
    is_caught(Case { sabotage, ..Case::of(Ordering::Stripes) });
}
