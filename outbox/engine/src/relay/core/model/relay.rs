//! A relay of the model: a core, and actors that carry.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use outbox_contract::backend::{
    BucketSet, FetchRequest, KeyTransition, Lease, LowWater, Outcome, RelayId, RowId,
};

use super::super::{Command, Core, Event, PublishCommand, Question};

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
    /// How many messages were carried, in whole runs of a key.
    pub(super) carried: usize,
    pub(super) until: Duration,
}

/// A removal that is under way, with the incarnation that asked for it.
#[derive(Debug)]
pub(super) struct Removal {
    pub(super) incarnation: u64,
    pub(super) number: u64,
    pub(super) rows: Vec<RowId>,
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

/// What the lease keeper knows.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    pub(super) leases: Vec<Lease>,
    pub(super) yielding: BucketSet,
    pub(super) low_water: LowWater,
    pub(super) life: Option<i64>,
    pub(super) beat_at: Duration,
    /// When the last batch may be begun.
    pub(super) until: Duration,
}

pub(super) struct Relay {
    pub(super) id: RelayId,
    pub(super) core: Core,
    pub(super) incarnation: u64,
    pub(super) answers: BTreeMap<Source, VecDeque<Event>>,
    pub(super) question: Option<(u64, Question)>,
    pub(super) below: Option<(u64, FetchRequest)>,
    pub(super) batches: Vec<Out>,
    pub(super) transitions: VecDeque<(u64, KeyTransition)>,
    pub(super) gives: VecDeque<(BucketSet, LowWater)>,
    pub(super) removals: VecDeque<Removal>,
    pub(super) keeper: Keeper,
    pub(super) frozen_until: Duration,
    /// Asked to stop; with the mark that it leaves behind once it has one.
    pub(super) stopping: bool,
    pub(super) drained: Option<LowWater>,
}

/// Time that a batch may take.
pub(super) const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);

impl Relay {
    pub(super) fn new(id: RelayId, core: Core) -> Self {
        Self {
            id,
            core,
            incarnation: 0,
            answers: BTreeMap::new(),
            question: None,
            below: None,
            batches: Vec::new(),
            transitions: VecDeque::new(),
            gives: VecDeque::new(),
            removals: VecDeque::new(),
            keeper: Keeper::default(),
            frozen_until: Duration::ZERO,
            stopping: false,
            drained: None,
        }
    }

    /// Begins nothing more, and takes what became of batches: what was delivered is to be removed.
    pub(super) fn retire(&mut self, now: Duration) {
        let mut commands = self.core.on(Event::Drain, now);
        while !self.batches.is_empty() {
            let Out { batch, outcomes, .. } = self.batches.swap_remove(0);
            let refused = BTreeSet::new();
            let event = Event::Published { batch: batch.number, outcomes, refused, broke: false };
            commands.extend(self.core.on(event, now));
        }
        for command in commands {
            if let Command::Remove { number, rows, messages, bytes } = command {
                let incarnation = self.incarnation;
                self.removals.push_back(Removal { incarnation, number, rows, messages, bytes });
            }
        }
    }

    /// Everything that was known is dropped; what was delivered is still to be removed, and counts until then.
    pub(super) fn begin_anew(&mut self, core: Core, now: Duration) {
        self.core = core;
        self.incarnation += 1;
        self.answers.clear();
        self.question = None;
        self.below = None;
        self.batches.clear();
        self.transitions.clear();
        self.gives.clear();
        self.keeper = Keeper { beat_at: now, ..Keeper::default() };
        let event = self.owed();
        self.answer(Source::Settler, event);
    }

    /// What the settler holds of earlier incarnations.
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
        let sources: Vec<Source> = self.answers.keys().copied().collect();
        let source = *sources.get(random.usize(..sources.len().max(1)))?;
        let queue = self.answers.get_mut(&source)?;
        let event = queue.pop_front();
        if queue.is_empty() {
            self.answers.remove(&source);
        }
        event
    }

    /// Hands commands to the actors. Says what a publisher was given.
    pub(super) fn carry_out(&mut self, commands: Vec<Command>, now: Duration) -> Result<(), String> {
        for command in commands {
            match command {
                Command::Ask { number, question } => {
                    if self.question.replace((number, question)).is_some() {
                        return Err("two questions at once".to_owned());
                    }
                }
                Command::LookBelow { number, request, .. } => self.below = Some((number, request)),
                Command::Publish(batch) => self.begin(batch, now)?,
                Command::Remove { number, rows, messages, bytes } => {
                    let incarnation = self.incarnation;
                    self.removals.push_back(Removal { incarnation, number, rows, messages, bytes });
                }
                Command::Transition { number, transition } => {
                    self.transitions.push_back((number, transition))
                }
                Command::GiveBack { buckets, low_water } => self.gives.push_back((buckets, low_water)),
                Command::Save(low_water) => self.keeper.low_water = low_water,
                Command::Drained(low_water) => self.drained = Some(low_water),
                Command::Count(_) | Command::Report(_) => {}
            }
        }
        Ok(())
    }

    fn begin(&mut self, batch: PublishCommand, now: Duration) -> Result<(), String> {
        if now >= self.keeper.until {
            return Err(format!("fence: batch {} was begun without leases", batch.number));
        }
        let epoch = |bucket, epochs: &BTreeMap<_, _>| epochs.get(&bucket).copied();
        for message in &batch.messages {
            let key = message.message.key_id();
            let twice = self.batches.iter().any(|out| {
                // What was confirmed of it is over, though others in the batch are waited for.
                let unconfirmed = out.batch.messages.iter().zip(&out.outcomes);
                let mut unconfirmed =
                    unconfirmed.filter(|(_, outcome)| **outcome != Some(Outcome::Delivered));
                unconfirmed.any(|(other, _)| other.message.key_id() == key)
                    && epoch(message.bucket, &out.batch.epochs) == epoch(message.bucket, &batch.epochs)
            });
            if twice {
                return Err(format!("a key is in two batches: {key:?}"));
            }
        }
        let outcomes = vec![None; batch.messages.len()];
        self.batches.push(Out { batch, outcomes, carried: 0, until: now + PUBLISH_TIMEOUT });
        Ok(())
    }

    /// A batch is over.
    pub(super) fn end(&mut self, at: usize, broke: bool) {
        let Out { batch, outcomes, .. } = self.batches.swap_remove(at);
        let refused = BTreeSet::new();
        let event = Event::Published { batch: batch.number, outcomes, refused, broke };
        self.answer(Source::Publisher(batch.number), event);
    }
}
