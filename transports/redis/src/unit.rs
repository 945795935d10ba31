//! A unit that this member owns: what was read of it, what is in the member's hands, and where to read on. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use outbox_contract::Message;
use outbox_contract::backend::{Origin, Undecodable};

use crate::stream_id::StreamId;

/// An entry, read.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: StreamId,
    /// None: it was taken out of the stream before anybody finished it.
    pub(crate) content: Option<Content>,
}

#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) message: Result<Message, Undecodable>,
    pub(crate) origin: Option<Origin>,
    /// What it takes in memory, about.
    pub(crate) bytes: usize,
}

/// Where to read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cursor {
    /// Among what the group was given and nobody has acknowledged, behind this entry. Comes before everything new.
    Pending(StreamId),
    /// What the group was not given yet.
    New,
}

/// A unit and its state, for one incarnation.
#[derive(Debug)]
pub(crate) struct Owned {
    pub(crate) epoch: String,
    pub(crate) incarnation: u64,
    /// Until when it may be used, by this process's clock, counted from before the lease was asked for.
    pub(crate) until: Duration,
    pub(crate) cursor: Cursor,
    /// The last entry that the group was given: what comes behind it is new.
    pub(crate) seen: StreamId,
    pub(crate) paused: bool,
    /// The last entry that was handed out.
    handed: StreamId,
    /// Read, not handed out.
    waiting: VecDeque<(StreamId, Content)>,
    /// Handed out, not finished, by number; with their bytes.
    in_hand: BTreeMap<u64, (StreamId, usize)>,
    /// Finished, and Redis has not said yet that it knows. Counts as what is in hand does: so there is never more of it than the prefetch.
    owed: BTreeMap<u64, (StreamId, usize)>,
    numbers: u64,
    /// What was pending at the last look, and not with this member.
    forgotten: Option<StreamId>,
}

/// Messages and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Load {
    pub(crate) fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

impl Owned {
    /// A unit that was just taken: whatever its last owner left is read first.
    pub(crate) fn new(epoch: String, incarnation: u64, until: Duration, seen: StreamId) -> Self {
        Self {
            epoch,
            incarnation,
            until,
            cursor: Cursor::Pending(StreamId::START),
            seen,
            paused: false,
            handed: StreamId::START,
            waiting: VecDeque::new(),
            in_hand: BTreeMap::new(),
            owed: BTreeMap::new(),
            numbers: 0,
            forgotten: None,
        }
    }

    /// What of it is unacknowledged: in the member's hands, or owed.
    pub(crate) fn in_hand(&self) -> Load {
        let unacknowledged = self.in_hand.values().chain(self.owed.values());
        Load {
            messages: self.in_hand.len() + self.owed.len(),
            bytes: unacknowledged.map(|(_, bytes)| bytes).sum(),
        }
    }

    /// What of it was read and not handed out.
    pub(crate) fn waiting(&self) -> Load {
        Load { messages: self.waiting.len(), bytes: self.waiting.iter().map(|(_, it)| it.bytes).sum() }
    }

    /// Takes in what a read brought that began at `from` and asked for `count` entries. Those that are gone from the stream are finished: says
    /// how many there were.
    pub(crate) fn read(&mut self, from: Cursor, count: usize, entries: Vec<Entry>) -> usize {
        // Rewound meanwhile. What this read took stands in the group's pending entries, and is read again from there.
        if self.cursor != from || self.paused {
            self.rewind();
            return 0;
        }
        let (came, last) = (entries.len(), entries.last().map(|entry| entry.id));
        match (from, last) {
            (Cursor::Pending(_), Some(last)) if came >= count => self.cursor = Cursor::Pending(last),
            (Cursor::Pending(_), _) => self.cursor = Cursor::New,
            (Cursor::New, Some(last)) => self.seen = self.seen.max(last),
            (Cursor::New, None) => {}
        }
        let mut gone = 0;
        for Entry { id, content } in entries {
            if let Some(content) = content {
                self.waiting.push_back((id, content));
            } else {
                gone += 1;
                self.numbers += 1;
                self.owed.insert(self.numbers, (id, 0));
            }
        }
        gone
    }

    /// Drops what waits, to be read again: it is among the pending entries, behind what was handed out.
    pub(crate) fn rewind(&mut self) {
        self.waiting.clear();
        self.cursor = Cursor::Pending(self.handed);
    }

    /// What would be handed out next.
    pub(crate) fn peek(&self) -> Option<&Content> {
        self.waiting.front().map(|(_, content)| content)
    }

    /// Hands out the next one, under a number.
    pub(crate) fn hand_out(&mut self) -> Option<(u64, Content)> {
        let (id, content) = self.waiting.pop_front()?;
        self.numbers += 1;
        self.handed = id;
        self.in_hand.insert(self.numbers, (id, content.bytes));
        Some((self.numbers, content))
    }

    /// It is finished: owed from now on. Says whether there is anything to pay of this number.
    pub(crate) fn finish(&mut self, number: u64) -> bool {
        if let Some(entry) = self.in_hand.remove(&number) {
            self.owed.insert(number, entry);
        }
        self.owed.contains_key(&number)
    }

    /// What Redis is to be told of, each with its number.
    pub(crate) fn owed(&self) -> Vec<(u64, StreamId)> {
        self.owed.iter().map(|(number, (id, _))| (*number, *id)).collect()
    }

