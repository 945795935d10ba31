//! A relay of the model: a core, and actors that carry.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use outbox_contract::Topic;
use outbox_contract::backend::{
    BucketSet, Epoch, FetchRequest, KeyTransition, Lease, LowWater, Outcome, Paused, Position, RelayId,
    RowId, Writers,
};

use super::super::{Command, Core, Event, PublishCommand, Question};
use super::Sabotage;
use super::cast::{bucket, number_of, serial_of};
use super::judge::{Judged, broken};

/// Whose answer it is. Answers of one actor come in order, those of several in any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Keeper,
    Poller,
    Below,
    Settler,
    Transitions,
    Publisher(u64),
}

/// A batch that a publisher has.
#[derive(Debug)]
pub(super) struct Out {
    pub(super) batch: PublishCommand,
    pub(super) outcomes: Vec<Option<Outcome>>,
    /// Messages that are not asked of the broker.
    pub(super) cut: Vec<bool>,
    pub(super) refused: BTreeSet<usize>,
    /// Number of messages that were carried, in whole runs of a key.
    pub(super) carried: usize,
    pub(super) until: Duration,
}

/// A removal that is under way, with the incarnation that asked for it.
#[derive(Clone, Debug)]
pub(super) struct Removal {
    pub(super) incarnation: u64,
    pub(super) number: u64,
    pub(super) rows: Vec<RowId>,
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

/// State of the lease keeper. Instants are those of the relay's own clock.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    pub(super) leases: Vec<Lease>,
    pub(super) yielding: BucketSet,
    pub(super) low_water: LowWater,
    pub(super) life: Option<i64>,
    pub(super) beat_at: Duration,
    /// It waits for an answer that does not come: until that counts as failed.
    pub(super) hangs_until: Option<Duration>,
    /// Latest start of a batch.
    pub(super) until: Duration,
}

#[derive(Debug)]
pub(super) struct Relay {
    pub(super) id: RelayId,
    /// Its number among all that were ever started.
    pub(super) name: usize,
    pub(super) core: Core,
    /// Time by which its clock is ahead.
    pub(super) ahead: Duration,
    pub(super) incarnation: u64,
    pub(super) answers: BTreeMap<Source, VecDeque<Event>>,
    pub(super) question: Option<(u64, Question)>,
    /// The last position, where the question who is writing is half answered.
    pub(super) last_read: Option<Position>,
    /// Writers at that time: what a store would say that asks in the wrong order.
    pub(super) open_read: Writers,
    pub(super) below: Option<(u64, FetchRequest)>,
    pub(super) batches: Vec<Out>,
    pub(super) transitions: VecDeque<(u64, KeyTransition)>,
    /// Topics that are to be paused.
    pub(super) pauses: VecDeque<(u64, Topic)>,
    pub(super) gives: VecDeque<(BucketSet, LowWater)>,
    pub(super) removals: VecDeque<Removal>,
    pub(super) keeper: Keeper,
    pub(super) frozen_until: Duration,
    /// Transitions are slow: none is made before.
    pub(super) slow_until: Duration,
    /// A call hangs: until it counts as failed.
    pub(super) hangs_until: Option<Duration>,
    /// Asked to stop; with the mark that it leaves behind once it has one.
    pub(super) stopping: bool,
    pub(super) drained: Option<LowWater>,
    /// Pauses that the core knows: those of operators, and those that it requested itself.
    pub(super) paused: Paused,
    /// Rows that the broker confirmed, and that may be removed: once for each batch, of whichever
    /// incarnation.
    confirmed: BTreeSet<(RowId, u64, u64)>,
}

/// Time that a batch may take.
pub(super) const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);

impl Relay {
    pub(super) fn new(id: RelayId, name: usize, core: Core, ahead: Duration) -> Self {
        Self {
            id,
            name,
            core,
            ahead,
            incarnation: 0,
            answers: BTreeMap::new(),
            question: None,
            last_read: None,
            open_read: Writers::default(),
            below: None,
            batches: Vec::new(),
            transitions: VecDeque::new(),
            pauses: VecDeque::new(),
            gives: VecDeque::new(),
            removals: VecDeque::new(),
            keeper: Keeper::default(),
            frozen_until: Duration::ZERO,
            slow_until: Duration::ZERO,
            hangs_until: None,
            stopping: false,
            drained: None,
            paused: Paused::default(),
            confirmed: BTreeSet::new(),
        }
    }

