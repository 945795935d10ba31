//! Reading what is to be published, and failing keys that are due.

use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::rules::failing_key::KeyState;
use outbox_contract::backend::{
    Due, DueKey, DueRequest, FetchRequest, Fetched, FetchedRow, Position, Scope, Stored, Waiting,
};
use outbox_contract::{KeyId, Message, Timestamp};

use super::Tables;
use super::keys::KeyRow;
use super::route::RouteTables;

impl Tables {
    pub(crate) fn fetch(&self, request: &FetchRequest, now: Timestamp) -> Fetched {
        let Some(tables) = self.routes.get(&request.route) else {
            return Fetched::new(Vec::new(), false, Position::START, !request.buckets.is_empty());
        };
        tables.fetch(request, now)
    }

    pub(crate) fn due(&self, request: &DueRequest, now: Timestamp) -> Due {
        self.routes.get(&request.route).map(|tables| tables.due(request, now)).unwrap_or_default()
    }
}

impl RouteTables {
    fn fetch(&self, request: &FetchRequest, now: Timestamp) -> Fetched {
        let buckets = request.buckets.intersection(&self.owned(request.relay, now));
        let mut fetched = Fetched::default();
        fetched.lapsed = buckets != request.buckets;
        if buckets.is_empty() || request.after >= request.until {
            return fetched;
        }
        let limit = request.limit.max(1);
        // Both are in ascending order: what is in flight is passed over in step.
        let mut in_flight = request.except.iter().peekable();
        // The usual fetch has no need of keys, and making one takes longer than all the rest.
        let keys_matter =
            request.scope != Scope::Everything || !request.muted.is_empty() || !self.keys.is_empty();
        let mut bytes = 0;
        for (position, stored) in self.hot.range((Excluded(request.after), Included(request.until))) {
            while in_flight.next_if(|except| *except < position).is_some() {}
            if in_flight.peek() == Some(&position) || !buckets.contains(stored.bucket) {
                continue;
            }
            let row = if keys_matter {
                let key = stored.message.key_id();
                if !request.scope.covers(&key) {
                    continue;
                }
                self.row(stored, key, &request.muted)
            } else {
                FetchedRow::Message(Arc::clone(stored))
            };
            let more = if matches!(row, FetchedRow::Message(_)) { content_bytes(&stored.message) } else { 0 };
            if !fetched.rows.is_empty() && bytes + more > request.bytes {
                fetched.full = true;
                break;
            }
            bytes += more;
            fetched.rows.push(row);
            if fetched.rows.len() == limit {
                fetched.full = true;
                break;
            }
        }
        // In concurrent mode too: what was looked at is a statement about this snapshot, and the
        // horizon says what may still come.
        if !fetched.full && !fetched.lapsed {
            fetched.reached =
                self.hot.keys().next_back().map_or(Position::START, |last| (*last).min(request.until));
        }
        fetched
    }

    fn row(&self, stored: &Arc<Stored>, key: KeyId, muted: &[Scope]) -> FetchedRow {
        if muted.iter().any(|scope| scope.covers(&key)) {
            FetchedRow::Muted(stored.position)
        } else if self.keys.get(&key).is_some() {
            FetchedRow::Failing(Waiting::new(stored.row(), key, stored.bucket, stored.stripe))
        } else {
            FetchedRow::Message(Arc::clone(stored))
        }
    }

    fn due(&self, request: &DueRequest, now: Timestamp) -> Due {
        let mut due = Due::default();
        let buckets = request.buckets.intersection(&self.owned(request.relay, now));
        if buckets.is_empty() {
            return due;
        }
        let mut room = request.bytes;
        for (at, key, row) in self.keys.by_due_time() {
            let bucket = key.bucket();
            let asked = buckets.contains(bucket)
                && !request.except.contains(key)
                && !request.muted.iter().any(|scope| scope.covers(key));
            if !asked {
                continue;
            }
            if at > now || due.keys.len() >= request.keys.max(1) {
                due.next = Some(at.since(now));
                break;
            }
            let parked = take_parked(row, request.messages.max(1), &mut room, due.keys.is_empty());
            if parked.is_empty() && !row.parked.is_empty() {
                due.next = Some(Duration::ZERO);
                break;
            }
            let KeyState { version, failing, attempts, first_failure, .. } = row.state.clone();
            let due_key = DueKey::new(key.clone(), bucket, version, parked);
            due.keys.push(due_key.with_failing(failing, attempts, first_failure));
        }
        due
    }
}

/// The oldest parked messages of a key, as many as fit; of the first key, the first one always.
fn take_parked(row: &KeyRow, most: usize, room: &mut usize, is_first: bool) -> Vec<Arc<Stored>> {
    let mut taken = Vec::new();
    for parked in row.parked.values().take(most) {
        let bytes = content_bytes(&parked.stored.message);
        let comes_anyway = is_first && taken.is_empty();
        if bytes > *room && !comes_anyway {
            break;
        }
        *room = room.saturating_sub(bytes);
        taken.push(Arc::clone(&parked.stored));
    }
    taken
}

/// The bytes of payload and headers.
fn content_bytes(message: &Message) -> usize {
    message.payload.len()
        + message.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
}
