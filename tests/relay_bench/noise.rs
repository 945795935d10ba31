//! Differences beyond the noise between two series of paired measurements. Pure.
//!
//! A round measures both sides shortly after each other, so that whatever else the machine does
//! concerns both, and its ratio is one observation. The interval of the ratios' median is that of
//! the sign test: the k-th smallest and the k-th largest ratio enclose the true median except with
//! the probability that fewer than k of n fair coins fall on one side. It assumes nothing about the
//! shape of the noise, which has outliers, and nothing about its size.

use std::fmt;

/// Confidence of an interval. Of seven figures of a commit that is compared with itself, one lies
/// outside its interval in at most 3.5 of 100 comparisons.
pub(crate) const CONFIDENCE: f64 = 0.995;

/// Smallest change that counts. The places of code and data in a program differ from build to build
/// of the same source, and move processor time by as much.
pub(crate) const LEAST: f64 = 0.01;

/// Ratio of two series: the second to the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    /// Ends of the interval.
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    No,
    Less,
    More,
}

impl Ratio {
    /// Returns the ratio of two series of measurements, of which each pair is one round. None: there
    /// are too few pairs for the confidence.
    pub(crate) fn of(base: &[f64], head: &[f64]) -> Option<Self> {
        let pairs = base.iter().zip(head).map(|(base, head)| head / base);
        let mut ratios: Vec<f64> = pairs.filter(|ratio| ratio.is_finite()).collect();
        ratios.sort_by(f64::total_cmp);
        let rank = rank(ratios.len())?;
        let (low, high) = (ratios[rank - 1], ratios[ratios.len() - rank]);
        Some(Self { median: crate::stats::median(&ratios)?, low, high })
    }

    /// Returns the direction of a change: both ends of the interval are on one side of 1, and the
    /// median is far enough from it.
    pub(crate) fn moved(&self) -> Moved {
        match self {
            _ if (self.median - 1.0).abs() < LEAST => Moved::No,
            _ if self.high < 1.0 => Moved::Less,
            _ if self.low > 1.0 => Moved::More,
            _ => Moved::No,
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        let (low, high) = (percent(self.low), percent(self.high));
        match self.moved() {
            Moved::No => write!(f, "no difference beyond the noise ({low:+.1} % to {high:+.1} %)"),
            moved => {
                let word = if moved == Moved::More { "more" } else { "less" };
                write!(f, "{:.1} % {word}, sure ({low:+.1} % to {high:+.1} %)", percent(self.median).abs())
            }
        }
    }
}

/// Smallest number of pairs that is enough for the confidence.
pub(crate) fn fewest() -> usize {
    (1..).find(|pairs| rank(*pairs).is_some()).unwrap_or(usize::MAX)
}

/// Returns the largest rank from both ends whose interval has the confidence, of this many ratios.
/// None: not even the whole range has it.
fn rank(ratios: usize) -> Option<usize> {
    let outside = |rank: usize| 2.0 * coins(ratios, rank - 1);
    (1..=ratios / 2).take_while(|rank| outside(*rank) <= 1.0 - CONFIDENCE).last()
}

/// Returns the probability that at most this many of n fair coins show heads.
fn coins(n: usize, heads: usize) -> f64 {
    let mut of_one = 0.5_f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    let mut sum = of_one;
    for one in 1..=heads {
        of_one *= (n - one + 1) as f64 / one as f64;
        sum += of_one;
    }
    sum
}
