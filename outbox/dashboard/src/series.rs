//! Samples of the backlog over the last hours, in bounded memory.

use std::collections::VecDeque;
use std::time::Duration;

use outbox::Timestamp;

/// Time that the samples cover.
const COVERS: Duration = Duration::from_secs(24 * 3_600);

/// Figures at one time, summed over the routes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) pending: u64,
    pub(crate) parked: u64,
    pub(crate) dead: u64,
    pub(crate) failing_keys: u64,
    pub(crate) oldest: Duration,
    /// Messages that the relay of this process has delivered since its start.
    pub(crate) delivered: Option<u64>,
    /// Batches of that relay, and the time that their oldest messages have waited, summed.
    pub(crate) batches: u64,
    pub(crate) waited: Duration,
}

/// Value of a sample that a chart shows. `None`: there is none, which is a gap.
pub(crate) type Value = fn(&Sample, Option<(&Sample, Duration)>) -> Option<f64>;

/// Samples in the order of their times. `None`: the store gave no answer.
#[derive(Debug)]
pub(crate) struct Series {
    samples: VecDeque<(Timestamp, Option<Sample>)>,
    max: usize,
}

impl Series {
    /// Creates a series for samples with this pause between two.
    pub(crate) fn new(every: Duration) -> Self {
        let max = COVERS.as_secs() / every.as_secs().max(1) + 1;
        Self { samples: VecDeque::new(), max: usize::try_from(max.min(20_000)).unwrap_or(20_000) }
    }

    /// Adds a sample.
    pub(crate) fn add(&mut self, at: Timestamp, sample: Option<Sample>) {
        // A clock that was set back: the rest would be drawn over what is there.
        if self.samples.back().is_some_and(|(last, _)| *last > at) {
            self.samples.clear();
        }
        if self.samples.len() == self.max {
            self.samples.pop_front();
        }
        self.samples.push_back((at, sample));
    }

    /// Returns the largest value in each of so many parts of the last `span`.
    pub(crate) fn bins(
        &self,
        now: Timestamp,
        span: Duration,
        parts: usize,
        value: Value,
    ) -> Vec<Option<f64>> {
        let mut bins: Vec<Option<f64>> = vec![None; parts];
        let width = span.as_micros().max(1);
        let mut before: Option<(Timestamp, &Sample)> = None;
        for (at, sample) in &self.samples {
            let Some(sample) = sample else {
                before = None;
                continue;
            };
            let last = before.replace((*at, sample)).map(|(then, sample)| (sample, at.since(then)));
            let age = now.since(*at).as_micros();
            if age >= width || *at > now {
                continue;
            }
            let bin = usize::try_from((width - 1 - age) * parts as u128 / width).unwrap_or(parts);
            if let (Some(bin), Some(value)) = (bins.get_mut(bin), value(sample, last)) {
                *bin = Some(bin.map_or(value, |before: f64| before.max(value)));
            }
        }
        bins
    }
}

/// Values of the charts.
pub(crate) mod values {
    use super::Sample;
    use std::time::Duration;

    #[expect(clippy::cast_precision_loss, reason = "a chart has a few hundred pixels")]
    const fn float(number: u64) -> f64 {
        number as f64
    }

    pub(crate) fn oldest(sample: &Sample, _: Option<(&Sample, Duration)>) -> Option<f64> {
        Some(sample.oldest.as_secs_f64())
    }

    pub(crate) fn waiting(sample: &Sample, _: Option<(&Sample, Duration)>) -> Option<f64> {
        Some(float(sample.pending + sample.parked))
    }

    pub(crate) fn parked(sample: &Sample, _: Option<(&Sample, Duration)>) -> Option<f64> {
        Some(float(sample.parked))
    }

    pub(crate) fn dead(sample: &Sample, _: Option<(&Sample, Duration)>) -> Option<f64> {
        Some(float(sample.dead))
    }

    pub(crate) fn failing(sample: &Sample, _: Option<(&Sample, Duration)>) -> Option<f64> {
        Some(float(sample.failing_keys))
    }

    /// Mean time from append to confirmation since the sample before.
    pub(crate) fn latency(sample: &Sample, before: Option<(&Sample, Duration)>) -> Option<f64> {
        let (before, _) = before?;
        let batches = sample.batches.checked_sub(before.batches).filter(|batches| *batches > 0)?;
        Some(sample.waited.checked_sub(before.waited)?.as_secs_f64() / float(batches))
    }

    /// Deliveries a second since the sample before.
    pub(crate) fn rate(sample: &Sample, before: Option<(&Sample, Duration)>) -> Option<f64> {
        let (before, span) = before.filter(|(_, span)| !span.is_zero())?;
        let delivered = sample.delivered?.checked_sub(before.delivered?)?;
        Some(float(delivered) / span.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    fn pending(pending: u64) -> Option<Sample> {
        Some(Sample { pending, delivered: Some(pending * 10), ..Sample::default() })
    }

    #[test]
    fn a_bin_has_the_largest_value_and_a_time_without_samples_is_a_gap() {
        let mut series = Series::new(S * 10);
        for (second, sample) in
            [(5, pending(9)), (61, pending(1)), (65, pending(3)), (75, None), (95, pending(2))]
        {
            series.add(at(second), sample);
        }
        let bins = series.bins(at(100), S * 40, 4, values::waiting);
        assert_eq!(bins, [Some(3.0), None, None, Some(2.0)]);
        let rates = series.bins(at(100), S * 40, 4, values::rate);
        assert_eq!(rates, [Some(5.0), None, None, None], "behind a gap no rate is known");
    }

    #[test]
    fn latency_is_the_mean_between_two_samples() {
        let sample = |batches, waited| Sample { batches, waited: S * waited, ..Sample::default() };
        let (before, after) = (sample(10, 100), sample(14, 102));
        assert_eq!(values::latency(&after, Some((&before, S))), Some(0.5));
        assert_eq!(values::latency(&after, None), None);
        assert_eq!(values::latency(&before, Some((&before, S))), None, "nothing was sent");
        assert_eq!(values::latency(&before, Some((&after, S))), None, "another relay");
    }

    #[test]
    fn memory_is_bounded_whatever_the_pause() {
        let mut series = Series::new(S);
        for second in 0..200_000 {
            series.add(at(second), pending(1));
        }
        assert_eq!(series.samples.len(), 20_000);
        assert_eq!(Series::new(S * 15).max, 5_761);
        series.add(at(7), pending(2));
        assert_eq!(series.samples.len(), 1, "the clock was set back");
    }
}
