//! A pause that was asked for here: it holds at once, until the store says when it is over. Pure.

use std::time::Duration;

/// Whether this process was asked to pause, and the store has not yet told so by a heartbeat.
#[derive(Debug, Default)]
pub(crate) struct Pausing {
    is_asked: bool,
    /// When it was in the store. None: not yet, or nobody knows.
    stored_at: Option<Duration>,
    /// When the first heartbeat that was seen to show no pause since then had begun.
    unseen: Option<Duration>,
}

impl Pausing {
    /// It is to pause, from now on.
    pub(crate) fn ask(&mut self) {
        *self = Self { is_asked: true, ..Self::default() };
    }

    /// The store has it, from `now` on at the latest.
    pub(crate) fn stored(&mut self, now: Duration) {
        self.stored_at = Some(now);
    }

    /// It is over.
    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }

    /// Whether it is paused, by what the store told last, where the heartbeat that was answered last began at `begun`.
    ///
    /// Somebody else may have ended the pause before any heartbeat could show it. So one that began when the pause was in the store, and does
    /// not show it, ends it here. What it showed may come to light later than that it was there: so the next one must show none either.
    pub(crate) fn look(&mut self, in_store: bool, begun: Duration) -> bool {
        if in_store {
            // From here on the store says when it is over, whoever ends it.
            self.end();
        } else if self.stored_at.is_some_and(|stored_at| begun > stored_at) {
            match self.unseen {
                Some(first) if begun > first => self.end(),
                Some(_) => {}
                None => self.unseen = Some(begun),
            }
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
    fn what_the_store_never_shows_ends_with_the_second_heartbeat() {
        let mut pausing = Pausing::default();
        pausing.ask();
        pausing.stored(S);
        // The first one is known before what it showed is.
        assert!((0..9).all(|_| pausing.look(false, S * 5)));
        assert!(!pausing.look(false, S * 10));
        // A pause that nobody knows to be in the store holds until it is asked again.
        pausing.ask();
        assert!((0..99).all(|beat| pausing.look(false, S * beat)));
        pausing.end();
        assert!(!pausing.look(false, S * 100));
    }
}
