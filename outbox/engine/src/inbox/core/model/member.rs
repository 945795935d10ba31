//! A member of the model: a core, and actors that carry.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use outbox_contract::backend::Paused;
use outbox_contract::backend::{Tag, Unit};

use super::super::{Core, Event, Job};
use crate::inbox::credit::Credit;
use crate::inbox::verdict::Verdict;

/// A job that a worker has.
pub(super) struct JobOut {
    pub(super) job: Job,
    pub(super) tags: Vec<Tag>,
    pub(super) is_recalled: bool,
    pub(super) is_begun: bool,
    pub(super) verdicts: Vec<Verdict>,
}

/// Verdicts that the core was told of one delivery.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fared {
    pub(super) failures: u32,
    pub(super) conflicts: u32,
    pub(super) is_rejected: bool,
}

pub(super) struct Member {
    pub(super) id: u64,
    pub(super) core: Core,
    pub(super) credit: Arc<Credit>,
    /// From the receiver, in order.
    pub(super) received: VecDeque<Event>,
    /// From workers and the acknowledger, in any order; of one of them in order.
    pub(super) answers: Vec<Event>,
    pub(super) jobs: BTreeMap<u64, JobOut>,
    pub(super) asked: Option<(u64, Arc<Vec<Tag>>)>,
    /// Units that the core knows to be taken away, with the latest ownership.
    pub(super) over: BTreeMap<Unit, u64>,
    pub(super) seen: BTreeMap<Unit, u64>,
    pub(super) paused: Paused,
    pub(super) is_draining: bool,
    pub(super) is_drained: bool,
    pub(super) fared: BTreeMap<Tag, Fared>,
    pub(super) told: BTreeSet<Tag>,
}

impl Member {
    pub(super) fn new(id: u64, core: Core) -> Self {
        Self {
            id,
            core,
            credit: Arc::default(),
            received: VecDeque::new(),
            answers: Vec::new(),
            jobs: BTreeMap::new(),
            asked: None,
            over: BTreeMap::new(),
            seen: BTreeMap::new(),
            paused: Paused::default(),
            is_draining: false,
            is_drained: false,
            fared: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    /// Notes what the core is about to be told.
    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::Delivered(items) => {
                for item in items {
                    self.seen.insert(item.tag.unit.clone(), item.tag.incarnation);
                }
            }
            Event::Revoked(units) => {
                for unit in units {
                    self.over.insert(unit.clone(), self.seen.get(unit).copied().unwrap_or_default());
                }
            }
            Event::Finished { number, verdicts } => {
                let Some(running) = self.jobs.remove(number) else { return };
                for (tag, verdict) in running.tags.iter().zip(verdicts) {
                    let fared = self.fared.entry(tag.clone()).or_default();
                    match verdict {
                        Verdict::Failed(_) => fared.failures += 1,
                        Verdict::Rejected(_) | Verdict::TooNew(_) => fared.is_rejected = true,
                        Verdict::Again(_) | Verdict::Outdated(_) | Verdict::Environment(_) => {
                            fared.conflicts += 1
                        }
                        Verdict::Done(_) | Verdict::NotTried => {}
                    }
                }
            }
            Event::Broke { number } => {
                let Some(running) = self.jobs.remove(number) else { return };
                let mut keys = BTreeSet::new();
                for (tag, message) in running.tags.into_iter().zip(&running.job.messages) {
                    // The first of each key is in doubt; what follows was not tried.
                    if keys.insert(message.key_id()) {
                        self.fared.entry(tag).or_default().conflicts += 1;
                    }
                }
            }
            Event::Acknowledged { number, told } => {
                if let Some((_, tags)) = self.asked.take_if(|(asked, _)| asked == number)
                    && !told
                {
                    tags.iter().for_each(|tag| _ = self.told.remove(tag));
                }
            }
            Event::Paused(paused) => self.paused = paused.clone(),
            Event::Drain => self.is_draining = true,
            Event::Tick => {}
        }
    }

    pub(super) fn is_over(&self, tag: &Tag) -> bool {
        self.over.get(&tag.unit).is_some_and(|over| tag.incarnation <= *over)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.received.is_empty() && self.answers.is_empty() && self.jobs.is_empty() && self.asked.is_none()
    }
}
