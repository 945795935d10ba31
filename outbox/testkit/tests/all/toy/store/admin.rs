//! Admin operations and views.

use super::route::first;
use super::*;

#[async_trait]
impl Admin for ToyStore {
    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError> {
        let mut found = self.run(|tables, _| {
            let mut found = Vec::new();
            for (route, key, row) in tables.keys() {
                let ids = row.parked.values().map(|(_, stored)| stored.message.id);
                if selects(filter, route, key, ids, row.state.since) {
                    let mut failing = row.state.clone().failing_key(route.clone(), key.clone());
                    failing.parked = row.parked.len() as u64;
                    failing.first = first(&row.parked);
                    found.push(failing);
                }
            }
            found
        });
        found.sort_by_key(|key| key.since);
        Ok(page(found, filter))
    }

    async fn browse(&self, view: View, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let mut found: Vec<Listed> = self.run(|tables, _| match view {
            View::Waiting => {
                let hot = tables.routes.iter().flat_map(|(route, tables)| {
                    tables
                        .hot
                        .values()
                        .map(|stored| Listed::new(route.clone(), Arc::clone(stored), stored.appended_at))
                });
                hot.collect()
            }
            View::Parked => {
                let parked = tables.keys().flat_map(|(route, _, row)| {
                    row.parked
                        .values()
                        .map(|(at, stored)| Listed::new(route.clone(), Arc::clone(stored), *at))
                });
                parked.collect()
            }
            View::DeadLetters => tables.dead.clone(),
            View::History => Vec::new(),
            View::Scheduled => {
                let scheduled = tables.scheduled.iter().map(|((due_at, _), (route, message))| {
                    let stored = Stored::new(Position::START, *due_at, message.clone());
                    Listed::new(route.clone(), Arc::new(stored), *due_at)
                });
                scheduled.collect()
            }
        });
        if view == View::Waiting {
            found.sort_by_key(|listed| listed.stored.position);
        }
        Ok(page(found.into_iter().filter(|listed| selects_listed(filter, listed)), filter))
    }

    async fn steer(
        &self,
        route: &Route,
        key: &KeyId,
        operation: KeyOperation,
    ) -> Result<Steered, StoreError> {
        let note = AuditNote::on_key(&self.actor, operation, route, key);
        let steered = self.run(|tables, now| {
            let (steered, ids) = tables.steer(route, key, operation, now)?;
            // A skip of nothing changes nothing.
            if operation != KeyOperation::Skip || !ids.is_empty() {
                tables.note(&note, &ids, now);
            }
            Some(steered)
        });
        steered.ok_or_else(|| failing_key::flows(operation, route, key))
    }

    async fn append_again(&self, archive: Archive, filter: &Filter) -> Result<u64, StoreError> {
        if archive == Archive::History {
            return Ok(0);
        }
        let note = AuditNote::on_messages(&self.actor, archive.operation(), filter);
        let appended = self.run(|tables, now| {
            let mut letters = tables.take_dead(filter);
            letters.sort_by_key(|letter| letter.stored.position);
            for letter in &letters {
                tables.append(&letter.route, letter.stored.message.clone(), now);
            }
            tables.note_some(&note, &letters, now)
        });
        Ok(self.ring_if_any(appended))
    }

    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError> {
        let id = self.run(|tables, now| {
            let first = filter.first();
            if first.limit() == 0 {
                return Ok(None);
            }
            let Some(letter) = tables.dead.iter().find(|letter| selects_listed(&first, letter)) else {
                return Ok(None);
            };
            let message = edit.of_message(&letter.stored.message)?;
            let id = message.id;
            if let Some(letter) = tables.take_dead(&first).pop() {
                tables.append(&letter.route, message, now);
                tables.note(&AuditNote::edited(&self.actor, filter, edit), &[id], now);
            }
            Ok(Some(id))
        });
        let id =
            id.map_err(|wrong: String| StoreError::new(StoreErrorKind::Invalid, "requeue_edited", wrong))?;
        self.ring_if_any(u64::from(id.is_some()));
        Ok(id)
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        let note = AuditNote::on_messages(&self.actor, "purge", filter);
        Ok(self.run(|tables, now| {
            let letters = tables.take_dead(filter);
            tables.note_some(&note, &letters, now)
        }))
    }

    async fn set_paused(&self, route: &Route, topic: Option<&Topic>, paused: bool) -> Result<(), StoreError> {
        self.run(|tables, now| {
            let pauses = &mut tables.route(route).paused;
            let before = pauses.clone();
            match topic {
                None => pauses.route = paused,
                Some(topic) => {
                    pauses.topics.retain(|there| there != topic);
                    pauses.topics.extend(paused.then(|| topic.clone()));
                    pauses.topics.sort();
                }
            }
            if *pauses != before {
                tables.note(&AuditNote::paused(&self.actor, route, topic, paused), &[], now);
            }
        });
        Ok(())
    }

    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError> {
        Ok(self.run(|tables, now| {
            let is_removed =
                |_: &(Timestamp, i64), scheduled: &mut (Route, Message)| ids.contains(&scheduled.1.id);
            let removed = tables.scheduled.extract_if(.., is_removed);
            let removed: Vec<MessageId> = removed.map(|(_, (_, message))| message.id).collect();
            if !removed.is_empty() {
                tables.note(&AuditNote::canceled(&self.actor), &removed, now);
            }
            removed.len() as u64
        }))
    }

