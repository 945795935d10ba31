//! The judge: what a core may command.

use std::collections::{BTreeMap, BTreeSet};

use outbox_contract::KeyId;
use outbox_contract::backend::Tag;

use super::super::conflicts::MAX_CONFLICTS;
use super::super::{Job, Task};
use super::Judged;
use super::member::{Fared, Member};
use super::world::World;

impl World {
    pub(super) fn judge_job(&self, member: &Member, job: &Job, tags: &[Tag]) -> Judged {
        let keys: BTreeSet<KeyId> = job.messages.iter().map(|message| message.key_id()).collect();
        let bad = |word: &str| Err(format!("{word}: member {} begins {job:?}", member.id));
        let mut others = member.jobs.values();
        if others.any(|other| {
            self.limits.stores_all
                || other.job.messages.iter().any(|message| keys.contains(&message.key_id()))
        }) {
            return bad("at once");
        }
        if member.is_draining {
            return bad("draining");
        }
        if tags.iter().any(|tag| member.is_over(tag)) {
            return bad("not owned");
        }
        if self.limits.stores_all {
            return Ok(());
        }
        if keys.iter().any(|key| member.paused.covers(&key.topic)) {
            return bad("paused");
        }
        let fared = member.fared.get(&tags[0]).copied().unwrap_or_default();
        if job.task == Task::Store {
            let Fared { failures, conflicts, is_rejected } = fared;
            let is_due = is_rejected || failures >= self.limits.tries || conflicts >= MAX_CONFLICTS;
            return if is_due && keys.len() == 1 { Ok(()) } else { bad("stored too early, or not alone") };
        }
        let suspects = tags.iter().filter(|tag| {
            let fared = member.fared.get(tag).copied().unwrap_or_default();
            fared.failures + fared.conflicts > 0
        });
        if suspects.count() > 0 && tags.len() > 1 {
            return bad("not alone");
        }
        if job.attempt != fared.failures + 1 || (fared.failures + fared.conflicts > 0) != job.is_suspect {
            return bad("counted");
        }
        self.judge_bounds(member, job)
    }

    fn judge_bounds(&self, member: &Member, job: &Job) -> Judged {
        let mut running = vec![0; self.limits.by_handler.len()];
        let mut suspects = 0;
        let handling = member.jobs.values().map(|other| &other.job).filter(|job| job.task == Task::Handle);
        for job in handling.chain([job]) {
            let handlers: BTreeSet<usize> =
                job.messages.iter().map(|message| Self::handler(&message.key_id())).collect();
            handlers.into_iter().for_each(|handler| running[handler] += 1);
            suspects += usize::from(job.is_suspect);
        }
        let is_over = running.iter().zip(&self.limits.by_handler).any(|(running, bound)| running > bound);
        if is_over || suspects > self.limits.suspects || job.messages.len() > self.limits.batch {
            return Err(format!("out of bounds: {running:?} handlers, {suspects} suspects at {job:?}"));
        }
        Ok(())
    }

    pub(super) fn judge_acknowledgement(&self, member: &Member, tags: &[Tag]) -> Judged {
        if member.asked.is_some() {
            return Err("two acknowledgements at once".to_owned());
        }
        let mut last: BTreeMap<(usize, u64), u64> = BTreeMap::new();
        for tag in tags {
            let sent = self.broker.sent(tag);
            if !self.store.is_kept(sent) {
                return Err(format!("lost: {sent:?} is acknowledged, and neither handled nor stored"));
            }
            if member.told.contains(tag) {
                return Err(format!("{tag:?} is told twice"));
            }
            if last.insert((sent.key, tag.incarnation), tag.number).is_some_and(|last| last >= tag.number) {
                return Err(format!("out of order: {tag:?} is acknowledged behind a later one of its key"));
            }
        }
        Ok(())
    }

    pub(super) fn judge_drained(&self, member: &Member) -> Judged {
        if member.jobs.is_empty() && member.asked.is_none() {
            return Ok(());
        }
        Err(format!("drained too early: {} jobs are out", member.jobs.len()))
    }

    /// Deliveries in memory have their share of the credit, and nothing else has.
    pub(super) fn judge_memory(&self, member: &Member) -> Judged {
        let core = &member.core;
        let waiting: usize = core.keys.values().map(|key| key.mailbox.len()).sum();
        let out: usize = core.jobs.values().map(|out| out.items.len()).sum();
        let received = member.received.iter().map(|event| match event {
            super::super::Event::Delivered(items) => items.len(),
            _ => 0,
        });
        let held = waiting + out + core.intake.len() + received.sum::<usize>();
        if member.credit.out().0 != held {
            return Err(format!("credit: {} for {held} deliveries", member.credit.out().0));
        }
        Ok(())
    }
}
