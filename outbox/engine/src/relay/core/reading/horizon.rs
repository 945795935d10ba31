//! Visibility horizon: the position at or below which nothing can be committed any more. While a
//! transaction stays open, *claims* say which transactions alone can still commit below a higher
//! position. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use outbox_contract::backend::{Position, Writers};

/// State of transactions that may still commit.
#[derive(Debug, Default)]
pub(super) struct Horizon {
    /// Visibility horizon: nothing can be committed at or below it any more.
    pub(super) established: Position,
    /// Highest position that any fetch returned.
    pub(super) seen: Position,
    /// Number of queries for open transactions.
    pub(super) asked: u64,
    /// Claims, the oldest first. A transaction that is still open is in all later claims, too, so
    /// the sets grow.
    claims: Vec<Claim>,
}

/// Claim: only these open transactions can still commit at or below `last`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) last: Position,
    pub(super) open: Arc<BTreeSet<String>>,
}

/// Maximum number of claims. If there are more, a base advances in smaller steps while many
/// transactions take long.
const MAX_CLAIMS: usize = 8;

impl Horizon {
    /// Returns true if the horizon is behind what was seen, so that asking for open transactions
    /// would help.
    pub(super) fn is_behind(&self) -> bool {
        self.established < self.seen
    }

    /// Returns the claim about the longest-running transactions. They will last longest, so this
    /// claim is the last to fail.
    pub(super) fn claim(&self) -> Option<&Claim> {
        self.claims.first()
    }

    /// Withdraws all statements about positions behind this one: they proved wrong.
    pub(super) fn go_back(&mut self, position: Position) {
        self.established = self.established.min(position);
        self.seen = self.seen.min(position);
        self.claims.clear();
    }

    /// Processes the list of open transactions. The query must have begun after the last fetch
    /// returned. Returns true if the horizon moved.
    pub(super) fn wrote(&mut self, writers: &Writers) -> bool {
        self.asked += 1;
        for claim in &mut self.claims {
            if !claim.open.is_subset(&writers.open) {
                claim.open = Arc::new(claim.open.intersection(&writers.open).cloned().collect());
            }
        }
        // `last` was assigned before the list of open transactions was taken, as was everything
        // seen: a backlog of any size is below it. What was seen counts only if the store can't
        // tell. A row above the last assigned position means that the sequence went back, and that
        // later rows will be below it.
        let last = if writers.last == Position::START { self.seen } else { writers.last };
        self.claims.push(Claim { last, open: Arc::new(writers.open.clone()) });
        // Of two claims with the same transactions, the later one says more.
        self.claims.dedup_by(|later, earlier| {
            let same = later.open == earlier.open;
            if same {
                earlier.last = earlier.last.max(later.last);
            }
            same
        });
        if self.claims.len() > MAX_CLAIMS {
            // Removes a recent claim. The old ones lose their transactions soon, and say much then.
            self.claims.remove(MAX_CLAIMS - 1);
        }
        let moved = self.claims[0].open.is_empty();
        if moved {
            self.established = self.established.max(self.claims.remove(0).last);
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writers(open: &[&str], last: i64) -> Writers {
        Writers::new(open.iter().map(|name| (*name).to_owned()).collect(), Position(last))
    }

    #[test]
    fn without_writers_all_that_was_given_out_is_below_the_horizon() {
        let mut horizon = Horizon { seen: Position(10), ..Horizon::default() };
        assert!(horizon.is_behind());
        assert!(horizon.wrote(&writers(&[], 1_000)));
        assert_eq!(horizon.established, Position(1_000));
        assert!(!horizon.is_behind());
    }

    #[test]
    fn the_horizon_moves_when_the_last_of_those_who_were_writing_is_over() {
        let mut horizon = Horizon { seen: Position(10), ..Horizon::default() };
        assert!(!horizon.wrote(&writers(&["a", "b"], 10)));
        assert!(!horizon.wrote(&writers(&["b", "c"], 20)));
        assert_eq!(horizon.established, Position::START);
        assert!(horizon.wrote(&writers(&["c", "d"], 30)));
        assert_eq!(horizon.established, Position(10));
        assert!(horizon.wrote(&writers(&["d"], 40)));
        assert_eq!(horizon.established, Position(20), "c was named when 20 was the last, not d");
    }

    #[test]
    fn the_horizon_does_not_pass_what_was_given_out_where_the_sequence_went_back() {
        let mut horizon = Horizon { seen: Position(1_000), ..Horizon::default() };
        assert!(horizon.wrote(&writers(&[], 10)));
        assert_eq!(horizon.established, Position(10));
        horizon.go_back(Position(4));
        assert_eq!((horizon.established, horizon.seen), (Position(4), Position(4)));
    }

    #[test]
    fn what_is_claimed_of_a_long_writer_follows_the_short_ones() {
        let mut horizon = Horizon::default();
        horizon.wrote(&writers(&["long", "a"], 10));
        horizon.wrote(&writers(&["long", "b"], 20));
        let claim = horizon.claim().unwrap();
        assert_eq!(
            (claim.last, claim.open.len()),
            (Position(10), 1),
            "a is over, so only the long one is below 10"
        );
        horizon.wrote(&writers(&["long", "c"], 30));
        assert_eq!(horizon.claim().unwrap().last, Position(20));
    }

    #[test]
    fn claims_are_bounded_and_the_oldest_one_moves_on() {
        let mut horizon = Horizon::default();
        // Each transaction lasts twelve queries, except one that stays open.
        for now in 0_i64..100 {
            let open: Vec<String> = (now.max(11) - 11..=now).map(|number| number.to_string()).collect();
            let mut open: Vec<&str> = open.iter().map(String::as_str).collect();
            open.push("long");
            horizon.wrote(&writers(&open, now * 10));
            assert!(horizon.claims.len() <= MAX_CLAIMS);
        }
        let claim = horizon.claim().unwrap();
        assert_eq!(claim.open.len(), 1);
        assert!(claim.last >= Position(500), "{claim:?}");
    }
}
