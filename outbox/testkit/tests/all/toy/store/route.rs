//! Tables of one route: leases, fetches and failing keys.

use super::*;

// ANCHOR: leases
impl RouteTables {
    pub(super) fn owner(&self, bucket: Bucket, now: Timestamp) -> Option<RelayId> {
        self.buckets.get(&bucket)?.owner(|id| self.relays.get(&id).map(|(_, row)| row), now)
    }

    pub(super) fn owned(&self, relay: RelayId, now: Timestamp) -> BucketSet {
        self.buckets.keys().copied().filter(|bucket| self.owner(*bucket, now) == Some(relay)).collect()
    }

    pub(super) fn lease(&mut self, request: &LeaseRequest, now: Timestamp) -> Leased {
        let (relays, buckets) = (self.relays.values().map(|(_, row)| *row), self.buckets.values().copied());
        let Heartbeat { relay, changed, mut leased, .. } = leases::heartbeat(relays, buckets, request, now);
        self.relays.insert(relay.relay, (request.label.clone(), relay));
        self.put(changed);
        leased.paused = self.paused.clone();
        leased
    }

    pub(super) fn give_back(
        &mut self,
        relay: RelayId,
        given: (&[Lease], &LowWater),
        leaving: bool,
        now: Timestamp,
    ) {
        let (relays, buckets) = (self.relays.values().map(|(_, row)| *row), self.buckets.values().copied());
        self.put(leases::give_back(relays, buckets, relay, given, now));
        if leaving {
            self.relays.remove(&relay);
        }
    }

    pub(super) fn put(&mut self, changed: Vec<BucketRow>) {
        self.buckets.extend(changed.into_iter().map(|row| (row.bucket, row)));
    }
}
// ANCHOR_END: leases

impl RouteTables {
    pub(super) fn fetch(&self, request: &FetchRequest, now: Timestamp) -> Fetched {
        let buckets = request.buckets.intersection(&self.owned(request.relay, now));
        let mut fetched = Fetched::default();
        fetched.lapsed = buckets != request.buckets;
        let mut bytes = 0;
        for (position, stored) in &self.hot {
            let key = stored.message.key_id();
            let is_asked = *position > request.after
                && *position <= request.until
                && buckets.contains(stored.bucket)
                && request.scope.covers(&key)
                && request.except.binary_search(position).is_err();
            if !is_asked {
                continue;
            }
            let row = if is_muted(&request.muted, &key) {
                FetchedRow::Muted(*position)
            } else if self.keys.contains_key(&key) {
                FetchedRow::Failing(Waiting::new(stored.row(), key, stored.bucket, None))
            } else {
                bytes += content_bytes(&stored.message);
                FetchedRow::Message(Arc::clone(stored))
            };
            if bytes > request.bytes && !fetched.rows.is_empty() {
                fetched.full = true;
                break;
            }
            fetched.rows.push(row);
            if fetched.rows.len() == request.limit.max(1) {
                fetched.full = true;
                break;
            }
        }
        if !fetched.full && !fetched.lapsed {
            let last = self.hot.keys().next_back().copied().unwrap_or(Position::START);
            fetched.reached = last.min(request.until);
        }
        fetched
    }

    pub(super) fn due(&self, request: &DueRequest, now: Timestamp) -> Due {
        let mut due = Due::default();
        let buckets = request.buckets.intersection(&self.owned(request.relay, now));
        let mut keys: Vec<(Timestamp, &KeyId, &KeyRow)> = self
            .keys
            .iter()
            .filter(|(key, _)| buckets.contains(key.bucket()) && !request.except.contains(key))
            .filter(|(key, _)| !is_muted(&request.muted, key))
            .filter_map(|(key, row)| row.state.next_attempt_at.map(|at| (at, key, row)))
            .collect();
        keys.sort_by_key(|(at, ..)| *at);
        let mut room = request.bytes;
        for (at, key, row) in keys {
            if at > now || due.keys.len() >= request.keys.max(1) {
                due.next = Some(at.since(now));
                break;
            }
            let mut parked = Vec::new();
            for (_, stored) in row.parked.values().take(request.messages.max(1)) {
                let bytes = content_bytes(&stored.message);
                if bytes > room && !(due.keys.is_empty() && parked.is_empty()) {
                    break;
                }
                room = room.saturating_sub(bytes);
                parked.push(Arc::clone(stored));
            }
            if parked.is_empty() && !row.parked.is_empty() {
                due.next = Some(Duration::ZERO);
                break;
            }
            let KeyState { version, failing, attempts, first_failure, .. } = row.state.clone();
            let due_key = DueKey::new(key.clone(), key.bucket(), version, parked);
            due.keys.push(due_key.with_failing(failing, attempts, first_failure));
        }
        due
    }
}

