//! The poller of the model: what it tells the reader of rows, topics and buckets.

use super::*;

/// What the poller is told.
pub(super) enum ToPoller {
    Left(Vec<Position>),
    Forgotten(usize, Vec<Position>),
    Broken(usize),
    TopicForgotten(usize),
}

impl Model {
    pub(super) fn is_reader_free(&self) -> bool {
        match &self.call {
            None => true,
            Some(Call::Stripes(..) | Call::Fetch(..) | Call::Confirm(..)) => self.case.interleaved,
            Some(Call::Probe(_)) => false,
        }
    }

    pub(super) fn tell_reader(&mut self) {
        if !self.is_reader_free() {
            return;
        }
        match self.to_poller.pop_front() {
            None => {}
            Some(ToPoller::Left(positions)) => {
                self.note(|| format!("left {positions:?}"));
                self.reader.left(positions);
            }
            Some(ToPoller::Forgotten(key, rows)) => {
                self.note(|| format!("forgotten {rows:?} of key {key}"));
                for position in &rows {
                    self.held.remove(position);
                }
                self.reader.forget(the_key(key), rows);
                self.to_lane.push_back(ToLane::KeyForgotten(key));
            }
            Some(ToPoller::Broken(topic)) => self.close(topic),
            Some(ToPoller::TopicForgotten(topic)) => {
                if let Some(lanes) = &mut self.closed[topic] {
                    *lanes -= 1;
                }
            }
        }
    }

    pub(super) fn close(&mut self, topic: usize) {
        self.note(|| format!("topic {topic} closed"));
        self.reader.close_topic(the_topic(topic));
        self.sabotage_gaps();
        *self.closed[topic].get_or_insert(0) += 1;
        self.to_lane.push_back(ToLane::ForgetTopic(topic));
    }

    pub(super) fn open(&mut self, topic: usize) {
        if self.closed[topic] == Some(0) {
            self.note(|| format!("topic {topic} opened"));
            self.closed[topic] = None;
            self.reader.open_topic(the_topic(topic));
        }
    }

    pub(super) fn change_topic(&mut self) {
        let topic = self.random.usize(..TOPICS);
        if self.random.u8(..3) == 0 {
            // The lane meets the fault.
            self.to_poller.push_back(ToPoller::Broken(topic));
            self.drop_topic(topic);
            self.lane.dropping_topics.insert(topic);
        } else if self.is_reader_free() {
            if self.closed[topic].is_none() { self.close(topic) } else { self.open(topic) }
        }
    }

    pub(super) fn change_buckets(&mut self) {
        let some: BucketSet = (0..KEYS).filter(|_| self.random.u8(..3) == 0).map(bucket).collect();
        let some = if self.random.u8(..6) == 0 { BucketSet::ALL } else { some };
        match self.random.u8(..4) {
            0 => {
                let owned = self.reader.owned().intersection(&self.table.leased);
                let mark = self.reader.low_water();
                self.save_mark(&owned, mark);
            }
            // The leases run out; the reader hears of it later.
            1 => self.table.leased = self.table.leased.without(&some),
            2 => {
                self.another_relay_works();
                self.hear_of_losses();
            }
            _ => {
                self.hear_of_losses();
                self.take_over(some);
            }
        }
    }

    pub(super) fn save_mark(&mut self, buckets: &BucketSet, mark: Position) {
        for key in keys_in(*buckets) {
            self.marks[key] = mark;
        }
    }

    pub(super) fn hear_of_losses(&mut self) {
        let lost = self.reader.owned().without(&self.table.leased);
        if !self.is_reader_free() || lost.is_empty() {
            return;
        }
        self.note(|| format!("lost {} buckets", lost.len()));
        self.reader.lose(lost);
        self.held.retain(|position| {
            self.table.hot.get(position).is_none_or(|(_, stored)| !lost.contains(stored.bucket))
        });
        self.to_lane.push_back(ToLane::Lose(lost));
    }

    /// Whoever has a bucket meanwhile delivers some of it, in order, and saves its mark.
    pub(super) fn another_relay_works(&mut self) {
        let key = self.random.usize(..KEYS);
        let bucket: BucketSet = [bucket(key)].into_iter().collect();
        if !self.table.leased.intersection(&bucket).is_empty() {
            return;
        }
        let rows: Vec<Position> =
            self.table.committed[key].iter().filter(|at| self.table.hot.contains_key(at)).copied().collect();
        let count = self.random.usize(..=rows.len());
        for position in &rows[..count] {
            self.delivered.insert(*position);
            self.table.hot.remove(position);
        }
        let lowest = self.table.lowest(&bucket).before();
        // Where there are stripes nobody knows it.
        let known = if self.case.store == Ordering::Stripes { Position::START } else { lowest };
        if self.random.bool() {
            self.save_mark(&bucket, known);
        }
    }

    pub(super) fn take_over(&mut self, some: BucketSet) {
        let gained = some.without(&self.table.leased);
        if !self.is_reader_free()
            || gained.is_empty()
            || !self.reader.owned().intersection(&gained).is_empty()
        {
            return;
        }
        let of_gained = (0..KEYS).filter(|key| gained.contains(bucket(*key)));
        let low_water = of_gained.map(|key| self.marks[key]).min().unwrap_or(Position::START);
        self.note(|| format!("took over {} buckets from {low_water}", gained.len()));
        self.table.leased = self.table.leased.union(&gained);
        self.reader.acquire(gained, low_water);
        self.sabotage_takeover(&gained);
    }
}
