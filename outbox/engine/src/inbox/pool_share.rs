//! Division of a store's connection pool among inboxes.

/// Maximum number of concurrent transactions of an inbox that has none configured.
pub(crate) const MAX_SHARE: usize = 8;

/// Returns the number of concurrent transactions of each of these inboxes that share what others
/// leave of a pool. A fifth of the pool stays free for the program's own queries; an inbox has at
/// least one transaction.
pub(crate) fn share(pool: Option<usize>, taken_by_others: usize, inboxes: usize) -> usize {
    let Some(pool) = pool else { return MAX_SHARE };
    let own = (pool / 5).max(1);
    let rest = pool.saturating_sub(own).saturating_sub(taken_by_others);
    (rest / inboxes.max(1)).clamp(1, MAX_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inboxes_share_what_is_left_of_a_pool() {
        let shares =
            [(10, 0, 1, 8), (10, 0, 2, 4), (10, 4, 1, 4), (10, 0, 3, 2), (100, 0, 2, 8), (5, 0, 1, 4)];
        for (pool, taken, inboxes, each) in shares {
            assert_eq!(share(Some(pool), taken, inboxes), each, "{inboxes} of {pool} without {taken}");
        }
        assert_eq!(share(None, 0, 5), MAX_SHARE, "no pool, no limit");
        assert_eq!((share(Some(1), 0, 1), share(Some(4), 9, 2)), (1, 1), "never none");
    }

    proptest::proptest! {
        #[test]
        fn a_pool_is_never_overdrawn_where_it_has_a_connection_for_each(
            pool in 2_usize..200, inboxes in 1_usize..20,
        ) {
            let sum = share(Some(pool), 0, inboxes) * inboxes;
            proptest::prop_assert!(sum < pool || inboxes >= pool);
        }
    }
}
