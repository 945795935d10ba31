//! How far a partition is finished: Kafka keeps one offset of it, so it may advance only over what is finished without a gap.

use std::collections::VecDeque;

/// The deliveries of a partition that are in a member's hands, in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct Offsets {
    in_hand: VecDeque<Handed>,
    /// Where the next owner begins if nothing more is finished. None until something is.
    finished: Option<i64>,
    committed: Option<i64>,
}

#[derive(Debug)]
struct Handed {
    offset: i64,
    bytes: usize,
    finished: bool,
}

impl Offsets {
    /// A delivery went out. Offsets grow, with gaps: not every place of a log has a message.
    pub(crate) fn handed(&mut self, offset: i64, bytes: usize) {
        debug_assert!(self.in_hand.back().is_none_or(|last| last.offset < offset), "offsets grow");
        self.in_hand.push_back(Handed { offset, bytes, finished: false });
    }

    /// The first delivery that is not finished.
    pub(crate) fn first_unfinished(&self) -> Option<i64> {
        // What is finished does not stay in front.
        self.in_hand.front().map(|first| first.offset)
    }

    /// A delivery is finished; gives its bytes, if it was not finished before.
    pub(crate) fn finish(&mut self, offset: i64) -> Option<usize> {
        let at = self.in_hand.binary_search_by_key(&offset, |handed| handed.offset).ok()?;
        let handed = self.in_hand.get_mut(at).filter(|handed| !handed.finished)?;
        handed.finished = true;
        let bytes = handed.bytes;
        while let Some(first) = self.in_hand.front().filter(|first| first.finished) {
            self.finished = Some(first.offset + 1);
            self.in_hand.pop_front();
        }
        Some(bytes)
    }

    /// What is in hand and not finished: messages and bytes.
    pub(crate) fn unfinished(&self) -> (usize, usize) {
        let open = self.in_hand.iter().filter(|handed| !handed.finished);
        open.fold((0, 0), |(messages, bytes), handed| (messages + 1, bytes + handed.bytes))
    }

    /// The offset to commit, where it is another than the broker has.
    pub(crate) fn to_commit(&self) -> Option<i64> {
        self.finished.filter(|_| self.finished != self.committed)
    }

    /// The broker has this offset.
    pub(crate) fn committed(&mut self, offset: i64) {
        self.committed = Some(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_advances_only_over_what_is_finished_without_a_gap() {
        let mut offsets = Offsets::default();
        [3, 4, 7, 8].into_iter().for_each(|offset| offsets.handed(offset, 10));
        assert_eq!(offsets.to_commit(), None);
        assert_eq!(offsets.finish(4), Some(10));
        assert_eq!(offsets.finish(8), Some(10));
        assert_eq!(offsets.to_commit(), None, "3 is not finished");
        assert_eq!(offsets.finish(3), Some(10));
        assert_eq!(offsets.to_commit(), Some(5), "7 is not finished");
        assert_eq!(offsets.unfinished(), (1, 10));
        assert_eq!(offsets.finish(7), Some(10));
        assert_eq!(offsets.to_commit(), Some(9));
        offsets.committed(9);
        assert_eq!(offsets.to_commit(), None);
    }

    #[test]
    fn finishing_twice_or_something_else_does_nothing() {
        let mut offsets = Offsets::default();
        offsets.handed(1, 5);
        offsets.handed(2, 5);
        assert_eq!(offsets.finish(2), Some(5));
        assert_eq!(offsets.finish(2), None);
        assert_eq!(offsets.finish(9), None);
        assert_eq!(offsets.to_commit(), None);
    }
}