    async fn identity(&self) -> Result<OutboxId, StoreError> {
        Ok(self.run(|tables, _| *tables.identity.get_or_insert_with(OutboxId::new)))
    }

    async fn renew_identity(&self) -> Result<OutboxId, StoreError> {
        let identity = OutboxId::new();
        self.run(|tables, now| {
            tables.identity = Some(identity);
            tables.note(&AuditNote::identity(&self.actor, identity), &[], now);
        });
        Ok(identity)
    }

    fn acting_as(&self, actor: Actor) -> Box<dyn Admin + '_> {
        Box::new(Self { actor, ..self.clone() })
    }

    async fn audit(&self, filter: &Filter) -> Result<Vec<AuditEntry>, StoreError> {
        let found = self.run(|tables, _| tables.audit.clone());
        Ok(page(found.into_iter().filter(|entry| selects_entry(filter, entry)), filter))
    }

    async fn ownership(&self, route: &Route) -> Result<Ownership, StoreError> {
        Ok(self.run(|tables, now| {
            let tables = tables.route(route);
            let (relays, buckets) = (tables.relays.values().cloned(), tables.buckets.values().copied());
            leases::ownership(relays, buckets, tables.paused.clone(), now)
        }))
    }

    async fn routes(&self) -> Result<Vec<RouteStatus>, StoreError> {
        Ok(self.run(|tables, now| tables.status(now)))
    }

    async fn topics(&self, route: &Route) -> Result<Vec<TopicFigures>, StoreError> {
        Ok(self.run(|tables, now| tables.figures(route, now)))
    }

    async fn count_handled(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        Ok(self.run(|tables, _| tables.selected(filter).len() as u64))
    }

    async fn forget(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        Ok(self.run(|tables, now| {
            let mut forgotten = tables.selected(filter);
            forgotten.truncate(MAX_PER_CALL);
            for name in &forgotten {
                tables.handled.remove(name);
            }
            let ids: Vec<MessageId> = forgotten.iter().map(|(_, id)| *id).collect();
            if !ids.is_empty() {
                tables.note(&AuditNote::forgotten(&self.actor, filter), &ids, now);
            }
            ids.len() as u64
        }))
    }
}

impl Tables {
    pub(super) fn keys(&self) -> impl Iterator<Item = (&Route, &KeyId, &KeyRow)> {
        self.routes
            .iter()
            .flat_map(|(route, tables)| tables.keys.iter().map(move |(key, row)| (route, key, row)))
    }

    pub(super) fn note(&mut self, note: &AuditNote, ids: &[MessageId], now: Timestamp) {
        self.audit.push(note.entry(now, ids.len() as u64, ids));
    }

    /// Records an operation on messages, if there were any. Returns their number.
    pub(super) fn note_some(&mut self, note: &AuditNote, messages: &[Listed], now: Timestamp) -> u64 {
        let ids: Vec<MessageId> = messages.iter().map(|listed| listed.stored.message.id).collect();
        if !ids.is_empty() {
            self.note(note, &ids, now);
        }
        ids.len() as u64
    }

    pub(super) fn status(&self, now: Timestamp) -> Vec<RouteStatus> {
        let scheduled = self.scheduled.values().map(|(route, _)| route);
        let known = self.routes.keys().chain(scheduled).chain(self.dead.iter().map(|letter| &letter.route));
        let known: BTreeSet<&Route> = known.collect();
        let status = |route: &Route| {
            let mut status = RouteStatus::new(route.clone());
            if let Some(tables) = self.routes.get(route) {
                status.paused = tables.paused.clone();
                status.relays = tables.relays.values().filter(|(_, relay)| relay.is_live(now)).count();
            }
            status
        };
        known.into_iter().take(RouteStatus::MAX).map(status).collect()
    }

    pub(super) fn figures(&self, route: &Route, now: Timestamp) -> Vec<TopicFigures> {
        let mut tally = TopicTally::new(now, u64::MAX);
        for letter in self.dead.iter().filter(|letter| letter.route == *route) {
            tally.add(Figure::Dead, letter.stored.message.topic.as_str(), 1, None);
        }
        let tables = self.routes.get(route);
        for stored in tables.into_iter().flat_map(|tables| tables.hot.values()) {
            tally.add(Figure::Waiting, stored.message.topic.as_str(), 1, Some(stored.appended_at));
        }
        for (key, row) in tables.into_iter().flat_map(|tables| &tables.keys) {
            let figure = if row.state.held { Figure::Held } else { Figure::Retrying };
            tally.add(figure, key.topic.as_str(), 1, None);
            for (_, stored) in row.parked.values() {
                tally.add(Figure::Parked, key.topic.as_str(), 1, Some(stored.appended_at));
            }
        }
        tally.finish()
    }

