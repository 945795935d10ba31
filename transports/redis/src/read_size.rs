//! Size of a read, in entries. Redis counts entries and not bytes, and how large they are is known
//! when they are here. Pure.

use std::time::Duration;

use outbox_contract::backend::flow::Load;

/// Number of entries that are asked for at first, of all units together: not many, since nothing is
/// known of them.
const FIRST: usize = 16;
/// Size that entries are taken to have, in bytes, before any was seen.
const UNSEEN_BYTES: usize = 16 * 1024;
/// With each read that brings smaller entries, what they are taken for comes nearer by this part of
/// the way.
const FALLS_BY: usize = 16;

/// As much as there is room for, by the largest entries of late; and no more than what came in good
/// time lets expect, so that a read which is too large for the time that it has is not repeated for
/// ever.
#[derive(Debug)]
pub(crate) struct ReadSize {
    most: usize,
    typical: usize,
    asked: usize,
}

impl Default for ReadSize {
    fn default() -> Self {
        Self { most: FIRST, typical: UNSEEN_BYTES, asked: FIRST }
    }
}

impl ReadSize {
    /// Returns the number of entries to ask for now, at least one.
    pub(crate) fn next(&mut self, room: Load) -> usize {
        let by_bytes = room.bytes / self.typical.max(1);
        self.asked = room.messages.min(by_bytes).min(self.most).max(1);
        self.asked
    }

    /// The largest entry of a read had so many bytes.
    pub(crate) fn saw(&mut self, largest: usize) {
        let above = self.typical.saturating_sub(largest);
        self.typical = (self.typical - above.div_ceil(FALLS_BY)).max(largest);
    }

    /// A read ended that took so long, of the time that it had. Whether it brought as much as it
    /// asked for says whether more may be there.
    pub(crate) fn ended(&mut self, was_full: bool, took: Duration, of: Duration) {
        if took > of / 2 {
            self.failed();
        } else if was_full && took < of / 4 {
            self.most = self.most.max(self.asked.saturating_mul(2));
        }
    }

    /// A read did not end well: less is asked for from now on.
    pub(crate) fn failed(&mut self) {
        self.most = (self.most.min(self.asked) / 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_millis(1);
    const LIMIT: Duration = Duration::from_secs(5);

    fn room(messages: usize, bytes: usize) -> Load {
        Load { messages, bytes }
    }

    #[test]
    fn it_grows_with_what_comes_in_time_and_shrinks_with_what_does_not() {
        let (mut read_size, room) = (ReadSize::default(), room(1_000, usize::MAX));
        assert_eq!(read_size.next(room), FIRST, "carefully at first");
        let reads = (0..).take_while(|_| {
            read_size.ended(true, QUICK, LIMIT);
            read_size.next(room) < 1_000
        });
        assert!(reads.count() < 10, "soon it asks for all");
        read_size.failed();
        assert_eq!(read_size.next(room), 500);
        read_size.ended(true, LIMIT / 3, LIMIT);
        assert_eq!(read_size.next(room), 500, "twice as much would take too long");
        read_size.ended(true, LIMIT * 2 / 3, LIMIT);
        assert_eq!(read_size.next(room), 250);
        read_size.ended(false, QUICK, LIMIT);
        assert_eq!(read_size.next(room), 250, "little came: that says nothing of more");
        (0..20).for_each(|_| read_size.failed());
        assert_eq!(read_size.next(room), 1);
    }

    #[test]
    fn it_keeps_the_bytes_by_the_largest_of_late() {
        let (mut read_size, mebibyte) = (ReadSize::default(), 1024 * 1024);
        let room = room(1_000, 16 * mebibyte);
        read_size.saw(4 * mebibyte);
        assert_eq!(read_size.next(room), 4);
        for _ in 0..10 {
            read_size.saw(100);
        }
        assert!(read_size.next(room) < 10, "large ones come again, perhaps");
        for _ in 0..200 {
            read_size.saw(100);
            read_size.next(room);
            read_size.ended(true, QUICK, LIMIT);
        }
        assert_eq!(read_size.next(room), 1_000, "none came for long");
        read_size.saw(100 * mebibyte);
        assert_eq!(read_size.next(room), 1, "what is larger than the bound comes alone");
    }
}
