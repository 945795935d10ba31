//! Stripes: numbers and positions that are in order within each, and how far each is committed.

use std::collections::BTreeSet;

use outbox_contract::Route;
use outbox_contract::backend::{BucketSet, Position, Stored, Stripe, StripeId, StripeMark};

use super::Tables;
use crate::transaction::Written;

/// By how many positions the stripe that is furthest ahead is ahead of the others, at most.
const FURTHEST_AHEAD: u16 = 64;

impl Tables {
    /// Gives numbers and positions to what one append has added: the rows from `first` on. The
    /// locks of their stripes are held, so what was committed of these, and what the transaction
    /// has added itself, is all there is.
    pub(crate) fn take_numbers(&mut self, written: &mut Written, first: usize) {
        let mut begun = BTreeSet::new();
        for (route, row) in &mut written.rows[first..] {
            let place = (route.clone(), stripe_of(row));
            let before = written.marks.get(&place).or_else(|| self.mark(route, place.1)).copied();
            let number = self.number(row, before.as_ref());
            let mark = before.filter(|_| begun.contains(&place)).map_or(number, |before| StripeMark {
                first_number: before.first_number,
                first_position: before.first_position,
                previous_position: before.previous_position,
                ..number
            });
            begun.insert(place.clone());
            written.marks.insert(place, mark);
        }
    }

    /// Gives a row that is visible at once its number and position. The lock of its stripe is held.
    pub(super) fn append_to_stripe(&mut self, route: &Route, row: &mut Stored) {
        let stripe = stripe_of(row);
        let before = self.mark(route, stripe).copied();
        let mark = self.number(row, before.as_ref());
        self.route(route).stripes.insert(stripe, mark);
    }

    /// Returns the marks of the stripes of these buckets.
    pub(crate) fn stripes(&self, route: &Route, buckets: &BucketSet) -> Vec<StripeMark> {
        let marks = self.routes.get(route).into_iter().flat_map(|tables| &tables.stripes);
        marks.filter(|(stripe, _)| buckets.contains(stripe.bucket())).map(|(_, mark)| *mark).collect()
    }

    fn mark(&self, route: &Route, stripe: StripeId) -> Option<&StripeMark> {
        self.routes.get(route)?.stripes.get(&stripe)
    }

    /// The next number of its stripe, and a position above all that the stripe has. Says the mark
    /// of an append of this row alone.
    fn number(&mut self, row: &mut Stored, before: Option<&StripeMark>) -> StripeMark {
        let stripe = stripe_of(row);
        let last = Stripe { stripe, number: before.map_or(1, |before| before.last.number + 1) };
        // As from clocks that differ: a stripe that runs ahead is above what others commit later.
        // No two share a position.
        let ahead = i64::from(FURTHEST_AHEAD - stripe.0 % FURTHEST_AHEAD);
        let position = Position(((self.next_position().0 + ahead) << 10) | i64::from(stripe.0));
        (row.stripe, row.position) = (Some(last), position);
        StripeMark {
            last,
            position,
            first_number: last.number,
            first_position: position,
            previous_position: before.map_or(Position::START, |before| before.position),
        }
    }
}

fn stripe_of(row: &Stored) -> StripeId {
    StripeId::of(row.message.topic.as_str(), row.message.order_key().as_str())
}