    /// Does what an operator asks, and returns the ids of the messages that this buried; `None` if
    /// the key is neither failing nor held.
    pub(super) fn steer(
        &mut self,
        route: &Route,
        key: &KeyId,
        operation: KeyOperation,
        now: Timestamp,
    ) -> Option<(Steered, Vec<MessageId>)> {
        let version = self.next();
        let tables = self.route(route);
        let (state, mut parked) = tables.take_key(key);
        let mut put = |state, parked| drop(tables.keys.insert(key.clone(), KeyRow { state, parked }));
        match operation {
            KeyOperation::Hold => {
                put(failing_key::hold(state, version, now), parked);
                Some((Steered::NOTHING, Vec::new()))
            }
            KeyOperation::Release => {
                put(state?.release(version, now), parked);
                Some((Steered::NOTHING, Vec::new()))
            }
            KeyOperation::Skip => {
                let state = state?;
                let Some((_, (_, stored))) = parked.pop_first() else {
                    put(state, parked);
                    return Some((Steered::NOTHING, Vec::new()));
                };
                let id = stored.message.id;
                let death = death(&state, id, "skipped");
                put(state.skip(version, now), parked);
                self.bury(route, stored, death, now);
                Some((Steered::skipped(Some(id)), vec![id]))
            }
            KeyOperation::Discard => {
                let state = state?;
                for (_, stored) in parked.values() {
                    let death = death(&state, stored.message.id, "discarded");
                    self.bury(route, Arc::clone(stored), death, now);
                }
                let ids: Vec<MessageId> = parked.values().map(|(_, stored)| stored.message.id).collect();
                Some((Steered::discarded(ids.len() as u64), ids))
            }
        }
    }

    /// Takes the oldest dead letters that a filter selects.
    pub(super) fn take_dead(&mut self, filter: &Filter) -> Vec<Listed> {
        let mut left = filter.limit();
        let is_taken = |letter: &mut Listed| {
            let takes = left > 0 && selects_listed(filter, letter);
            left -= usize::from(takes);
            takes
        };
        self.dead.extract_if(.., is_taken).collect()
    }
}

/// Returns the end of a message by an operator: with its attempts, if it is the one that was tried.
pub(super) fn death(state: &KeyState, id: MessageId, reason: &str) -> Death {
    let reason = reason.to_owned();
    if state.failing == Some(id) {
        let (first_failure, last_failure) = (state.first_failure.clone(), state.last_failure.clone());
        return Death::new(reason, state.attempts, first_failure, last_failure);
    }
    Death::new(reason, 0, None, None)
}

pub(super) fn selects_listed(filter: &Filter, listed: &Listed) -> bool {
    let message = &listed.stored.message;
    filter.event_type.as_ref().is_none_or(|wanted| **wanted == *message.event_type)
        && selects(filter, &listed.route, &message.key_id(), [message.id], listed.at)
}

pub(super) fn selects(
    filter: &Filter,
    route: &Route,
    key: &KeyId,
    ids: impl IntoIterator<Item = MessageId>,
    at: Timestamp,
) -> bool {
    filter.route.as_ref().is_none_or(|wanted| wanted == route)
        && filter.topic.as_ref().is_none_or(|wanted| *wanted == key.topic)
        && filter.key.as_ref().is_none_or(|wanted| *wanted == key.key)
        && filter.ids.as_ref().is_none_or(|wanted| ids.into_iter().any(|id| wanted.contains(&id)))
        && filter.since.is_none_or(|since| at >= since)
        && filter.before.is_none_or(|before| at < before)
}

pub(super) fn selects_entry(filter: &Filter, entry: &AuditEntry) -> bool {
    filter.route.as_ref().is_none_or(|wanted| entry.route.as_ref() == Some(wanted))
        && filter.topic.as_ref().is_none_or(|wanted| entry.topic.as_ref() == Some(wanted))
        && filter.key.as_ref().is_none_or(|wanted| entry.key.as_ref() == Some(wanted))
        && filter.ids.as_ref().is_none_or(|ids| entry.ids.iter().any(|id| ids.contains(id)))
        && filter.since.is_none_or(|since| entry.at >= since)
        && filter.before.is_none_or(|before| entry.at < before)
}

pub(super) fn page<T>(found: impl IntoIterator<Item = T>, filter: &Filter) -> Vec<T> {
    let mut found: Vec<T> = found.into_iter().collect();
    if filter.newest {
        found.reverse();
    }
    found.into_iter().skip(filter.offset).take(filter.limit()).collect()
}