    /// Begins nothing more, and takes what became of batches: what was delivered is to be removed.
    pub(super) fn retire(&mut self, now: Duration) -> Judged {
        let mut commands = self.core.on(Event::Drain, now);
        while !self.batches.is_empty() {
            let Out { batch, outcomes, refused, .. } = self.batches.swap_remove(0);
            self.confirm(&batch, &outcomes);
            let event = Event::Published { batch: batch.number, outcomes, refused, broke: false };
            commands.extend(self.core.on(event, now));
        }
        for command in commands {
            if let Command::Remove { number, rows, messages, bytes } = command {
                self.remove(number, rows, messages, bytes)?;
            }
        }
        Ok(())
    }

    /// Everything that was known is dropped; what was delivered is still to be removed, and counts
    /// until then.
    pub(super) fn begin_anew(&mut self, core: Core, now: Duration) {
        self.core = core;
        self.incarnation += 1;
        self.answers.clear();
        self.question = None;
        self.last_read = None;
        self.below = None;
        self.batches.clear();
        self.transitions.clear();
        self.pauses.clear();
        self.gives.clear();
        self.hangs_until = None;
        self.paused = Paused::default();
        self.keeper = Keeper { beat_at: now, ..Keeper::default() };
        let event = self.owed();
        self.answer(Source::Settler, event);
    }

    /// Returns the removals of earlier incarnations that the settler still holds.
    pub(super) fn owed(&self) -> Event {
        let old = || self.removals.iter().filter(|removal| removal.incarnation != self.incarnation);
        Event::Owed {
            messages: old().map(|removal| removal.messages).sum(),
            bytes: old().map(|removal| removal.bytes).sum(),
        }
    }

    pub(super) fn answer(&mut self, source: Source, event: Event) {
        self.answers.entry(source).or_default().push_back(event);
    }

    /// The next answer of one of the actors.
    pub(super) fn next_answer(&mut self, random: &mut fastrand::Rng) -> Option<Event> {
        if self.answers.is_empty() {
            return None;
        }
        let source = *self.answers.keys().nth(random.usize(..self.answers.len()))?;
        let queue = self.answers.get_mut(&source)?;
        let event = queue.pop_front();
        if queue.is_empty() {
            self.answers.remove(&source);
        }
        event
    }

    /// Hands commands to the actors.
    pub(super) fn carry_out(
        &mut self,
        commands: Vec<Command>,
        now: Duration,
        sabotage: Option<Sabotage>,
        mut refused: impl FnMut(&PublishCommand, usize) -> bool,
    ) -> Judged {
        for command in commands {
            match command {
                Command::Ask { number, question } => {
                    if self.question.replace((number, question)).is_some() {
                        return Err(broken(
                            "two questions",
                            None,
                            format!("question {number} is asked beside another"),
                        ));
                    }
                }
                Command::LookBelow { number, request, .. } => {
                    if sabotage != Some(Sabotage::NeverLooksBelow) {
                        self.below = Some((number, request));
                    }
                }
                Command::Publish(batch) => self.begin(batch, now, &mut refused)?,
                Command::Remove { number, rows, messages, bytes } => {
                    self.remove(number, rows, messages, bytes)?;
                }
                Command::Transition { number, transition } => {
                    self.transitions.push_back((number, transition));
                }
                Command::PauseTopic { number, topic, .. } => {
                    self.paused.topics.push(topic.clone());
                    self.pauses.push_back((number, topic));
                }
                Command::GiveBack { buckets, low_water } => self.gives.push_back((buckets, low_water)),
                Command::Save(low_water) => self.keeper.low_water = low_water,
                Command::Drained(low_water) => self.drained = Some(low_water),
                Command::Count(_) | Command::Report(_) => {}
            }
        }
        Ok(())
    }

    fn remove(&mut self, number: u64, rows: Vec<RowId>, messages: usize, bytes: usize) -> Judged {
        for row in &rows {
            let confirmed = self.confirmed.range((*row, 0, 0)..=(*row, u64::MAX, u64::MAX)).next().copied();
            if !confirmed.is_some_and(|confirmed| self.confirmed.remove(&confirmed)) {
                let (serial, at) = (serial_of(row.id), row.position);
                let words = format!("m{serial} at {at} is to be removed, and was not confirmed");
                return Err(broken("removed", None, words));
            }
        }
        let incarnation = self.incarnation;
        self.removals.push_back(Removal { incarnation, number, rows, messages, bytes });
        Ok(())
    }

