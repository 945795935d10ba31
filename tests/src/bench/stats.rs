//! Figures of repeated measurements.

/// Returns the value in the middle; of an even number, the mean of the two. None: there is no
/// value.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Returns the smallest value that is no smaller than this part of all, such as 0.99. None: there
/// is no value.
pub fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (0..sorted.len()).find(|rank| (*rank + 1) as f64 >= part * sorted.len() as f64);
    rank.map(|rank| sorted[rank])
}
