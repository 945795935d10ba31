//! A look of the poller: failing keys that are due, fetches, and who is writing.

use super::*;

/// How often at the most the store is asked who is writing.
const PROBE_EVERY: Duration = Duration::from_millis(200);
/// How many fetches one look may make before other messages have their turn.
const FETCHES_PER_LOOK: usize = 4;
/// How many failing keys are taken at once, and how many parked messages of each.
const DUE_KEYS: usize = 100;
const DUE_MESSAGES: usize = 100;
/// The shortest time between two questions for due keys.
const DUE_PAUSE: Duration = Duration::from_millis(5);

impl PollerState {
    /// Plans a look now, or as soon as the last one allows.
    pub(super) fn look_soon(&mut self, myself: &ActorRef<PollerMsg>) {
        let breath = self.pace.breath(self.context.now());
        self.plan(myself, breath);
    }

    fn plan(&mut self, myself: &ActorRef<PollerMsg>, wait: Duration) {
        let now = self.context.now();
        if let Some((generation, wait)) = self.pace.plan(now, wait) {
            if wait.is_zero() {
                // A mailbox that is gone belongs to an actor that is over.
                let _ = myself.cast(PollerMsg::Tick(generation));
            } else {
                myself.send_after(wait, move || PollerMsg::Tick(generation));
            }
        }
    }

    pub(super) async fn look(&mut self, myself: &ActorRef<PollerMsg>) -> Result<(), ActorProcessingErr> {
        self.pace.looked(self.context.now());
        if self.paused || !self.context.tenure.holds(self.context.now()) {
            self.plan(myself, self.context.config.idle_poll);
            return Ok(());
        }
        self.open_topics();
        self.fetch_due().await?;
        let mut found = 0;
        let mut more = false;
        for _ in 0..FETCHES_PER_LOOK {
            let Some(seen) = self.fetch().await? else {
                more = false;
                break;
            };
            found += seen;
            more = true;
        }
        self.probe_writers().await?;
        self.context.counters.broken(self.topics.names());
        let wait = if more { Duration::ZERO } else { self.wait(found > 0) };
        self.plan(myself, wait);
        Ok(())
    }

    /// How long to wait when there is nothing to fetch now.
    fn wait(&mut self, found: bool) -> Duration {
        let now = self.context.now();
        let mut wait = self.pace.after_look(found);
        // Nothing says when another process appends: the next look looks, whatever causes it.
        self.reader.look();
        if std::mem::take(&mut self.early) {
            wait = wait.min(self.pace.breath(now));
        }
        let probe = self.reader.wants_writers().then_some(self.next_probe);
        // Without room nobody could take a key that is due; word comes when there is some.
        let has_room = self.context.credit.room().0 > 0 && self.working.room().is_some();
        let due = self.next_due.filter(|_| has_room);
        for at in [due, self.topics.next(), probe].into_iter().flatten() {
            wait = wait.min(at.saturating_sub(now).max(DUE_PAUSE));
        }
        wait
    }

    /// One fetch. None: there is nothing to read, or no room.
    async fn fetch(&mut self) -> Result<Option<usize>, ActorProcessingErr> {
        let context = Arc::clone(&self.context);
        // A trickle of small fetches would cost more than it brings: wait until half the credit is free.
        if context.credit.room().0 < context.config.credit.div_ceil(2) {
            self.starved = true;
            return Ok(None);
        }
        let (messages, bytes) = context.credit.room_for_content();
        if self.reader.wants_stripes() {
            let owned = self.reader.owned();
            let call = context.store.stripes(&context.route, &owned);
            self.reader.committed(in_time(context.config.store_timeout, "stripes", call).await?);
        }
        let Some(plan) = self.reader.next(&context.route, context.relay, messages, bytes) else {
            return Ok(None);
        };
        context.fetches.store(self.reader.fetches(), Ordering::Release);
        context.counters.fetched();
        let span = tracing::debug_span!("fetch", route = %context.route, after = plan.request.after.0);
        let call = tracing::Instrument::instrument(context.store.fetch(&plan.request), span);
        let fetched = in_time(context.config.store_timeout, "fetch", call).await?;
        if plan.wants_writers() {
            self.ask_writers().await?;
        }
        let read = self.reader.fetched(&plan, fetched);
        self.early = read.early;
        self.deal(plan.sequence, read.rows)?;
        Ok(Some(read.seen))
    }