    /// Returns true if rows of these buckets are still to be removed, of those that this
    /// incarnation delivered.
    pub(super) fn removes(&self, buckets: &BucketSet, ledger: &super::judge::Ledger) -> bool {
        let own = self.removals.iter().filter(|removal| removal.incarnation == self.incarnation);
        own.flat_map(|removal| &removal.rows).any(|row| buckets.contains(bucket(ledger.fate(row.id).of)))
    }

    /// Takes down what the broker confirmed.
    pub(super) fn confirm(&mut self, batch: &PublishCommand, outcomes: &[Option<Outcome>]) {
        let delivered = batch.messages.iter().zip(outcomes);
        let delivered = delivered.filter(|(_, outcome)| **outcome == Some(Outcome::Delivered));
        let (incarnation, number) = (self.incarnation, batch.number);
        self.confirmed.extend(delivered.map(|(stored, _)| (stored.row(), incarnation, number)));
    }

    /// The same, of rows that the core hears of while the batch is out.
    pub(super) fn confirm_rows(&mut self, number: u64, rows: Vec<RowId>) {
        let incarnation = self.incarnation;
        self.confirmed.extend(rows.into_iter().map(|row| (row, incarnation, number)));
    }

    /// Gives a batch to a publisher, which looks at the clock and the epochs, and asks the
    /// transport what it can carry.
    fn begin(
        &mut self,
        batch: PublishCommand,
        now: Duration,
        mut refused: impl FnMut(&PublishCommand, usize) -> bool,
    ) -> Judged {
        if now >= self.keeper.until {
            return Err(broken("fence", None, format!("batch {} was begun without leases", batch.number)));
        }
        self.judge_batch(&batch)?;
        let lost: BTreeMap<_, _> = batch
            .epochs
            .iter()
            .filter(|(bucket, epoch)| !self.holds(**bucket, **epoch))
            .map(|(b, e)| (*b, *e))
            .collect();
        if !lost.is_empty() {
            self.answer(Source::Publisher(batch.number), Event::Lapsed(lost.clone()));
        }
        let count = batch.messages.len();
        let mut out = Out {
            outcomes: vec![None; count],
            cut: vec![false; count],
            refused: BTreeSet::new(),
            carried: 0,
            until: now + PUBLISH_TIMEOUT,
            batch,
        };
        for slot in 0usize..count {
            let (stored, before) = (&out.batch.messages[slot], slot.checked_sub(1));
            let follows = before.is_some_and(|before| {
                out.cut[before] && out.batch.messages[before].message.key == stored.message.key
            });
            if follows || lost.contains_key(&stored.bucket) {
                (out.cut[slot], out.outcomes[slot]) = (true, Some(Outcome::Blocked));
            } else if refused(&out.batch, slot) {
                out.refused.insert(slot);
                (out.cut[slot], out.outcomes[slot]) =
                    (true, Some(Outcome::Rejected(super::broker::failure())));
            }
        }
        self.batches.push(out);
        Ok(())
    }

    fn judge_batch(&self, batch: &PublishCommand) -> Judged {
        for message in &batch.messages {
            let key = message.message.key_id();
            let of = number_of(&key);
            if self.paused.covers(&key.topic) {
                return Err(broken(
                    "paused",
                    of,
                    format!("batch {} has a message of k{of}, which is paused", batch.number),
                ));
            }
            let twice = self.batches.iter().any(|out| {
                // Its confirmed messages are over, though others in the batch are pending.
                let unconfirmed = out.batch.messages.iter().zip(&out.outcomes);
                let mut unconfirmed =
                    unconfirmed.filter(|(_, outcome)| **outcome != Some(Outcome::Delivered));
                unconfirmed.any(|(other, _)| other.message.key == message.message.key)
                    && out.batch.epochs.get(&message.bucket) == batch.epochs.get(&message.bucket)
            });
            if twice {
                return Err(broken("twice", of, format!("k{of} is in two batches at once")));
            }
        }
        Ok(())
    }

    /// Returns true if a bucket is owned under this epoch, as far as the keeper knows.
    pub(super) fn holds(&self, bucket: outbox_contract::backend::Bucket, epoch: Epoch) -> bool {
        self.keeper.leases.iter().any(|lease| lease.bucket == bucket && lease.epoch == epoch)
    }

    /// A batch is over.
    pub(super) fn end(&mut self, at: usize, broke: bool) {
        let Out { batch, outcomes, refused, .. } = self.batches.swap_remove(at);
        self.confirm(&batch, &outcomes);
        let event = Event::Published { batch: batch.number, outcomes, refused, broke };
        self.answer(Source::Publisher(batch.number), event);
    }
}
