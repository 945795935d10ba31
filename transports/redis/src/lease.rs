//! Lease of a unit: its epoch and end, and where to read on. Pure.

use std::time::Duration;

use outbox_contract::Message;
use outbox_contract::backend::flow::OwnedUnit;
use outbox_contract::backend::{Origin, Undecodable};

use crate::stream_id::StreamId;

/// An entry, read.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: StreamId,
    /// `None`: it was taken out of the stream before anybody finished it.
    pub(crate) content: Option<(Result<Message, Undecodable>, Option<Origin>)>,
}

/// Position from which to read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cursor {
    /// Among the delivered and unacknowledged entries of the group, behind this entry. Comes before
    /// everything new.
    Pending(StreamId),
    /// New to the group.
    New,
}

/// A unit of this member, and its deliveries.
pub(crate) type LeasedUnit = OwnedUnit<Lease, StreamId>;

/// A lease of this member.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) epoch: String,
    /// Time until which the unit may be used, by this process's clock, counted from before the
    /// lease was asked for.
    pub(crate) until: Duration,
    pub(crate) cursor: Cursor,
    /// The last entry that the group was given: what comes behind it is new.
    pub(crate) seen: StreamId,
    /// Number of the last delivery.
    pub(crate) number: u64,
    /// The entry that was pending at the last look, and not with this member.
    forgotten: Option<StreamId>,
}

impl Lease {
    /// Creates the lease of a unit that was just taken: whatever its last owner left is read first.
    pub(crate) fn new(epoch: String, until: Duration, seen: StreamId) -> Self {
        let cursor = Cursor::Pending(StreamId::START);
        Self { epoch, until, cursor, seen, number: 0, forgotten: None }
    }

    /// Moves the cursor behind a read that began there, asked for `count` entries and brought so
    /// many, the last one of this id.
    pub(crate) fn advance(&mut self, count: usize, came: usize, last: Option<StreamId>) {
        match (self.cursor, last) {
            (Cursor::Pending(_), Some(last)) if came >= count => self.cursor = Cursor::Pending(last),
            (Cursor::Pending(_), _) => self.cursor = Cursor::New,
            (Cursor::New, Some(last)) => self.seen = self.seen.max(last),
            (Cursor::New, None) => {}
        }
    }
}

/// Returns true if the entry that is pending first, of all, has been forgotten: it was
/// acknowledged, and the server has lost that. Seen twice, since the first time an acknowledgment
/// may have been under way.
pub(crate) fn has_forgotten(unit: &mut LeasedUnit, oldest: Option<StreamId>) -> bool {
    let handed = unit.last_handed().unwrap_or(StreamId::START);
    // Entries behind it were not dispatched yet.
    let unknown = oldest.filter(|id| *id <= handed && !unit.contains(*id));
    let before = std::mem::replace(&mut unit.state.forgotten, unknown);
    unknown.is_some() && before == unknown
}
