//! The publish timeout: for how long a batch is waited for. Pure.
//!
//! Whatever is given up is sent again, so giving up on a broker that is slow makes it slower: it has each message twice to carry, then three times.
//! But what hangs is not waited for either, since its publisher is wanted for others. So a batch is given up after its time, unless it
//! can be seen to come to an end: it is being confirmed bit by bit, fast enough; or its turn has not come, and those before it go on.

use std::collections::BTreeMap;
use std::time::Duration;

/// Number of times in a `publish_timeout` that a batch that is out is looked at.
pub(crate) const LOOKS: u32 = 8;
/// By how many looks the pace is judged. One fewer than there are before its time is over: then what was answered at once says nothing of the rest.
const PACE: usize = LOOKS as usize - 1;
/// The longest that a batch is waited for, in `publish_timeout`s, whatever is heard of it.
pub(crate) const MAX: u32 = 12;

/// The batches of a route that are out, in the order in which they went: when each, or one before it, was heard of last.
#[derive(Debug, Default)]
pub(crate) struct Out {
    batches: BTreeMap<u64, Option<Duration>>,
    next: u64,
}

impl Out {
    /// A batch goes out.
    pub(crate) fn begin(&mut self) -> u64 {
        self.next += 1;
        self.batches.insert(self.next, None);
        self.next
    }

    /// Something was said of messages of a batch.
    pub(crate) fn heard(&mut self, batch: u64, now: Duration) {
        self.batches.range_mut(batch..).for_each(|(_, heard)| *heard = Some(now));
    }

    /// A batch is back, or given up.
    pub(crate) fn end(&mut self, batch: u64) {
        self.batches.remove(&batch);
    }

    /// Whether this batch, or one that went before it, was heard of since then.
    pub(crate) fn is_heard_since(&self, batch: u64, since: Duration) -> bool {
        self.batches.get(&batch).copied().flatten().is_some_and(|heard| heard > since)
    }
}

/// How one batch comes along.
#[derive(Debug)]
pub(crate) struct Vigil {
    messages: usize,
    /// How many messages were answered at the last looks, the latest last.
    answered: [usize; PACE],
    looks: u32,
    /// How many looks there were since the first that found something answered.
    answering: usize,
}

impl Vigil {
    pub(crate) const fn new(messages: usize) -> Self {
        Self { messages, answered: [0; PACE], looks: 0, answering: 0 }
    }

    /// Looks at the batch, each eighth of its time. Says whether to wait on.
    ///
    /// `others_go_on`: of batches before it something was heard within a `publish_timeout`. `may_wait`: nobody needs what it holds, and it could still be begun.
    /// `overdue`: its time is over by the clock, whatever looks there were: a relay may have slept.
    pub(crate) fn look(
        &mut self,
        answered: usize,
        others_go_on: bool,
        may_wait: bool,
        overdue: bool,
    ) -> bool {
        let over = self.answering.min(PACE);
        let lately = answered.saturating_sub(self.answered[PACE - over.max(1)]);
        self.answered.rotate_left(1);
        self.answered[PACE - 1] = answered;
        self.looks += 1;
        self.answering += usize::from(answered > 0);
        let left = (MAX * LOOKS).saturating_sub(self.looks);
        if self.looks < LOOKS && !overdue {
            return true;
        }
        if !may_wait || left == 0 {
            return false;
        }
        if over == 0 {
            // Its turn may just have come: the next look tells its pace.
            return answered > 0 || others_go_on;
        }
        // At the pace of the last looks, the rest is answered before the longest wait is over.
        let rest = self.messages.saturating_sub(answered);
        lately > 0 && rest.saturating_mul(over) <= lately.saturating_mul(left as usize)
    }

    /// Whether something was answered since the look before the last.
    pub(crate) fn is_news(&self) -> bool {
        let [.., before, last] = self.answered;
        last > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// How many looks a batch of 100 is given, of which so many are answered at each look.
    fn looks(answered: impl Fn(u32) -> usize, others_go_on: bool, may_wait: bool) -> u32 {
        let mut vigil = Vigil::new(100);
        (1..).find(|look| !vigil.look(answered(*look), others_go_on, may_wait, false)).unwrap()
    }

    #[test]
    fn a_batch_that_is_answered_bit_by_bit_is_waited_for() {
        assert_eq!(looks(|look| (look as usize * 3).min(99), false, true), 40, "until it stood still");
        assert_eq!(looks(|look| look as usize * 3, false, false), LOOKS, "not when its buckets are wanted");
        assert_eq!(looks(|look| look as usize, false, true), LOOKS, "this one would take too long");
    }

    #[test]
    fn a_relay_that_slept_goes_on_only_with_what_is_still_its_own() {
        let slept = |may_wait| Vigil::new(100).look(10, true, may_wait, true);
        assert!(slept(true) && !slept(false));
    }

    #[test]
    fn a_batch_of_which_the_rest_hangs_is_given_up_when_its_time_is_over() {
        assert_eq!(looks(|_| 99, true, true), LOOKS);
        assert_eq!(looks(|_| 0, false, true), LOOKS);
    }

    #[test]
    fn a_batch_whose_turn_has_not_come_is_waited_for_while_others_go_on() {
        assert_eq!(looks(|_| 0, true, true), MAX * LOOKS);
        let late = |look: u32| (look as usize).saturating_sub(20) * 10;
        assert_eq!(looks(|look| late(look).min(99), true, true), 37, "its own turn, until it stood still");
        assert_eq!(
            looks(|look| if look < 20 { 0 } else { 50 }, true, true),
            21,
            "its own turn, then nothing"
        );
    }

    #[test]
    fn only_those_before_it_say_that_a_turn_is_still_to_come() {
        let mut out = Out::default();
        let (first, second, third) = (out.begin(), out.begin(), out.begin());
        out.heard(second, S * 5);
        assert!(
            !out.is_heard_since(first, S)
                && out.is_heard_since(third, S)
                && !out.is_heard_since(third, S * 5)
        );
        out.end(second);
        assert!(out.is_heard_since(third, S), "it was heard of and is back");
        out.end(first);
        out.end(third);
        assert!(out.batches.is_empty());
    }
}
