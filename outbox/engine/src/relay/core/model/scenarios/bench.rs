//! Bench: a core whose commands a test answers by hand, and the rows that it shows to it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{
    Bucket, BucketSet, Due, Epoch, FetchRequest, Fetched, FetchedRow, KeyTransition, Lease, Leased, Ordering,
    Outcome, Position, RelayId, RowId, Step, Stored, StripeMark, Transitioned, Waiting,
};
use outbox_contract::{Failure, MessageId, Route, Topic};

use crate::relay::config::RelayConfig;
use crate::relay::core::breaker::Breaker;
use crate::relay::core::model::cast::{SLOTS, bucket_at, stored, the_key};
use crate::relay::core::{Answer, Command, Core, Event, Limits, PublishCommand, Question};

pub(super) const MS: Duration = Duration::from_millis(1);

/// A core that owns all buckets, and what it wants.
pub(super) struct Bench {
    pub(super) core: Core,
    pub(super) now: Duration,
    pub(super) wants: Vec<Command>,
    /// Marks of the store's shards.
    pub(super) marks: Vec<StripeMark>,
}

impl Bench {
    pub(super) fn new(ordering: Ordering, config: &RelayConfig) -> Self {
        Self::with(ordering, config, Limits::of(config))
    }

    /// A core of an inbox.
    pub(super) fn of_inbox(max_in_flight: usize, fetch_batch: usize) -> Self {
        let config =
            RelayConfig { max_in_flight, fetch_batch, max_unconfirmed_batches: 4, ..RelayConfig::default() };
        Self::with(Ordering::Single, &config, Limits::of_inbox(&config))
    }

    pub(super) fn with(ordering: Ordering, config: &RelayConfig, limits: Limits) -> Self {
        let breaker = Breaker::new(config.outage_first_delay, config.outage_max_delay);
        let names = (Route::default(), RelayId::from_uuid(uuid::Uuid::nil()));
        let core = Core::new(names, ordering, limits, config.retry.clone(), breaker, 1);
        let mut bench = Self { core, now: MS, wants: Vec::new(), marks: Vec::new() };
        bench.pause(Vec::new());
        bench
    }

    /// A heartbeat is answered: it owns everything, and these topics are paused.
    pub(super) fn pause(&mut self, topics: Vec<Topic>) {
        self.beat(topics, |_| Epoch(1));
    }

    /// The same, under these epochs.
    pub(super) fn beat(&mut self, paused: Vec<Topic>, epoch: impl Fn(Bucket) -> Epoch) {
        let lease = |bucket| Lease { bucket, epoch: epoch(bucket), low_water: Position::START };
        let mut leased = Leased::default();
        leased.leases = (0..SLOTS).map(bucket_at).map(lease).collect();
        leased.paused.topics = paused;
        let until = Duration::from_secs(1_000_000);
        self.feed(Event::Leased { leased, surplus: BucketSet::EMPTY, asked: self.now, until });
    }

    pub(super) fn small() -> Self {
        let config = RelayConfig {
            max_in_flight: 20,
            fetch_batch: 10,
            per_key: 8,
            max_unconfirmed_batches: 4,
            ..RelayConfig::default()
        };
        Self::new(Ordering::Single, &config)
    }

    pub(super) fn feed(&mut self, event: Event) {
        let wants = self.core.on(event, self.now);
        self.wants.extend(wants);
        self.core.audit().unwrap();
    }

    /// Lets time pass until the core asks for rows, and answers other questions with nothing.
    pub(super) fn fetch(&mut self) -> (u64, FetchRequest) {
        for _ in 0..1_000 {
            let asks = |want: &Command| matches!(want, Command::Ask { .. });
            let Some(at) = self.wants.iter().position(asks) else {
                self.now += MS * 100;
                self.feed(Event::Tick);
                continue;
            };
            let Command::Ask { number, question } = self.wants.swap_remove(at) else { continue };
            match question {
                Question::Fetch(request) => return (number, request),
                Question::Due(_) => {
                    self.feed(Event::Answered { number, answer: Answer::Due(Due::default()) });
                }
                Question::Marks(_) => {
                    let marks = self.marks.clone();
                    self.feed(Event::Answered { number, answer: Answer::Marks(marks) });
                }
                other @ Question::Writers => panic!("{other:?}"),
            }
        }
        panic!("nothing is fetched");
    }

    pub(super) fn shows(&mut self, number: u64, rows: Vec<FetchedRow>) {
        let mut fetched = Fetched::default();
        fetched.rows = rows;
        self.feed(Event::Answered { number, answer: Answer::Fetched(fetched) });
    }

    pub(super) fn reads(&mut self, rows: Vec<FetchedRow>) {
        let (number, _) = self.fetch();
        self.shows(number, rows);
    }

    pub(super) fn batch(&mut self) -> Option<PublishCommand> {
        let at = self.wants.iter().position(|want| matches!(want, Command::Publish(_)))?;
        match self.wants.swap_remove(at) {
            Command::Publish(batch) => Some(batch),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn step(&mut self) -> Option<(u64, KeyTransition)> {
        let at = self.wants.iter().position(|want| matches!(want, Command::Transition { .. }))?;
        match self.wants.swap_remove(at) {
            Command::Transition { number, transition } => Some((number, transition)),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn is_back(&mut self, batch: &PublishCommand, outcome: Option<Outcome>) {
        let outcomes = vec![outcome; batch.messages.len()];
        let refused = BTreeSet::new();
        self.feed(Event::Published { batch: batch.number, outcomes, refused, broke: false });
    }

    pub(super) fn removal(&self) -> u64 {
        let removes =
            |want: &Command| if let Command::Remove { number, .. } = want { Some(*number) } else { None };
        self.wants.iter().find_map(removes).unwrap()
    }

    pub(super) fn is_made(&mut self, number: u64, version: Option<i64>) {
        self.feed(Event::Transitioned { number, answer: Transitioned::Done(version) });
    }
}

pub(super) fn row(position: i64, of: usize) -> Arc<Stored> {
    let id = MessageId::from_uuid(uuid::Uuid::from_u128(u128::try_from(position).unwrap()));
    stored(Position(position), of, id)
}

pub(super) fn message(position: i64, of: usize) -> FetchedRow {
    FetchedRow::Message(row(position, of))
}

pub(super) fn failing(position: i64, of: usize) -> FetchedRow {
    let row = row(position, of);
    FetchedRow::Failing(Waiting::new(row.row(), the_key(of).clone(), row.bucket, None))
}

pub(super) fn failed() -> Option<Outcome> {
    Some(Outcome::Failed(Failure::new("model", "as the model has it")))
}

pub(super) fn positions(batch: &PublishCommand) -> Vec<i64> {
    batch.messages.iter().map(|stored| stored.position.0).collect()
}

pub(super) fn parked(transition: &KeyTransition) -> Vec<Position> {
    let rows: &[RowId] = match &transition.step {
        Step::Park { rows } => rows,
        Step::Fail { behind, .. } => behind,
        _ => &[],
    };
    rows.iter().map(|row| row.position).collect()
}
