//! Lag of a member's partitions, from what the client learns with each fetch. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outbox_contract::backend::{Lag, Unit};

/// Time for which the last stable offset stands still, with records behind it, before that is said:
/// transactions of a producer that is well take less.
const STILL: Duration = Duration::from_secs(20);

/// A partition, as the client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// The offset that is fetched next.
    pub(crate) next: i64,
    /// The first offset that is not finished, if anything of the partition is in memory.
    pub(crate) unfinished: Option<i64>,
    /// Time at which that record was written, in milliseconds since 1970.
    pub(crate) written: Option<i64>,
    /// The end of the log (high watermark).
    pub(crate) high: i64,
    /// The last stable offset: behind it stands a transaction that is not over.
    pub(crate) stable: i64,
}

/// The lags that were measured last.
#[derive(Debug, Default)]
pub(crate) struct Lags {
    lags: Vec<Lag>,
    /// Last stable offset of each partition, and the time since which it has not moved.
    still: BTreeMap<Unit, (i64, Instant)>,
}

impl Lags {
    /// Takes what is known of all partitions of the member. `millis`: now, since 1970.
    pub(crate) fn measure(
        &mut self,
        known: impl IntoIterator<Item = (Unit, Known)>,
        now: Instant,
        millis: i64,
    ) {
        let before = std::mem::take(&mut self.still);
        self.lags.clear();
        for (unit, it) in known {
            let done = it.unfinished.unwrap_or(it.next);
            let mut lag = Lag::new(unit.clone(), u64::try_from(it.high.saturating_sub(done)).unwrap_or(0));
            if lag.messages > 0 {
                let age = it.written.and_then(|written| u64::try_from(millis.saturating_sub(written)).ok());
                lag = lag.with_age(age.map(Duration::from_millis));
            }
            // Everything that is stable was fetched, and there is more.
            if it.stable >= 0 && it.stable < it.high && it.next == it.stable {
                let same = before.get(&unit).filter(|(stable, _)| *stable == it.stable);
                let since = same.map_or(now, |(_, since)| *since);
                self.still.insert(unit.clone(), (it.stable, since));
                let stands = now.saturating_duration_since(since);
                lag = lag.with_stuck((stands >= STILL).then(|| words(&unit, it)));
            }
            self.lags.push(lag);
        }
    }

    pub(crate) fn all(&self) -> Vec<Lag> {
        self.lags.clone()
    }
}

fn words(Unit { topic, number }: &Unit, Known { stable, high, .. }: Known) -> String {
    format!(
        "a transaction of a producer has been open for long at offset {stable}, and the log goes on to {high}: the producer hangs or died. The broker \
         ends it after its transaction.timeout.ms (15 minutes at most); see kafka-transactions describe-producers --topic {topic} --partition \
         {number}, and abort it with kafka-transactions abort"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit() -> Unit {
        Unit { topic: "orders".parse().unwrap(), number: 2 }
    }

    fn known(next: i64, stable: i64, high: i64) -> Known {
        Known { next, unfinished: None, written: None, high, stable }
    }

    fn stuck(lags: &mut Lags, known: Known, now: Instant) -> bool {
        lags.measure([(unit(), known)], now, 0);
        lags.all()[0].stuck.is_some()
    }

    #[test]
    fn what_is_not_finished_counts_and_the_first_of_it_has_an_age() {
        let mut lags = Lags::default();
        let of = Known { unfinished: Some(3), written: Some(1_000), ..known(10, 12, 12) };
        lags.measure([(unit(), of)], Instant::now(), 8_000);
        assert_eq!(lags.all(), [Lag::new(unit(), 9).with_age(Some(Duration::from_secs(7)))]);
        lags.measure([(unit(), known(12, 12, 12))], Instant::now(), 8_000);
        assert_eq!(lags.all(), [Lag::new(unit(), 0)]);
        lags.measure([], Instant::now(), 0);
        assert!(lags.all().is_empty());
    }

    #[test]
    fn a_stable_offset_that_stands_still_while_the_log_goes_on_is_a_transaction_that_hangs() {
        let (mut lags, start) = (Lags::default(), Instant::now());
        assert!(!stuck(&mut lags, known(5, 5, 9), start));
        assert!(!stuck(&mut lags, known(5, 5, 10), start + STILL / 2));
        assert!(stuck(&mut lags, known(5, 5, 10), start + STILL));
        assert!(lags.all()[0].stuck.as_ref().is_some_and(|words| words.contains("--partition 2")));
        assert!(!stuck(&mut lags, known(6, 6, 10), start + STILL * 2), "it has moved");
        for fine in [known(10, 10, 10), known(3, 6, 10), known(7, -1_001, 10)] {
            assert!(!stuck(&mut lags, fine, start + STILL * 3));
            assert!(!stuck(&mut lags, fine, start + STILL * 5), "{fine:?}");
        }
    }
}
