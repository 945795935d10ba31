//! First meetings with messages that this program is too old for. Pure.
//!
//! Such a message waits for a newer program. Its age in the store says nothing about that: it may
//! have waited there because the consumer was paused, or behind a key that an operator held.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_contract::MessageId;
use tokio::time::Instant;

/// Maximum number of messages that are remembered. Each further one waits as if it were met for the
/// first time, until there is room.
const MAX_MESSAGES: usize = 10_000;

/// Time after which a message that was not met again is forgotten: a newer program has it, or an
/// operator removed it. Several times the longest pause between two attempts.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// Messages that this program is too old for.
#[derive(Debug, Default)]
pub(crate) struct Meetings(BTreeMap<MessageId, Met>);

#[derive(Clone, Copy, Debug)]
struct Met {
    first: Instant,
    last: Instant,
}

impl Meetings {
    /// Records a meeting with a message. Returns the time since the first one.
    pub(crate) fn met(&mut self, id: MessageId, now: Instant) -> Duration {
        if let Some(met) = self.0.get_mut(&id) {
            met.last = now;
            return now.saturating_duration_since(met.first);
        }
        if self.0.len() >= MAX_MESSAGES {
            self.0.retain(|_, met| now.saturating_duration_since(met.last) < FORGOTTEN_AFTER);
        }
        if self.0.len() < MAX_MESSAGES {
            self.0.insert(id, Met { first: now, last: now });
        }
        Duration::ZERO
    }

    /// Forgets a message: it was handled, or is a dead letter.
    pub(crate) fn over(&mut self, id: MessageId) {
        self.0.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Message;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn id() -> MessageId {
        Message::new("orders", "placed").unwrap().id
    }

    #[test]
    fn the_time_counts_from_the_first_meeting_until_it_is_over() {
        let (mut meetings, id, now) = (Meetings::default(), id(), Instant::now());
        let waited: Vec<Duration> = (0..3).map(|at| meetings.met(id, now + S * 30 * at)).collect();
        assert_eq!(waited, [Duration::ZERO, S * 30, S * 60]);
        meetings.over(id);
        assert_eq!(meetings.met(id, now + S * 90), Duration::ZERO);
    }

    #[test]
    fn those_beyond_the_bound_begin_when_there_is_room() {
        let (mut meetings, now) = (Meetings::default(), Instant::now());
        let first: Vec<MessageId> = (0..MAX_MESSAGES).map(|_| id()).collect();
        first.iter().for_each(|id| _ = meetings.met(*id, now));
        let further = id();
        for at in [0, 300, 599] {
            assert_eq!(meetings.met(further, now + S * at), Duration::ZERO);
        }
        assert_eq!(meetings.met(first[0], now + S * 599), S * 599, "it is remembered");
        // All the others were met last ten minutes ago.
        assert_eq!(meetings.met(further, now + S * 600), Duration::ZERO);
        assert_eq!(meetings.0.len(), 2);
        assert_eq!(meetings.met(further, now + S * 630), S * 30);
        assert_eq!(meetings.met(first[0], now + S * 630), S * 630);
    }
}
