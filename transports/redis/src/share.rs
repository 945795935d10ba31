//! Shares of the members in the units of a topic: decided by each for itself, from the same list,
//! with the same result.

use std::collections::BTreeSet;

/// Returns the number of a topic's units that a member should have, of so many members that take
/// some. Shares differ by one at most; those who came first have the larger ones. 0 for a member
/// that is not among them.
pub(crate) fn fair_share(units: u32, members: &[String], me: &str) -> u32 {
    let ordered: BTreeSet<&str> = members.iter().map(String::as_str).collect();
    let (Some(rank), Ok(count)) =
        (ordered.iter().position(|member| *member == me), u32::try_from(ordered.len()))
    else {
        return 0;
    };
    let larger = u32::try_from(rank).is_ok_and(|rank| rank < units % count);
    units / count + u32::from(larger)
}

/// Returns the units to give up: the highest ones beyond the share, so that the fewest move.
pub(crate) fn surplus(mine: &BTreeSet<u32>, share: u32) -> Vec<u32> {
    let beyond = mine.len().saturating_sub(usize::try_from(share).unwrap_or(usize::MAX));
    mine.iter().rev().take(beyond).copied().collect()
}

/// Returns the free units to take, up to the share.
pub(crate) fn wanted(mine: &BTreeSet<u32>, free: &[u32], share: u32) -> Vec<u32> {
    let missing = usize::try_from(share).unwrap_or(usize::MAX).saturating_sub(mine.len());
    free.iter().filter(|unit| !mine.contains(unit)).take(missing).copied().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shares_cover_all_units_and_differ_by_one_at_most(units in 1_u32..64, count in 1_usize..20) {
            let members: Vec<String> = (0..count).map(|member| format!("{member:03}")).collect();
            let shares: Vec<u32> = members.iter().map(|me| fair_share(units, &members, me)).collect();
            prop_assert_eq!(shares.iter().sum::<u32>(), units);
            prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }

        #[test]
        fn members_that_give_up_and_take_come_to_rest_with_their_shares(
            units in 1_u32..20, count in 1_usize..6, owners in proptest::collection::vec(0_usize..7, 20),
        ) {
            let members: Vec<String> = (0..count).map(|member| format!("{member:03}")).collect();
            let mut owned: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); count];
            for unit in 0..units {
                if let Some(of) = owned.get_mut(owners[unit as usize]) {
                    of.insert(unit);
                }
            }
            for _ in 0..2 {
                for (me, name) in members.iter().enumerate() {
                    let share = fair_share(units, &members, name);
                    for unit in surplus(&owned[me], share) {
                        owned[me].remove(&unit);
                    }
                    let free: Vec<u32> = (0..units).filter(|unit| owned.iter().all(|of| !of.contains(unit))).collect();
                    let taken = wanted(&owned[me], &free, share);
                    owned[me].extend(taken);
                }
            }
            for (me, name) in members.iter().enumerate() {
                prop_assert_eq!(owned[me].len(), fair_share(units, &members, name) as usize);
            }
        }
    }

    #[test]
    fn who_takes_no_units_has_no_share() {
        assert_eq!(fair_share(8, &["a".to_owned()], "b"), 0);
    }
}
