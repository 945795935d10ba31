//! Committed marks: how far each sequence shard was committed when the store was asked. Pure.

use std::sync::Arc;

use outbox_contract::backend::{Bucket, BucketSet, FetchedRow, Position, Stripe, StripeId, StripeMark};

/// Marks from one query, by sequence shard. Cheap to clone, because windows share what they have
/// seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks(Arc<Vec<StripeMark>>);

impl Marks {
    pub(super) fn new(mut marks: Vec<StripeMark>) -> Self {
        marks.sort_unstable_by_key(|mark| mark.last.stripe);
        marks.dedup_by_key(|mark| mark.last.stripe);
        Self(Arc::new(marks))
    }

    #[cfg(any(test, feature = "_simulation"))]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(any(test, feature = "_simulation"))]
    pub(super) fn iter(&self) -> impl Iterator<Item = StripeMark> {
        self.0.iter().copied()
    }

    fn get(&self, stripe: StripeId) -> Option<&StripeMark> {
        let at = self.0.binary_search_by_key(&stripe, |mark| mark.last.stripe);
        at.ok().map(|at| &self.0[at])
    }

    /// Returns true if a row was committed when these marks were read.
    ///
    /// A later row may be above an earlier one of its shard that the same fetch did not return, so
    /// it does not count yet. A row outside of any shard waits for nothing.
    pub(super) fn cover(&self, row: &FetchedRow) -> bool {
        let Some((stripe, bucket)) = stripe_of(row) else { return true };
        // A program with its own hash function gets no order, but its rows are delivered.
        stripe.stripe.bucket() != bucket || self.reach(stripe, row.position())
    }

    /// Returns true if a shard was committed up to this row. Where the counters went back, its
    /// number alone does not tell.
    pub(super) fn reach(&self, row: Stripe, position: Position) -> bool {
        self.get(row.stripe).is_some_and(|mark| row.number <= mark.last.number && position <= mark.position)
    }

    /// Returns the position behind which everything is that was committed in shards of these
    /// buckets since the other marks were read. `None`: nothing was committed.
    pub(super) fn news(&self, since: &Self, buckets: &BucketSet, only: Option<StripeId>) -> Option<Position> {
        if Arc::ptr_eq(&self.0, &since.0) {
            return None;
        }
        let is_asked = |mark: &&StripeMark| {
            buckets.contains(mark.last.stripe.bucket()) && only.is_none_or(|only| only == mark.last.stripe)
        };
        if since.0.iter().filter(is_asked).any(|seen| self.get(seen.last.stripe).is_none()) {
            // The shard went back to nothing.
            return Some(Position::START);
        }
        self.0.iter().filter(is_asked).filter_map(|mark| news(mark, since.get(mark.last.stripe))).min()
    }

    /// Returns the buckets with commits since the other marks were read that may be at or below
    /// this position.
    pub(super) fn late(&self, since: &Self, buckets: &BucketSet, position: Position) -> BucketSet {
        let is_late = |mark: &&StripeMark| {
            news(mark, since.get(mark.last.stripe)).is_some_and(|after| after < position)
        };
        let asked = self.0.iter().filter(|mark| buckets.contains(mark.last.stripe.bucket()));
        asked.filter(is_late).map(|mark| mark.last.stripe.bucket()).collect()
    }

    /// Returns the marks that both have reached.
    pub(super) fn earlier(&self, other: &Self) -> Self {
        if Arc::ptr_eq(&self.0, &other.0) {
            return self.clone();
        }
        let both = self.0.iter().filter_map(|mark| Some((mark, other.get(mark.last.stripe)?)));
        let earlier = both.map(|(one, two)| if one.last.number <= two.last.number { *one } else { *two });
        Self(Arc::new(earlier.collect()))
    }

    /// Returns these marks, with the others' marks for these buckets.
    pub(super) fn with(&self, others: &Self, buckets: &BucketSet) -> Self {
        let of_buckets = |mark: &&StripeMark| buckets.contains(mark.last.stripe.bucket());
        let kept = self.0.iter().filter(|mark| !of_buckets(mark));
        Self::new(kept.chain(others.0.iter().filter(of_buckets)).copied().collect())
    }
}

/// Returns the shard and number of a row, and its bucket. `None`: the row is outside of any shard.
pub(super) fn stripe_of(row: &FetchedRow) -> Option<(Stripe, Bucket)> {
    match row {
        FetchedRow::Message(stored) => Some((stored.stripe?, stored.bucket)),
        FetchedRow::Failing(waiting) | FetchedRow::Malformed(waiting, _) => {
            Some((waiting.stripe?, waiting.bucket))
        }
        _ => None,
    }
}

