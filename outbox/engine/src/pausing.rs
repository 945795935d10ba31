//! A pause that was asked for here: it holds at once, until the store says when it is over. Pure.

use std::time::Duration;

/// A pause that was asked of this process, and that the store has not yet told of by a heartbeat.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pausing {
    is_asked: bool,
    /// Time at which it was in the store. None: not yet, or unknown.
    stored_at: Option<Duration>,
}

impl Pausing {
    /// It is to pause, from now on.
    pub(crate) fn ask(&mut self) {
        *self = Self { is_asked: true, stored_at: None };
    }

    /// Returns true if it was asked for, and the store has not told of it.
    pub(crate) const fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// The store has it, from `now` on at the latest.
    pub(crate) fn stored(&mut self, now: Duration) {
        self.stored_at = Some(now);
    }

    /// It is over.
    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }

    /// Returns true if it is paused, by what the store told last, to a heartbeat that began at
    /// `begun`.
    ///
    /// From the first heartbeat on that began when the pause was in the store, the store says when
    /// it is over, whoever ends it: somebody may have done so before any heartbeat could show it.
    /// An earlier heartbeat shows an earlier state: perhaps a pause that has ended since.
    pub(crate) fn look(&mut self, in_store: bool, begun: Duration) -> bool {
        if self.stored_at.is_some_and(|stored_at| begun > stored_at) {
            self.end();
        }
        in_store || self.is_asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_heartbeat_that_began_before_the_pause_tells_nothing() {
        let mut pausing = Pausing::default();
        assert!(!pausing.look(false, S));
        pausing.ask();
        assert!(pausing.look(false, S * 2), "it holds before the store has it");
        pausing.stored(S * 3);
        assert!((0..9).all(|_| pausing.look(false, S * 2)));
    }

    #[test]
    fn what_the_store_has_shown_ends_when_it_shows_it_no_more() {
        let mut pausing = Pausing::default();
        pausing.ask();
        pausing.stored(S);
        assert!(pausing.look(true, S * 5));
        assert!(!pausing.look(false, S * 10));
    }

    #[test]
    fn what_the_store_does_not_show_to_a_later_heartbeat_is_over() {
        let mut pausing = Pausing::default();
        pausing.ask();
        pausing.stored(S);
        assert!(!pausing.look(false, S * 5));
        // A pause that is not known to be in the store holds until it is asked again.
        pausing.ask();
        assert!((0..99).all(|beat| pausing.look(false, S * beat)));
        pausing.end();
        assert!(!pausing.look(false, S * 100));
    }

    #[test]
    fn what_the_store_showed_before_it_had_the_pause_is_of_an_earlier_one() {
        let mut pausing = Pausing::default();
        pausing.ask();
        assert!(pausing.look(true, S), "an earlier pause that was ended since");
        pausing.stored(S * 3);
        assert!(pausing.look(true, S * 2));
        assert!(pausing.look(false, S * 2), "between the two");
        assert!(pausing.look(true, S * 4));
        assert!(!pausing.look(false, S * 5));
    }
}