pub(super) fn is_muted(muted: &[Scope], key: &KeyId) -> bool {
    muted.iter().any(|scope| scope.covers(key))
}

impl Tables {
    /// Checks the lease, and takes the step whole or not at all.
    pub(super) fn transition(
        &mut self,
        transition: &KeyTransition,
        actor: &Actor,
        now: Timestamp,
    ) -> Transitioned {
        let KeyTransition { route, relay, bucket, epoch, key, step, .. } = transition;
        let next = self.next();
        let tables = self.route(route);
        let is_of_epoch = tables.buckets.get(bucket).is_some_and(|row| row.epoch == *epoch);
        if !is_of_epoch || tables.owner(*bucket, now) != Some(*relay) {
            return Transitioned::LeaseLost;
        }
        let (state, mut parked) = tables.take_key(key);
        let is_stale = failing_key::is_stale(state.as_ref(), transition);
        let moved = if is_stale { None } else { tables.move_messages(key, &mut parked, step, now) };
        let state = match moved {
            Some(_) => failing_key::after(state, step, first(&parked), next, now),
            None => state,
        };
        let version = state.as_ref().map(|state| state.version);
        tables.keys.extend(state.map(|state| (key.clone(), KeyRow { state, parked })));
        let Some(buried) = moved else { return Transitioned::Stale };
        if let Some((note, id)) = AuditNote::discarded(actor, transition) {
            self.note(&note, &[id], now);
        } else if let Step::Bury { reason, attempts, first, last, .. } = step {
            for stored in buried {
                let (first_failure, last_failure) = (Some(first.clone()), Some(last.clone()));
                let reason = (*reason).to_owned();
                self.bury(route, stored, Death::new(reason, *attempts, first_failure, last_failure), now);
            }
        }
        Transitioned::Done(version)
    }
}

impl RouteTables {
    /// Takes a key out: its state, if it has one, and what is parked behind it.
    pub(super) fn take_key(&mut self, key: &KeyId) -> (Option<KeyState>, Parked) {
        self.keys.remove(key).map_or_else(Default::default, |row| (Some(row.state), row.parked))
    }

    /// Moves the messages of a step, and returns those that it buries; `None` if its own message is
    /// not there.
    pub(super) fn move_messages(
        &mut self,
        key: &KeyId,
        parked: &mut Parked,
        step: &Step,
        now: Timestamp,
    ) -> Option<Vec<Arc<Stored>>> {
        match step {
            Step::Fail { row, behind, .. } => {
                self.park(key, parked, &[*row], now);
                parked.get(&row.position).filter(|(_, stored)| stored.message.id == row.id)?;
                self.park(key, parked, behind, now);
            }
            Step::Park { rows } => self.park(key, parked, rows, now),
            Step::Bury { row, .. } => {
                return unpark(parked, *row).or_else(|| self.take_hot(key, *row)).map(|stored| vec![stored]);
            }
            Step::Resume { delivered } => delivered.iter().for_each(|row| drop(unpark(parked, *row))),
        }
        Some(Vec::new())
    }

    /// Removes a hot row, if it is there and of this key.
    pub(super) fn take_hot(&mut self, key: &KeyId, row: RowId) -> Option<Arc<Stored>> {
        self.hot.get(&row.position).filter(|stored| stored.message.key_id() == *key)?;
        take(&mut self.hot, row)
    }

    /// Moves hot rows behind those parked, and passes over those that are not there.
    pub(super) fn park(&mut self, key: &KeyId, parked: &mut Parked, rows: &[RowId], now: Timestamp) {
        for row in rows {
            if let Some(stored) = self.take_hot(key, *row) {
                parked.insert(row.position, (now, stored));
            }
        }
    }
}

/// Returns the first parked message.
pub(super) fn first(parked: &Parked) -> Option<MessageId> {
    parked.values().next().map(|(_, stored)| stored.message.id)
}

pub(super) fn unpark(parked: &mut Parked, row: RowId) -> Option<Arc<Stored>> {
    parked.get(&row.position).filter(|(_, stored)| stored.message.id == row.id)?;
    parked.remove(&row.position).map(|(_, stored)| stored)
}
