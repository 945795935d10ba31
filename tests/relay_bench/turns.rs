//! Order of variants that are measured in turns.

/// Returns the order of so many variants in a round. It begins elsewhere in each round, and goes
/// backwards in every other: what one leaves behind for the next meets different ones.
pub(crate) fn turns(variants: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..variants).collect();
    order.rotate_left(round.checked_rem(variants).unwrap_or(0));
    if round % 2 == 1 {
        order.reverse();
    }
    order
}
