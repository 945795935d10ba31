//! Units that belong to this member, and those that were taken away.

use std::collections::BTreeMap;

use outbox_contract::KeyId;
use outbox_contract::backend::{Tag, Unit};

use super::event::{Command, Item};
use super::key::Doing;
use super::{Core, sabotaged};

#[derive(Debug, Default)]
pub(super) struct Ownership {
    /// The latest ownership of each unit that anything came of.
    seen: BTreeMap<Unit, u64>,
    /// Ownerships up to these are over.
    over: BTreeMap<Unit, u64>,
}

impl Ownership {
    pub(super) fn see(&mut self, tag: &Tag) {
        if let Some(seen) = self.seen.get_mut(&tag.unit) {
            *seen = tag.incarnation.max(*seen);
        } else {
            self.seen.insert(tag.unit.clone(), tag.incarnation);
        }
    }

    fn end(&mut self, unit: &Unit) {
        let seen = self.seen.get(unit).copied().unwrap_or_default();
        self.over.insert(unit.clone(), seen);
    }

    /// Returns true if a delivery belongs to its next owner.
    pub(super) fn is_over(&self, tag: &Tag) -> bool {
        self.over.get(&tag.unit).is_some_and(|over| tag.incarnation <= *over)
    }
}

impl Core {
    /// Units belong to this member no more: what waits of them is dropped, and what is being
    /// handled of them is not tried again.
    pub(super) fn revoke(&mut self, units: &[Unit]) {
        units.iter().for_each(|unit| self.ownership.end(unit));
        if sabotaged!(self, RevokedGoesOn) {
            return;
        }
        let is_over = |item: &Item| units.contains(&item.tag.unit);
        self.intake.retain(|item| !is_over(item));
        let hit = self.keys.iter().filter(|(_, key)| key.mailbox.iter().any(is_over));
        let mut hit: Vec<KeyId> = hit.map(|(name, _)| name.clone()).collect();
        hit.sort_unstable();
        for name in hit {
            let Some(key) = self.keys.get_mut(&name) else { continue };
            let first_is_over = key.mailbox.first().is_some_and(is_over);
            key.mailbox.retain(|item| !is_over(item));
            if key.doing == Doing::Busy {
                continue;
            }
            if key.mailbox.is_empty() {
                self.keys.remove(&name);
            } else if first_is_over {
                key.absolve();
                self.stand(&name);
            }
        }
        self.recall(is_over);
    }

    /// Calls jobs back with such messages, if they are not begun yet.
    pub(super) fn recall(&mut self, is_hit: impl Fn(&Item) -> bool) {
        for (number, out) in &mut self.jobs {
            if !out.is_recalled && out.items.iter().any(&is_hit) {
                out.is_recalled = true;
                self.commands.push(Command::Recall(*number));
            }
        }
    }
}
