//! Conflicts that last: when a message that is always in conflict has failed. Pure.
//!
//! A conflict is not the message's fault, so it is not counted. But a message that meets one each
//! time that it is tried would be tried for ever: a version that it can never find, a handler for
//! which the database does not wait. It has failed once so many attempts in a row came to nothing,
//! each of several tries. Where the database says what was in the way, only those attempts tell
//! during which other messages went through: when none does, it is not this one's doing.
//!
//! Interruptions by the environment are the same, except that a message rests longer after each,
//! and that more must have gone through than are interrupted beside it: an outage through which
//! some slip is an outage.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_contract::MessageId;
use tokio::time::Instant;

/// Number of attempts in a row that come to nothing before they count as a failure. Each is of
/// several tries.
pub(crate) const MAX_CONFLICTS: u32 = 5;

/// Of how many messages this is remembered. Beyond it all are forgotten, and count from the
/// beginning.
const MAX_MESSAGES: usize = 10_000;

/// The rest after the first interruption. It doubles with each, up to the longest.
const FIRST_REST: Duration = Duration::from_millis(200);
const MAX_REST: Duration = Duration::from_secs(30);

/// For how long after its rest a message that was not tried again counts as interrupted: it may be
/// in the hands of another process by then.
const RECENT: Duration = Duration::from_secs(120);

/// Messages whose last attempt ended in a conflict or was interrupted.
#[derive(Debug, Default)]
pub(crate) struct Conflicts(BTreeMap<MessageId, Met>);

#[derive(Clone, Copy, Debug)]
struct Met {
    /// Number of its attempts that told.
    times: u32,
    /// Number of messages that had gone through by the last one of these.
    gone: u64,
    /// Number of its attempts that were interrupted in a row.
    interruptions: u32,
    rests_until: Option<Instant>,
}

impl Conflicts {
    /// An attempt at a message ended in a conflict, when this many messages had gone through.
    /// `own`: it is certain to be of its own making. Says whether it has failed now.
    pub(crate) fn met(&mut self, id: MessageId, own: bool, gone: u64) -> bool {
        let tells = own || self.0.get(&id).is_none_or(|met| gone > met.gone);
        self.count(id, tells, gone).is_none()
    }

    /// An attempt at a message was interrupted at this instant, when this many messages had gone
    /// through. Says whether it has failed now; if not, it rests.
    pub(crate) fn interrupted(&mut self, id: MessageId, gone: u64, now: Instant) -> bool {
        let tells = self.0.get(&id).is_none_or(|met| self.are_fewer(id, now, gone.saturating_sub(met.gone)));
        let Some(met) = self.count(id, tells, gone) else { return true };
        let rest = FIRST_REST.saturating_mul(1 << met.interruptions.min(16)).min(MAX_REST);
        met.interruptions = met.interruptions.saturating_add(1);
        // Between half of it and all, by chance: all messages that one outage has interrupted would
        // come back together.
        let [.., chance] = *id.as_uuid().as_bytes();
        met.rests_until = Some(now + rest.mul_f64(0.5 + f64::from(chance) / 510.0));
        false
    }

    /// Returns true if fewer than so many others are interrupted.
    fn are_fewer(&self, id: MessageId, now: Instant, than: u64) -> bool {
        let is_interrupted = |met: &Met| met.rests_until.is_some_and(|until| now < until + RECENT);
        let others = self.0.iter().filter(|(other, met)| **other != id && is_interrupted(met));
        let than = usize::try_from(than).unwrap_or(usize::MAX);
        others.take(than).count() < than
    }

    /// Returns true if a message is not to be tried yet.
    pub(crate) fn rests(&self, id: MessageId, now: Instant) -> bool {
        self.0.get(&id).and_then(|met| met.rests_until).is_some_and(|until| now < until)
    }

    /// Remembers an attempt that came to nothing, and counts it if it tells. None: too many did.
    fn count(&mut self, id: MessageId, tells: bool, gone: u64) -> Option<&mut Met> {
        if self.0.len() >= MAX_MESSAGES && !self.0.contains_key(&id) {
            self.0.clear();
        }
        let before = self.0.get(&id).copied();
        let times = before.map_or(0, |met| met.times) + u32::from(tells);
        if times >= MAX_CONFLICTS {
            self.0.remove(&id);
            return None;
        }
        let gone = before.filter(|_| !tells).map_or(gone, |met| met.gone);
        let interruptions = before.map_or(0, |met| met.interruptions);
        let met = Met { times, gone, interruptions, rests_until: None };
        Some(self.0.entry(id).insert_entry(met).into_mut())
    }

