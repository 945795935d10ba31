//! The audit: operations that changed something, in their order.

use std::collections::VecDeque;
use std::time::Duration;

use outbox_contract::admin::{AuditEntry, Filter};
use outbox_contract::backend::AuditNote;
use outbox_contract::{MessageId, Timestamp};

use super::Tables;
use super::archive::{is_within, page};

/// Entries, the oldest first, and their retention.
#[derive(Debug)]
pub(super) struct Audit {
    entries: VecDeque<AuditEntry>,
    kept: Duration,
}

impl Audit {
    pub(super) const fn new(kept: Duration) -> Self {
        Self { entries: VecDeque::new(), kept }
    }

    /// Removes entries at the end of their retention. Returns their number, and true if there are
    /// more.
    pub(super) fn expire(&mut self, limit: usize, now: Timestamp) -> (u64, bool) {
        let kept = self.kept;
        let over = self.entries.iter().take_while(|entry| entry.at.plus(kept) <= now).count();
        self.entries.drain(..over.min(limit));
        (over.min(limit) as u64, over > limit)
    }
}

impl Tables {
    /// Records an operation.
    pub(crate) fn note(&mut self, note: &AuditNote, ids: &[MessageId], now: Timestamp) {
        self.audit.entries.push_back(note.entry(now, ids.len() as u64, ids));
    }

    /// Records an operation on messages, if there were any. Returns their number.
    pub(crate) fn note_some(&mut self, note: &AuditNote, ids: &[MessageId], now: Timestamp) -> u64 {
        if !ids.is_empty() {
            self.note(note, ids, now);
        }
        ids.len() as u64
    }

    pub(crate) fn audited(&self, filter: &Filter) -> Vec<AuditEntry> {
        let entries = &self.audit.entries;
        let found = entries.iter().filter(|entry| selects(filter, entry)).cloned();
        page(found, filter)
    }
}

fn selects(filter: &Filter, entry: &AuditEntry) -> bool {
    filter.route.as_ref().is_none_or(|wanted| entry.route.as_ref() == Some(wanted))
        && filter.topic.as_ref().is_none_or(|wanted| entry.topic.as_ref() == Some(wanted))
        && filter.key.as_ref().is_none_or(|wanted| entry.key.as_ref() == Some(wanted))
        && filter.ids.as_ref().is_none_or(|ids| entry.ids.iter().any(|id| ids.contains(id)))
        && is_within(filter, entry.at)
}