    fn deal(&self, fetch: u64, rows: Vec<FetchedRow>) -> Result<(), ActorProcessingErr> {
        let mut dealt: Vec<Vec<LaneRow>> = self.lanes.iter().map(|_| Vec::new()).collect();
        for row in rows {
            let (key, bucket, work) = match row {
                FetchedRow::Message(stored) => {
                    let hold = self.context.credit.take(stored.message.bytes());
                    let (key, bucket) = (stored.message.key_id(), stored.bucket);
                    (key, bucket, Dealt::Work(Work::Message(Held { stored, hold })))
                }
                FetchedRow::Failing(waiting) => {
                    let work = Work::Failing { row: waiting.at, _hold: None };
                    (waiting.key, waiting.bucket, Dealt::Work(work))
                }
                FetchedRow::Malformed(waiting, reason) => {
                    (waiting.key, waiting.bucket, Dealt::Malformed(waiting.at, reason))
                }
                // The reader lets nothing else through.
                _ => continue,
            };
            let epoch = self.epochs[usize::from(bucket.0)];
            dealt[self.lane_of(bucket)].push(LaneRow { key, bucket, epoch, work });
        }
        for (lane, rows) in self.lanes.iter().zip(dealt) {
            if !rows.is_empty() {
                lane.cast(LaneMsg::Batch { fetch, rows })?;
            }
        }
        Ok(())
    }

    fn lane_of(&self, bucket: Bucket) -> usize {
        usize::from(bucket.0) % self.lanes.len()
    }

    /// Takes failing keys whose time has come.
    async fn fetch_due(&mut self) -> Result<(), ActorProcessingErr> {
        let now = self.context.now();
        let (messages, bytes) = self.context.credit.room_for_content();
        let is_time = now >= self.ask_due || self.next_due.is_some_and(|at| now >= at);
        if !is_time || self.reader.owned().is_empty() {
            return Ok(());
        }
        // Word comes when one is back.
        let Some((most_keys, most_bytes)) = self.working.room() else { return Ok(()) };
        if messages == 0 {
            self.starved = true;
            return Ok(());
        }
        let context = Arc::clone(&self.context);
        let request = DueRequest {
            route: context.route.clone(),
            relay: context.relay,
            buckets: self.reader.owned(),
            except: self.working.keys().cloned().collect(),
            muted: self.reader.closed(),
            keys: (messages / DUE_MESSAGES).clamp(1, DUE_KEYS).min(most_keys),
            messages: DUE_MESSAGES.min(messages),
            bytes: bytes.min(context.config.batch_bytes).min(most_bytes),
        };
        let due = in_time(context.config.store_timeout, "due", context.store.due(&request)).await?;
        self.ask_due = now + context.config.due_poll;
        self.next_due = due.next.map(|wait| now + wait.max(DUE_PAUSE));
        let mut dealt: Vec<Vec<_>> = self.lanes.iter().map(|_| Vec::new()).collect();
        for mut key in due.keys {
            let parked = std::mem::take(&mut key.parked);
            // Where the first has failed it is tried alone.
            let waited_for = key.failing.and(parked.first());
            let waited_for = waited_for.map_or(0, |stored| stored.message.bytes());
            self.working.take(key.key.clone(), key.bucket, waited_for);
            let held = parked.into_iter().map(|stored| {
                let hold = context.credit.take(stored.message.bytes());
                Held { stored, hold }
            });
            let held = held.collect();
            let epoch = self.epochs[usize::from(key.bucket.0)];
            dealt[self.lane_of(key.bucket)].push((key, epoch, held));
        }
        for (lane, keys) in self.lanes.iter().zip(dealt) {
            if !keys.is_empty() {
                lane.cast(LaneMsg::Due(keys))?;
            }
        }
        Ok(())
    }

    async fn probe_writers(&mut self) -> Result<(), ActorProcessingErr> {
        let now = self.context.now();
        if self.reader.wants_writers() && now >= self.next_probe {
            self.next_probe = now + PROBE_EVERY;
            self.ask_writers().await?;
        }
        Ok(())
    }

    async fn ask_writers(&mut self) -> Result<(), ActorProcessingErr> {
        let call = self.context.store.writers();
        let writers = in_time(self.context.config.store_timeout, "writers", call).await?;
        self.reader.wrote(&writers);
        Ok(())
    }

    fn open_topics(&mut self) {
        let now = self.context.now();
        for topic in self.topics.open_due(now) {
            self.reader.open_topic(&topic);
        }
        let reader = &self.reader;
        self.topics.keep(now, |topic| reader.is_apart(topic));
    }
}