    /// Redis knows of it.
    pub(crate) fn paid(&mut self, number: u64) {
        self.owed.remove(&number);
    }

    /// Whether the entry that is pending first, of all, has been forgotten: it was acknowledged, and the server has lost that. Seen twice, since the
    /// first time an acknowledgement may have been under way.
    pub(crate) fn has_forgotten(&mut self, oldest: Option<StreamId>) -> bool {
        let is_here = |id: StreamId| {
            let unacknowledged = self.in_hand.values().chain(self.owed.values()).map(|(of, _)| *of);
            unacknowledged.chain(self.waiting.iter().map(|(of, _)| *of)).any(|of| of == id)
        };
        // What is behind was not handed out yet; it comes.
        let unknown = oldest.filter(|id| *id <= self.handed && !is_here(*id));
        let before = std::mem::replace(&mut self.forgotten, unknown);
        unknown.is_some() && before == unknown
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Topic;

    use super::*;

    pub(crate) fn id(number: u64) -> StreamId {
        format!("1-{number}").parse().unwrap()
    }

    fn entries(ids: impl IntoIterator<Item = u64>) -> Vec<Entry> {
        let message = || Message::new(Topic::new("orders").unwrap(), "x");
        let content = || Content { message: Ok(message()), origin: None, bytes: 100 };
        ids.into_iter().map(|number| Entry { id: id(number), content: Some(content()) }).collect()
    }

    fn owned() -> Owned {
        Owned::new("1".to_owned(), 1, Duration::from_secs(10), id(4))
    }

    #[test]
    fn what_is_pending_is_read_to_its_end_before_anything_new() {
        let mut unit = owned();
        assert_eq!(unit.cursor, Cursor::Pending(StreamId::START));
        unit.read(unit.cursor, 2, entries([1, 2]));
        assert_eq!(unit.cursor, Cursor::Pending(id(2)), "there may be more");
        unit.read(unit.cursor, 2, entries([3]));
        assert_eq!(unit.cursor, Cursor::New);
        assert_eq!(unit.seen, id(4), "what was pending says nothing of what is new");
        unit.read(unit.cursor, 2, entries([5]));
        assert_eq!(unit.seen, id(5));
    }

    #[test]
    fn a_rewound_unit_reads_again_what_was_not_handed_out() {
        let mut unit = owned();
        unit.read(unit.cursor, 9, entries([1, 2, 3]));
        assert!(unit.hand_out().is_some());
        unit.rewind();
        assert_eq!(unit.waiting().messages, 0);
        assert_eq!(unit.cursor, Cursor::Pending(id(1)));
        assert_eq!(unit.in_hand().messages, 1, "what is in hand stays there");
    }

    #[test]
    fn a_read_that_a_pause_overtook_loses_nothing() {
        let mut unit = owned();
        unit.read(unit.cursor, 9, entries([1]));
        let began = unit.cursor;
        unit.paused = true;
        unit.rewind();
        unit.read(began, 9, entries([5, 6]));
        assert_eq!(unit.waiting().messages, 0);
        unit.paused = false;
        assert_eq!(unit.cursor, Cursor::Pending(StreamId::START), "it is read from what is pending");
    }

    #[test]
    fn what_is_finished_is_owed_until_it_is_paid() {
        let mut unit = owned();
        unit.read(unit.cursor, 9, entries([1, 2, 3]));
        while unit.hand_out().is_some() {}
        assert!(!unit.finish(4), "nobody has it");
        assert!(unit.finish(3) && unit.finish(3), "however often it is said");
        assert_eq!(unit.owed(), [(3, id(3))]);
        assert_eq!(unit.in_hand(), Load { messages: 3, bytes: 300 }, "it makes no room yet");
        unit.paid(3);
        assert_eq!(unit.in_hand(), Load { messages: 2, bytes: 200 });
        assert!(!unit.finish(3) && unit.owed().is_empty());
    }

    #[test]
    fn what_is_pending_and_with_nobody_was_forgotten() {
        let mut unit = owned();
        unit.read(unit.cursor, 9, entries([1, 2, 3]));
        unit.hand_out();
        unit.hand_out();
        assert!(!unit.has_forgotten(Some(id(1))) && !unit.has_forgotten(Some(id(1))), "it is in hand");
        unit.finish(1);
        assert!(!unit.has_forgotten(Some(id(1))) && !unit.has_forgotten(Some(id(1))), "it is owed");
        unit.paid(1);
        assert!(!unit.has_forgotten(Some(id(1))), "the look may be older than the payment");
        assert!(!unit.has_forgotten(None), "and so it was");
        assert!(!unit.has_forgotten(Some(id(1))));
        assert!(unit.has_forgotten(Some(id(1))), "it was lost");
        assert!(!unit.has_forgotten(Some(id(3))) && !unit.has_forgotten(Some(id(3))), "it is still to come");
    }

    #[test]
    fn what_is_gone_from_the_stream_is_named_and_passed() {
        let mut unit = owned();
        let mut read = entries([1, 2]);
        read[0].content = None;
        assert_eq!(unit.read(unit.cursor, 9, read), 1);
        assert_eq!(unit.owed(), [(1, id(1))], "nobody is to see it as pending");
        assert_eq!(unit.waiting().messages, 1);
    }
}
