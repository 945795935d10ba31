use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::backend::{Bucket, RowId};
use crate::id::{Epoch, Position, RelayId};
use crate::name::{KeyId, Route};

/// An event of a key.
#[derive(Clone, Debug)]
enum Event {
    Append,
    Fail { row: usize, hold: bool, behind: usize },
    Park { rows: usize },
    Bury { row: usize },
    Resume { delivered: usize },
    Hold,
    Release,
    Skip,
    Discard { most: usize },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => Just(Event::Append),
        4 => (0..4_usize, any::<bool>(), 0..4_usize)
            .prop_map(|(row, hold, behind)| Event::Fail { row, hold, behind }),
        2 => (0..4_usize).prop_map(|rows| Event::Park { rows }),
        2 => (0..4_usize).prop_map(|row| Event::Bury { row }),
        3 => (0..4_usize).prop_map(|delivered| Event::Resume { delivered }),
        1 => Just(Event::Hold),
        1 => Just(Event::Release),
        1 => Just(Event::Skip),
        1 => (1..4_usize).prop_map(|most| Event::Discard { most }),
    ];
    prop::collection::vec(event, 0..60)
}

/// A key with its messages, as a store has it.
#[derive(Default)]
struct World {
    hot: BTreeMap<Position, RowId>,
    parked: BTreeMap<Position, RowId>,
    state: Option<KeyState>,
    /// The last version, the last position and the clock, which all count events.
    count: i64,
}

fn failure(words: &str) -> Failure {
    Failure::new("test", words)
}