    /// An attempt at a message ended in another way.
    pub(crate) fn over(&mut self, id: MessageId) {
        self.0.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Message;

    use super::*;

    fn id() -> MessageId {
        Message::new("orders", "placed").unwrap().id
    }

    #[test]
    fn a_conflict_is_a_failure_when_it_lasts_and_others_go_through() {
        let (mut conflicts, id) = (Conflicts::default(), id());
        let failed: Vec<bool> = (0..10).map(|gone| conflicts.met(id, false, gone)).collect();
        assert_eq!(failed.iter().position(|failed| *failed), Some(4));
        assert_eq!(failed.iter().filter(|failed| **failed).count(), 2, "and counts from the beginning then");
    }

    #[test]
    fn while_no_message_goes_through_none_is_at_fault() {
        let (mut conflicts, id) = (Conflicts::default(), id());
        assert!(!(0..1_000).any(|_| conflicts.met(id, false, 7)));
        assert!((0..4).any(|gone| conflicts.met(id, false, 8 + gone)));
        assert!((0..5).any(|_| conflicts.met(id, true, 7)), "unless it is certain to be its own");
    }

    #[test]
    fn conflicts_that_are_not_in_a_row_are_none() {
        let (mut conflicts, id) = (Conflicts::default(), id());
        for gone in 0..100 {
            assert!(!conflicts.met(id, true, gone));
            if gone % 4 == 3 {
                conflicts.over(id);
            }
        }
    }

    #[test]
    fn an_interrupted_message_rests_longer_each_time() {
        let (mut conflicts, id, start) = (Conflicts::default(), id(), Instant::now());
        let (mut now, mut rests) = (start, Vec::new());
        for _ in 0..12 {
            assert!(!conflicts.interrupted(id, 7, now), "no message goes through");
            let begun = now;
            while conflicts.rests(id, now) {
                now += Duration::from_millis(10);
            }
            rests.push(now - begun);
        }
        assert!(rests[0] >= FIRST_REST / 2 && rests[0] <= FIRST_REST + Duration::from_millis(10));
        assert!(rests.windows(2).all(|pair| pair[0] <= pair[1]), "{rests:?}");
        assert!(rests[11] >= MAX_REST / 2 && rests[11] <= MAX_REST + Duration::from_millis(10));
        conflicts.over(id);
        assert!(!conflicts.interrupted(id, 7, now) && !conflicts.rests(id, now + FIRST_REST));
    }

    #[test]
    fn an_interruption_is_a_failure_when_only_one_message_meets_it() {
        let (mut conflicts, id, now) = (Conflicts::default(), id(), Instant::now());
        let failed = (0..10).position(|gone| conflicts.interrupted(id, gone, now));
        assert_eq!(failed, Some(4));
        assert!(!conflicts.rests(id, now), "then its policy says when it is tried");
    }

    /// Nearly all are interrupted, and a few slip through: that is no failure of theirs. Those that
    /// are too slow among many that are not, are.
    #[test]
    fn an_interruption_tells_only_where_more_go_through_than_are_interrupted() {
        let start = Instant::now();
        let ids: Vec<MessageId> = (0..10).map(|_| id()).collect();
        let failed = |through_each_round: u64| {
            let mut conflicts = Conflicts::default();
            let rounds = 0..100_u32;
            rounds
                .map(|round| {
                    let now = start + MAX_REST * round;
                    let gone = through_each_round * u64::from(round);
                    ids.iter().filter(|id| conflicts.interrupted(**id, gone, now)).count()
                })
                .sum::<usize>()
        };
        // Each tells once in ten rounds, when there are more than nine.
        assert_eq!((failed(0), failed(1)), (0, 10 * 2));
        assert_eq!(failed(10), 10 * 20);
    }

    /// A message that waits in another process by now is interrupted no more.
    #[test]
    fn those_that_were_not_tried_for_long_are_not_interrupted() {
        let (mut conflicts, start) = (Conflicts::default(), Instant::now());
        (0..100).for_each(|_| _ = conflicts.interrupted(id(), 0, start));
        let slow = id();
        let mut rounds = 0;
        while !conflicts.interrupted(slow, rounds, start + MAX_REST * u32::try_from(rounds).unwrap()) {
            rounds += 1;
        }
        assert!((8..12).contains(&rounds), "{rounds}");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut conflicts = Conflicts::default();
        (0..MAX_MESSAGES * 3).for_each(|_| _ = conflicts.met(id(), true, 0));
        assert!(conflicts.0.len() <= MAX_MESSAGES);
    }
}
