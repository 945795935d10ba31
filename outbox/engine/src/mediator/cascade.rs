//! The events of one unit of work: the next one to handle, their causes, and their limits. Pure.

use std::collections::VecDeque;

/// Limits of a unit of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum length of a chain of events that cause one another.
    pub(crate) depth: usize,
    /// Maximum number of events in total.
    pub(crate) events: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { depth: 16, events: 10_000 }
    }
}

/// Reason why no more events are taken. It persists: a unit of work can't commit even if a handler
/// ignores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Overrun {
    /// These events caused one another, in order.
    Deep(Vec<&'static str>),
    /// More than this many in total.
    Many(usize),
}

/// Events in the order of handling: the order in which they were recorded.
#[derive(Debug)]
pub(crate) struct Cascade<T> {
    limits: Limits,
    /// All recorded events, by number: of a handled one only its cause remains.
    raised: Vec<Raised>,
    waiting: VecDeque<(usize, T)>,
    /// The event being handled: it causes the events recorded meanwhile.
    cause: Option<usize>,
    overrun: Option<Overrun>,
}

#[derive(Debug)]
struct Raised {
    name: &'static str,
    /// Number of events in its chain, itself included.
    depth: usize,
    cause: Option<usize>,
}

impl<T> Cascade<T> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, raised: Vec::new(), waiting: VecDeque::new(), cause: None, overrun: None }
    }

    /// Records an event, caused by the one being handled, if any.
    pub(crate) fn record(&mut self, name: &'static str, event: T) -> Result<(), Overrun> {
        let depth = 1 + self.cause.map_or(0, |cause| self.raised[cause].depth);
        if depth > self.limits.depth {
            let mut chain = self.chain();
            chain.push(name);
            return Err(self.overrun.get_or_insert(Overrun::Deep(chain)).clone());
        }
        if self.raised.len() >= self.limits.events {
            return Err(self.overrun.get_or_insert(Overrun::Many(self.limits.events)).clone());
        }
        self.waiting.push_back((self.raised.len(), event));
        self.raised.push(Raised { name, depth, cause: self.cause });
        Ok(())
    }

    /// Returns the next event to handle, with its name. `None`: all are handled, and events
    /// recorded from now on have no cause.
    pub(crate) fn next(&mut self) -> Option<(&'static str, T)> {
        let next = self.waiting.pop_front();
        self.cause = next.as_ref().map(|(number, _)| *number);
        next.map(|(number, event)| (self.raised[number].name, event))
    }

    /// Returns the overrun, if a limit was ever exceeded.
    pub(crate) fn overrun(&self) -> Option<&Overrun> {
        self.overrun.as_ref()
    }

    /// Returns the event being handled and those that led to it, in order.
    fn chain(&self) -> Vec<&'static str> {
        let mut chain = Vec::new();
        let mut at = self.cause;
        while let Some(number) = at {
            chain.push(self.raised[number].name);
            at = self.raised[number].cause;
        }
        chain.reverse();
        chain
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn events_are_handled_in_the_order_in_which_they_were_recorded() {
        let mut cascade = Cascade::new(Limits::default());
        cascade.record("a", 1).unwrap();
        cascade.record("b", 2).unwrap();
        assert_eq!(cascade.next(), Some(("a", 1)));
        cascade.record("caused by a", 3).unwrap();
        assert_eq!(cascade.next(), Some(("b", 2)));
        assert_eq!(cascade.next(), Some(("caused by a", 3)));
        assert_eq!(cascade.next(), None);
    }

    #[test]
    fn a_circle_is_named_and_stays() {
        let mut cascade = Cascade::new(Limits { depth: 3, events: 100 });
        cascade.record("ping", ()).unwrap();
        for name in ["pong", "ping"] {
            cascade.next().unwrap();
            cascade.record(name, ()).unwrap();
        }
        cascade.next().unwrap();
        let circle = Overrun::Deep(vec!["ping", "pong", "ping", "pong"]);
        assert_eq!(cascade.record("pong", ()), Err(circle.clone()));
        assert_eq!(cascade.next(), None);
        assert_eq!(cascade.overrun(), Some(&circle));
    }

    #[test]
    fn what_is_recorded_after_the_handlers_begins_a_chain_of_its_own() {
        let mut cascade = Cascade::new(Limits { depth: 1, events: 100 });
        for _ in 0..3 {
            cascade.record("a", ()).unwrap();
            cascade.next().unwrap();
            assert_eq!(cascade.next(), None);
        }
        assert_eq!(cascade.overrun(), None);
    }

    proptest! {
        /// Every cascade ends, within both bounds, whatever each event causes.
        #[test]
        fn every_cascade_ends(causes in proptest::collection::vec(0_usize..4, 1..40), depth in 1_usize..6, events in 1_usize..60) {
            let mut cascade = Cascade::new(Limits { depth, events });
            let mut recorded = usize::from(cascade.record("event", 0).is_ok());
            let mut handled = 0;
            while let Some((_, number)) = cascade.next() {
                handled += 1;
                for _ in 0..causes[number % causes.len()] {
                    recorded += usize::from(cascade.record("event", number + 1).is_ok());
                }
            }
            prop_assert_eq!(recorded, handled);
            prop_assert!(handled <= events);
            prop_assert!(cascade.raised.iter().all(|raised| raised.depth <= depth));
        }
    }
}