impl World {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.count * 1_000)
    }

    fn first(&self) -> Option<RowId> {
        self.parked.values().next().copied()
    }

    fn park(&mut self, rows: &[RowId]) {
        for row in rows {
            if self.hot.remove(&row.position).is_some() {
                self.parked.insert(row.position, *row);
            }
        }
    }

    /// Moves a step's messages, and says whether its own one was there.
    fn moves(&mut self, step: &Step) -> bool {
        match step {
            Step::Fail { row, behind, .. } => {
                let is_there =
                    self.hot.contains_key(&row.position) || self.parked.contains_key(&row.position);
                if is_there {
                    self.park(&[*row]);
                    self.park(behind);
                }
                is_there
            }
            Step::Park { rows } => {
                self.park(rows);
                true
            }
            Step::Bury { row, .. } => {
                self.hot.remove(&row.position).or_else(|| self.parked.remove(&row.position)).is_some()
            }
            Step::Resume { delivered } => {
                for row in delivered {
                    self.parked.remove(&row.position);
                }
                true
            }
        }
    }

    fn step(&mut self, step: Step) {
        let transition = KeyTransition {
            route: Route::default(),
            relay: RelayId::new(),
            bucket: Bucket(0),
            epoch: Epoch(1),
            key: KeyId::new("t", "k").unwrap(),
            version: self.state.as_ref().map(|state| state.version),
            step,
        };
        let other = KeyTransition { version: Some(-1), ..transition.clone() };
        assert!(is_stale(self.state.as_ref(), &other), "another version is refused");
        if is_stale(self.state.as_ref(), &transition) || !self.moves(&transition.step) {
            return;
        }
        let (before, first) = (self.state.clone(), self.first().map(|row| row.id));
        let next = after(before.clone(), &transition.step, first, self.count, self.now());
        if !depends_on_first(before.as_ref(), &transition.step) {
            let any = after(before.clone(), &transition.step, Some(MessageId::new()), self.count, self.now());
            assert_eq!(any, next, "the first parked message did not matter");
        }
        match (&before, &next) {
            (Some(before), Some(next)) => {
                assert_eq!(before.since, next.since);
                assert!(!before.held || next.held, "only an operator ends a hold");
                assert_eq!(next.version == before.version, matches!(transition.step, Step::Park { .. }));
            }
            (Some(before), None) => assert!(!before.held && self.parked.is_empty(), "nothing is stranded"),
            (None, Some(_)) => assert!(matches!(transition.step, Step::Fail { .. })),
            (None, None) => {}
        }
        self.state = next;
    }

    fn operate(&mut self, event: &Event) {
        let (version, now) = (self.count, self.now());
        if matches!(event, Event::Hold) {
            self.state = Some(hold(self.state.take(), version, now));
            assert!(self.state.as_ref().is_some_and(|state| state.held));
            return;
        }
        let Some(state) = self.state.take() else { return };
        self.state = match event {
            Event::Release => Some(state.release(version, now)),
            Event::Skip => match self.parked.pop_first() {
                Some(_) => Some(state.skip(version, now)),
                None => Some(state),
            },
            Event::Discard { most } => {
                for _ in 0..*most {
                    self.parked.pop_first();
                }
                (!self.parked.is_empty()).then(|| state.discard_in_part(version, now))
            }
            other => unreachable!("no operation: {other:?}"),
        };
    }

    /// The row of a message that is hot or parked, or of one that is neither.
    fn row(&self, at: usize) -> RowId {
        let mut rows = self.parked.values().chain(self.hot.values());
        rows.nth(at).copied().unwrap_or(RowId { position: Position(i64::MAX), id: MessageId::new() })
    }

    fn happens(&mut self, event: &Event) {
        self.count += 1;
        match event {
            Event::Append => {
                let row = RowId { position: Position(self.count), id: MessageId::new() };
                self.hot.insert(row.position, row);
            }
            Event::Fail { row, hold, behind } => {
                let then = if *hold { Then::Hold } else { Then::RetryAfter(Duration::from_secs(9)) };
                let behind = self.hot.values().copied().take(*behind).collect();
                let (first, last) = (failure("first"), failure("last"));
                self.step(Step::Fail { row: self.row(*row), attempts: 7, first, last, then, behind });
            }
            Event::Park { rows } => {
                self.step(Step::Park { rows: self.hot.values().copied().take(*rows).collect() })
            }
            Event::Bury { row } => {
                let (row, first, last) = (self.row(*row), failure("first"), failure("last"));
                self.step(Step::Bury { row, discard: false, reason: "rejected", attempts: 7, first, last });
            }
            Event::Resume { delivered } => {
                self.step(Step::Resume {
                    delivered: self.parked.values().copied().take(*delivered).collect(),
                });
            }
            Event::Hold | Event::Release | Event::Skip | Event::Discard { .. } => self.operate(event),
        }
        self.assert_sound();
    }

    fn assert_sound(&self) {
        let Some(state) = &self.state else {
            assert!(self.parked.is_empty(), "what is parked behind no key is looked at by nobody");
            return;
        };
        assert_eq!(state.held, state.next_attempt_at.is_none(), "a key is held, or due some time");
        assert_eq!(state.failing.is_some(), state.attempts > 0, "attempts are those of a message");
        assert_eq!(state.failing.is_some(), state.first_failure.is_some());
        if let Some(failing) = state.failing {
            assert!(self.parked.values().any(|row| row.id == failing), "what fails is parked");
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_a_key_is_sound(events in events()) {
        let mut world = World::default();
        for event in &events {
            world.happens(event);
        }
    }

    #[test]
    fn a_key_that_is_released_and_delivered_flows(events in events()) {
        let mut world = World::default();
        for event in &events {
            world.happens(event);
        }
        world.happens(&Event::Release);
        world.happens(&Event::Resume { delivered: usize::MAX });
        prop_assert_eq!(world.state, None);
    }
}

fn failing(world: &mut World, count: usize) -> MessageId {
    (0..count).for_each(|_| world.happens(&Event::Append));
    world.happens(&Event::Fail { row: 0, hold: false, behind: count });
    world.first().unwrap().id
}

#[test]
fn a_key_fails_and_is_due_after_the_delay() {
    let mut world = World::default();
    let first = failing(&mut world, 2);
    let state = world.state.clone().unwrap();
    assert_eq!(state.next_attempt_at, Some(world.now().plus(Duration::from_secs(9))));
    assert_eq!((state.failing, state.attempts, state.since), (Some(first), 7, world.now()));
}

#[test]
fn a_later_message_that_fails_waits_behind_the_first() {
    let mut world = World::default();
    let first = failing(&mut world, 2);
    world.happens(&Event::Fail { row: 1, hold: true, behind: 0 });
    let state = world.state.clone().unwrap();
    assert_eq!((state.failing, state.held, state.version), (Some(first), false, world.count));
}

#[test]
fn the_next_message_starts_with_zero_attempts_when_the_first_is_buried() {
    let mut world = World::default();
    failing(&mut world, 3);
    world.happens(&Event::Bury { row: 1 });
    assert_eq!(world.state.as_ref().unwrap().attempts, 7, "another one was buried");
    world.happens(&Event::Bury { row: 0 });
    let state = world.state.clone().unwrap();
    assert_eq!((state.failing, state.attempts, state.last_failure), (None, 0, None));
    assert_eq!(state.next_attempt_at, Some(world.now()));
}

#[test]
fn a_release_keeps_the_last_failure_and_a_skip_forgets_it() {
    let mut world = World::default();
    failing(&mut world, 2);
    world.happens(&Event::Hold);
    world.happens(&Event::Release);
    let state = world.state.clone().unwrap();
    assert_eq!((state.held, state.attempts, state.first_failure), (false, 0, None));
    assert_eq!(state.last_failure, Some(failure("last")));
    world.happens(&Event::Skip);
    assert_eq!(world.state.clone().unwrap().last_failure, None);
}

#[test]
fn holding_again_changes_nothing() {
    let mut world = World::default();
    failing(&mut world, 1);
    world.happens(&Event::Hold);
    let held = world.state.clone();
    world.happens(&Event::Hold);
    assert_eq!(world.state, held);
}
