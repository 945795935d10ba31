//! The judge: what was committed, what arrived, and what a consumer makes of it.

use outbox_contract::MessageId;
use outbox_contract::backend::Position;

use super::cast::{KEYS, serial_of};

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its kind, in a word or two.
    pub kind: &'static str,
    /// Description of the violation.
    pub words: String,
    /// The key that it is about, if it is about one.
    pub(super) key: Option<usize>,
}

/// Nothing, or what went wrong.
pub(super) type Judged = Result<(), Violation>;

/// A violation of this kind.
pub(super) fn broken(kind: &'static str, key: impl Into<Option<usize>>, words: String) -> Violation {
    Violation { kind, words, key: key.into() }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.kind, self.words)
    }
}

/// All that is known of a message.
#[derive(Clone, Debug, Default)]
pub(super) struct Fate {
    pub(super) of: usize,
    /// Its place among those of its key, in the order of commits.
    place: usize,
    pub(super) arrived: bool,
    /// It need not arrive: a dead letter, or what a restore lost.
    pub(super) out: bool,
    pub(super) malformed: bool,
    /// Never delivered; with whether that is said at once.
    pub(super) poison: Option<bool>,
    /// The transport refuses it without asking the broker.
    pub(super) refused: bool,
    /// It was a dead letter, and came again: a copy of before may still be on its way.
    pub(super) requeued: bool,
    /// Number of times that it failed for a reason of its own.
    pub(super) failures: u32,
    /// The highest position at which the consumer that counts positions has handled it.
    handled_at: Option<Position>,
}

/// Everything that was ever committed, and its fate.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    fates: Vec<Fate>,
    /// By key, in the order of commits.
    committed: [Vec<usize>; KEYS],
    /// By key: so many of them are over, and all before them.
    over: [usize; KEYS],
    /// The position that a consumer has handled last, by key. It drops what is not above that.
    handled: [Position; KEYS],
}

impl Ledger {
    pub(super) fn fate(&self, id: MessageId) -> &Fate {
        &self.fates[serial_of(id) - 1]
    }

    pub(super) fn fate_mut(&mut self, id: MessageId) -> &mut Fate {
        &mut self.fates[serial_of(id) - 1]
    }

    pub(super) fn messages(&self) -> usize {
        self.fates.len()
    }

    /// A message is committed. Returns its number.
    pub(super) fn commit(&mut self, of: usize) -> usize {
        self.fates.push(Fate { of, place: self.committed[of].len(), ..Fate::default() });
        self.committed[of].push(self.fates.len());
        self.fates.len()
    }

    /// A dead letter is committed again, at the end of its key.
    pub(super) fn requeue(&mut self, id: MessageId) {
        let serial = serial_of(id);
        let fate = &mut self.fates[serial - 1];
        fate.place = self.committed[fate.of].len();
        (fate.arrived, fate.out, fate.requeued) = (false, false, true);
        self.committed[fate.of].push(serial);
    }

    /// A restore lost what was committed last: whatever is not `there` any more and never arrived
    /// is out. Consumers get a new source.
    pub(super) fn restore(&mut self, is_there: impl Fn(usize) -> bool) {
        for (at, fate) in self.fates.iter_mut().enumerate() {
            fate.out |= !fate.arrived && !is_there(at + 1);
        }
        self.handled = [Position::START; KEYS];
    }

    /// A message arrives at the broker, with what is written on it.
    pub(super) fn arrive(&mut self, id: MessageId, of: usize, position: Position) -> Judged {
        let serial = serial_of(id);
        let Some(fate) = self.fates.get_mut(serial.wrapping_sub(1)) else {
            return Err(broken("phantom", of, format!("m{serial} of k{of} was never committed")));
        };
        if fate.malformed || fate.of != of {
            return Err(broken("phantom", of, format!("m{serial}, which is no message of k{of}, arrived")));
        }
        let is_first = !std::mem::replace(&mut fate.arrived, true);
        let (place, requeued) = (fate.place, fate.requeued);
        if position > self.handled[of] {
            self.handled[of] = position;
            fate.handled_at = fate.handled_at.max(Some(position));
        } else if fate.handled_at.is_none() && !fate.out && !requeued {
            let last = self.handled[of];
            return Err(broken(
                "dropped",
                of,
                format!(
                    "m{serial} of k{of} at {position} came after {last}, so a consumer takes it for a repeat"
                ),
            ));
        }
        if is_first && !requeued && place > self.over(of) {
            let first = self.committed[of][self.over[of]];
            return Err(broken("out of order", of, format!("m{serial} of k{of} arrived before m{first}")));
        }
        Ok(())
    }

    /// Number of messages of a key that are over, with all before them.
    fn over(&mut self, of: usize) -> usize {
        let committed = &self.committed[of];
        while let Some(serial) = committed.get(self.over[of]) {
            let fate = &self.fates[serial - 1];
            let is_elsewhere = fate.place != self.over[of];
            if !(is_elsewhere || fate.arrived || fate.out || fate.malformed) {
                break;
            }
            self.over[of] += 1;
        }
        self.over[of]
    }

    /// Checks that all committed messages of these keys arrived, or are out.
    pub(super) fn is_complete(&mut self, of: usize) -> Judged {
        let over = self.over(of);
        match self.committed[of].get(over) {
            Some(serial) => Err(broken("lost", of, format!("m{serial} of k{of} is gone and never arrived"))),
            None => Ok(()),
        }
    }
}
