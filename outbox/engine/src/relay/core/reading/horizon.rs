//! The horizon: the position at or below which nothing can be committed any more, and by whom only while somebody stays open. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use outbox_contract::backend::{Position, Writers};

/// What is known of transactions that may still commit.
#[derive(Debug, Default)]
pub(super) struct Horizon {
    /// Nothing can be committed at or below it any more.
    pub(super) established: Position,
    /// The highest position that any fetch has shown.
    pub(super) seen: Position,
    /// How often the store was asked who is writing.
    pub(super) asked: u64,
    /// The oldest first. Who is named by one and is still open is named by each later one too: so they name ever more.
    claims: Vec<Claim>,
}

/// At or below `last`, nobody but these transactions can commit anything any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) last: Position,
    pub(super) open: Arc<BTreeSet<String>>,
}

/// The most claims that are kept. With more of them a base moves on in smaller steps while many transactions take long.
const MAX_CLAIMS: usize = 8;

impl Horizon {
    /// Whether the horizon is behind what was seen, so that asking who is writing would help.
    pub(super) fn is_behind(&self) -> bool {
        self.established < self.seen
    }

    /// What can be said of the longest writers alone. They will be there longest, so it is the last claim to fail.
    pub(super) fn claim(&self) -> Option<&Claim> {
        self.claims.first()
    }

    /// Takes back all that was said of what stands behind this position: it turned out not to be true.
    pub(super) fn go_back(&mut self, position: Position) {
        self.established = self.established.min(position);
        self.seen = self.seen.min(position);
        self.claims.clear();
    }

    /// Takes the answer to the question who is writing. It must have been asked after the last fetch returned. Says whether the horizon moved.
    pub(super) fn wrote(&mut self, writers: &Writers) -> bool {
        self.asked += 1;
        for claim in &mut self.claims {
            if !claim.open.is_subset(&writers.open) {
                claim.open = Arc::new(claim.open.intersection(&writers.open).cloned().collect());
            }
        }
        // Given out before the question who is open, as was all that was seen: a backlog of any size is below it. What was seen counts only where the
        // store can't tell: a row above all that was given out says that the sequence went back, and what is given out next stands below that row.
        let last = if writers.last == Position::START { self.seen } else { writers.last };
        self.claims.push(Claim { last, open: Arc::new(writers.open.clone()) });
        // Of two that name the same ones, the later one says more.
        self.claims.dedup_by(|later, earlier| {
            let same = later.open == earlier.open;
            if same {
                earlier.last = earlier.last.max(later.last);
            }
            same
        });
        if self.claims.len() > MAX_CLAIMS {
            // Not an old one: those lose their writers soon, and say much then.
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
        Writers { open: open.iter().map(|name| (*name).to_owned()).collect(), last: Position(last) }
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
        // Each writer takes twelve questions, besides one that stays.
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
