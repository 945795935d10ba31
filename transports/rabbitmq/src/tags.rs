//! The numbers by which a broker names what it confirms. Pure.

use std::collections::VecDeque;

/// Messages that are outstanding on a channel: they are numbered from 1 as they are sent, and a
/// confirmation names one number, or all up to it.
#[derive(Debug)]
pub(crate) struct Tags {
    /// The number of the first place in `outstanding`.
    first: u64,
    /// By number: what was sent, until it is confirmed.
    outstanding: VecDeque<Option<usize>>,
}

impl Tags {
    pub(crate) const fn new() -> Self {
        Self { first: 1, outstanding: VecDeque::new() }
    }

    /// Notes that this was sent.
    pub(crate) fn sent(&mut self, index: usize) {
        self.outstanding.push_back(Some(index));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// Takes what a confirmation names, in the order in which it was sent. A number 0 with
    /// `several` is everything.
    ///
    /// A number that is not outstanding is none of ours: no message is confirmed by it.
    pub(crate) fn take(&mut self, tag: u64, several: bool) -> Vec<usize> {
        let past =
            if several && tag == 0 { u64::MAX } else { tag }.saturating_add(1).saturating_sub(self.first);
        let past = usize::try_from(past).unwrap_or(usize::MAX);
        let taken = if several {
            let past = past.min(self.outstanding.len());
            self.first += past as u64;
            self.outstanding.drain(..past).flatten().collect()
        } else {
            let place = past.checked_sub(1).and_then(|place| self.outstanding.get_mut(place));
            place.and_then(Option::take).into_iter().collect()
        };
        while let Some(None) = self.outstanding.front() {
            self.outstanding.pop_front();
            self.first += 1;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_confirmation_names_one_or_all_up_to_it() {
        let mut tags = Tags::new();
        (10..16).for_each(|index| tags.sent(index));
        assert_eq!(tags.take(2, false), [11]);
        assert_eq!(tags.take(4, true), [10, 12, 13]);
        assert_eq!((tags.take(4, true), tags.take(3, false), tags.take(99, false)), (vec![], vec![], vec![]));
        assert!(tags.take(0, false).is_empty());
        tags.sent(16);
        assert_eq!(tags.take(7, false), [16]);
        assert_eq!(tags.take(0, true), [14, 15]);
        assert!(tags.is_empty());
        tags.sent(17);
        assert_eq!(tags.take(8, false), [17], "numbers go on");
    }

    proptest! {
        #[test]
        fn each_is_taken_once_and_by_its_number(steps in proptest::collection::vec((0..3_u8, 0..40_u64), 1..60)) {
            let (mut tags, mut model, mut next) = (Tags::new(), BTreeMap::new(), 1_u64);
            for (step, tag) in steps {
                if step == 0 {
                    let index = usize::try_from(next).unwrap() * 10;
                    tags.sent(index);
                    model.insert(next, index);
                    next += 1;
                    continue;
                }
                let several = step == 1;
                let named = |number: &u64| if several { tag == 0 || *number <= tag } else { *number == tag };
                let expected: Vec<usize> = model.iter().filter(|(number, _)| named(number)).map(|(_, index)| *index).collect();
                model.retain(|number, _| !named(number));
                prop_assert_eq!(tags.take(tag, several), expected);
                prop_assert_eq!(tags.is_empty(), model.is_empty());
            }
        }
    }
}
