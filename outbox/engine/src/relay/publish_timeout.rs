//! Publish timeout: decides how long a batch is waited for. Pure.
//!
//! A batch that is given up is sent again. So giving up on a slow broker makes it slower: it has to
//! carry each message twice, then three times. A batch that hangs is not waited for either, because
//! other batches need its publisher. Therefore a batch is given up after its timeout, unless it can
//! be seen to finish: it is being confirmed bit by bit, fast enough; or it waits behind earlier
//! batches that are making progress; or the broker said that it takes nothing for now, as RabbitMQ
//! does in an alarm, and will take what is under way afterwards.

use std::collections::BTreeMap;
use std::time::Duration;

/// Number of checks of an unconfirmed batch in one `publish_timeout`.
pub(crate) const LOOKS: u32 = 8;
/// Number of recent checks that the rate of confirmations is measured over. One fewer than there
/// are in a timeout, so that confirmations at the very start say nothing about the rest.
const PACE: usize = LOOKS as usize - 1;
/// Longest wait for a batch, in `publish_timeout`s, whatever progress it makes.
pub(crate) const MAX: u32 = 12;
/// Number of checks in which a batch has to show progress again, once the broker takes messages.
const AGAIN: u32 = LOOKS / 2;

/// Unconfirmed batches of a route, in the order of sending. Each has the instant of the last answer
/// for it or for an earlier batch.
#[derive(Debug, Default)]
pub(crate) struct UnconfirmedBatches {
    batches: BTreeMap<u64, Option<Duration>>,
    next: u64,
}

impl UnconfirmedBatches {
    /// Adds a batch that is sent now. Returns its number.
    pub(crate) fn begin(&mut self) -> u64 {
        self.next += 1;
        self.batches.insert(self.next, None);
        self.next
    }

    /// Records that the broker answered for messages of a batch.
    pub(crate) fn heard(&mut self, batch: u64, now: Duration) {
        self.batches.range_mut(batch..).for_each(|(_, heard)| *heard = Some(now));
    }

    /// Removes a batch that is finished or given up.
    pub(crate) fn end(&mut self, batch: u64) {
        self.batches.remove(&batch);
    }

    /// Returns true if the broker answered for this batch or an earlier one since that instant.
    pub(crate) fn is_heard_since(&self, batch: u64, since: Duration) -> bool {
        self.batches.get(&batch).copied().flatten().is_some_and(|heard| heard > since)
    }
}

/// Progress of one batch, from which it is decided whether to keep waiting.
#[derive(Debug)]
pub(crate) struct BatchProgress {
    messages: usize,
    /// Numbers of answered messages at the last checks, the latest last.
    answered: [usize; PACE],
    looks: u32,
    /// Number of checks since the first that found an answer.
    answering: usize,
    /// Number of the check before which it is not given up, because the broker had stopped.
    until: u32,
}

/// State of the transport and of other batches at a check.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Around {
    /// An earlier batch made progress within a `publish_timeout`.
    pub(crate) others_go_on: bool,
    /// The broker said that it takes nothing for now.
    pub(crate) is_stopped: bool,
    /// Nothing else needs the batch's publisher or buckets, and the batch could still be started
    /// now.
    pub(crate) may_wait: bool,
    /// The timeout is over by the clock, whatever the number of checks: the relay may have been
    /// suspended.
    pub(crate) is_overdue: bool,
}

impl BatchProgress {
    pub(crate) const fn new(messages: usize) -> Self {
        Self { messages, answered: [0; PACE], looks: 0, answering: 0, until: 0 }
    }

    /// Records a check, one each eighth of the timeout. Returns true if waiting should continue.
    pub(crate) fn look(&mut self, answered: usize, around: Around) -> bool {
        let Around { others_go_on, is_stopped, may_wait, is_overdue } = around;
        let over = self.answering.min(PACE);
        let lately = answered.saturating_sub(self.answered[PACE - over.max(1)]);
        self.answered.rotate_left(1);
        self.answered[PACE - 1] = answered;
        self.looks += 1;
        self.answering += usize::from(answered > 0);
        if is_stopped {
            self.until = self.looks + AGAIN;
        }
        let left = (MAX * LOOKS).saturating_sub(self.looks);
        if self.looks < LOOKS && !is_overdue {
            return true;
        }
        if !may_wait || left == 0 {
            return false;
        }
        if self.looks < self.until {
            return true;
        }
        if over == 0 {
            // Its turn may just have come: the next check shows its rate.
            return answered > 0 || others_go_on;
        }
        // At the recent rate, the rest is answered before the longest wait is over.
        let rest = self.messages.saturating_sub(answered);
        lately > 0 && rest.saturating_mul(over) <= lately.saturating_mul(left as usize)
    }

    /// Returns true if the last check found new answers.
    pub(crate) fn is_news(&self) -> bool {
        let [.., before, last] = self.answered;
        last > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// Returns the number of checks granted to a batch of 100 messages of which so many are
    /// answered at each check.
    fn looks(answered: impl Fn(u32) -> usize, others_go_on: bool, may_wait: bool) -> u32 {
        looks_around(answered, |_| Around { others_go_on, may_wait, ..Around::default() })
    }

    fn looks_around(answered: impl Fn(u32) -> usize, around: impl Fn(u32) -> Around) -> u32 {
        let mut progress = BatchProgress::new(100);
        (1..).find(|look| !progress.look(answered(*look), around(*look))).unwrap()
    }

    #[test]
    fn a_batch_that_is_answered_bit_by_bit_is_waited_for() {
        assert_eq!(looks(|look| (look as usize * 3).min(99), false, true), 40, "until it stood still");
        assert_eq!(looks(|look| look as usize * 3, false, false), LOOKS, "not when its buckets are wanted");
        assert_eq!(looks(|look| look as usize, false, true), LOOKS, "this one would take too long");
    }

    #[test]
    fn a_relay_that_slept_goes_on_only_with_what_is_still_its_own() {
        let slept = |may_wait| {
            let around = Around { others_go_on: true, may_wait, is_overdue: true, is_stopped: false };
            BatchProgress::new(100).look(10, around)
        };
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
    fn a_broker_that_takes_nothing_for_now_is_waited_for() {
        let stopped_until =
            |end, may_wait| move |look| Around { is_stopped: look < end, may_wait, ..Around::default() };
        assert_eq!(looks_around(|_| 50, stopped_until(u32::MAX, true)), MAX * LOOKS);
        assert_eq!(looks_around(|_| 50, stopped_until(u32::MAX, false)), LOOKS, "its buckets are wanted");
        assert_eq!(looks_around(|_| 0, stopped_until(20, true)), 19 + AGAIN, "it hangs all the same");
        let again = |look: u32| (10 + look.saturating_sub(21) as usize * 5).min(99);
        assert_eq!(looks_around(again, stopped_until(20, true)), 46, "until it stood still");
    }

    #[test]
    fn only_those_before_it_say_that_a_turn_is_still_to_come() {
        let mut out = UnconfirmedBatches::default();
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