/// Returns the position behind which everything is that was committed in a shard since it was last
/// seen.
fn news(mark: &StripeMark, seen: Option<&StripeMark>) -> Option<Position> {
    let Some(seen) = seen else {
        // Counters that are new to a reader may be new after others, which were lost.
        return Some(Position::START);
    };
    let (number, position) = (seen.last.number, seen.position);
    if (mark.last.number, mark.position) == (number, position) {
        None
    } else if mark.first_number > number + 1 && mark.position > position {
        // Several appends: where they begin is not known.
        Some(position)
    } else if mark.first_number == number + 1 && mark.previous_position == position {
        // Only the last append is new, and its first position is known.
        Some(mark.first_position.before())
    } else {
        // The shard went back, as after a restore, so its content is unknown.
        Some(Position::START)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mark, where the one before it was at this position.
    fn mark(stripe: u16, previous: i64, first: (i64, i64), last: (i64, i64)) -> StripeMark {
        StripeMark {
            last: Stripe { stripe: StripeId(stripe), number: last.0 },
            position: Position(last.1),
            first_number: first.0,
            first_position: Position(first.1),
            previous_position: Position(previous),
        }
    }

    fn news_of(since: &[StripeMark], now: &[StripeMark]) -> Option<i64> {
        let (since, now) = (Marks::new(since.to_vec()), Marks::new(now.to_vec()));
        now.news(&since, &BucketSet::ALL, None).map(|position| position.0)
    }

    #[test]
    fn a_single_append_is_all_there_is_to_read() {
        let seen = mark(3, 0, (1, 10), (2, 11));
        assert_eq!(news_of(&[seen], &[seen]), None);
        assert_eq!(news_of(&[seen], &[mark(3, 11, (3, 90), (5, 95))]), Some(89));
    }

    #[test]
    fn of_several_appends_only_the_end_of_what_was_seen_is_known() {
        let seen = mark(3, 0, (1, 10), (2, 11));
        assert_eq!(news_of(&[seen], &[mark(3, 80, (4, 90), (5, 95))]), Some(11));
    }

    #[test]
    fn a_stripe_that_went_back_is_read_whole() {
        let seen = mark(3, 40, (5, 50), (5, 50));
        assert_eq!(news_of(&[seen], &[mark(3, 30, (4, 40), (4, 40))]), Some(0));
        assert_eq!(news_of(&[seen], &[mark(3, 50, (5, 60), (5, 60))]), Some(0));
        assert_eq!(news_of(&[seen], &[mark(3, 10, (6, 20), (6, 20))]), Some(0));
        assert_eq!(news_of(&[seen], &[]), Some(0), "to nothing");
    }

    /// It went back, and on to the numbers that come next. Only the positions tell.
    #[test]
    fn a_stripe_that_went_back_and_on_is_read_whole() {
        let seen = mark(3, 40, (5, 50), (5, 50));
        assert_eq!(news_of(&[seen], &[mark(3, 55, (6, 60), (7, 61))]), Some(0));
        assert_eq!(news_of(&[], &[mark(3, 0, (1, 90), (1, 90))]), Some(0), "from nothing");
        assert_eq!(
            news_of(&[], &[mark(3, 80, (2, 90), (2, 90))]),
            Some(0),
            "from nothing, in several appends"
        );
    }

    #[test]
    fn a_row_above_the_position_of_its_mark_is_not_covered_whatever_its_number_is() {
        let marks = Marks::new(vec![mark(3, 40, (5, 50), (7, 52))]);
        let reach =
            |number, position| marks.reach(Stripe { stripe: StripeId(3), number }, Position(position));
        assert!(reach(7, 52) && reach(1, 10));
        assert!(!reach(8, 60), "committed later");
        assert!(!reach(1, 60), "committed after the counters went back");
        assert!(!reach(8, 10), "committed before the counters went back");
    }

    #[test]
    fn the_lowest_of_all_stripes_counts_and_only_of_those_asked_for() {
        let seen = Marks::new(vec![mark(8, 0, (1, 10), (1, 10)), mark(4, 0, (1, 11), (1, 11))]);
        let now = Marks::new(vec![mark(8, 10, (2, 20), (2, 20)), mark(4, 11, (2, 30), (2, 30))]);
        assert_eq!(now.news(&seen, &BucketSet::ALL, None), Some(Position(19)));
        let buckets: BucketSet = [StripeId(4).bucket()].into_iter().collect();
        assert_eq!(now.news(&seen, &buckets, None), Some(Position(29)));
        assert_eq!(now.news(&seen, &BucketSet::ALL, Some(StripeId(5))), None);
    }

    #[test]
    fn two_windows_have_seen_together_what_both_have() {
        let of = |stripe, number| mark(stripe, 0, (number, number * 10), (number, number * 10));
        let one = Marks::new(vec![of(1, 1), of(2, 7)]);
        let two = Marks::new(vec![of(2, 6), of(3, 3)]);
        assert_eq!(*one.earlier(&two).0, [of(2, 6)]);
    }
}
