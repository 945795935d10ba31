//! The lane and the settler of the model, as far as rows come from the reader and go back to it.

use super::*;

/// What the lane is told.
pub(super) enum ToLane {
    Batch(Vec<(usize, Position)>),
    KeyForgotten(usize),
    ForgetTopic(usize),
    Lose(BucketSet),
}

/// A lane, as far as rows come from the reader and go back to it.
#[derive(Default)]
pub(super) struct Lane {
    pub(super) queues: [VecDeque<Position>; KEYS],
    /// The chunk of a key. Taken away when the key is dropped: it goes on among the late ones.
    pub(super) chunks: [Vec<Position>; KEYS],
    pub(super) late: Vec<(usize, Vec<Position>)>,
    pub(super) dropping: [u32; KEYS],
    pub(super) dropping_topics: BTreeSet<usize>,
}

impl Model {
    pub(super) fn tell_lane(&mut self) {
        match self.to_lane.pop_front() {
            None => {}
            Some(ToLane::Batch(rows)) => {
                for (key, position) in rows {
                    if self.lane.dropping[key] > 0 || self.lane.dropping_topics.contains(&(topic_of(key))) {
                        self.report_forgotten(key, vec![position]);
                    } else {
                        self.lane.queues[key].push_back(position);
                    }
                }
            }
            Some(ToLane::KeyForgotten(key)) => self.lane.dropping[key] -= 1,
            Some(ToLane::ForgetTopic(topic)) => {
                self.drop_topic(topic);
                self.lane.dropping_topics.remove(&topic);
                self.to_poller.push_back(ToPoller::TopicForgotten(topic));
            }
            Some(ToLane::Lose(buckets)) => {
                for key in keys_in(buckets) {
                    self.take_key(key);
                }
            }
        }
    }

    /// All that the lane has of a key, in order.
    pub(super) fn take_key(&mut self, key: usize) -> Vec<Position> {
        let chunk = std::mem::take(&mut self.lane.chunks[key]);
        let mut rows = chunk.clone();
        rows.extend(std::mem::take(&mut self.lane.queues[key]));
        self.lane.late.push((key, chunk));
        rows
    }

    pub(super) fn report_forgotten(&mut self, key: usize, rows: Vec<Position>) {
        if !rows.is_empty() {
            self.note(|| format!("the lane drops {rows:?} of key {key}"));
            self.lane.dropping[key] += 1;
            self.to_poller.push_back(ToPoller::Forgotten(key, rows));
        }
    }

    pub(super) fn drop_key(&mut self) {
        let key = self.random.usize(..KEYS);
        let rows = self.take_key(key);
        self.report_forgotten(key, rows);
    }

    pub(super) fn drop_topic(&mut self, topic: usize) {
        for key in keys_of(topic) {
            let rows = self.take_key(key);
            self.report_forgotten(key, rows);
        }
    }

    /// A key's messages go out in a chunk.
    pub(super) fn send(&mut self) {
        let key = self.random.usize(..KEYS);
        if self.lane.chunks[key].is_empty() {
            let queue = &mut self.lane.queues[key];
            let count = self.random.usize(..=queue.len());
            self.lane.chunks[key] = queue.drain(..count).collect();
        }
    }

    /// A chunk comes back: some of it was delivered, the rest is sent again.
    pub(super) fn hear(&mut self) -> Judged {
        if !self.lane.late.is_empty() && self.random.bool() {
            let late = self.random.usize(..self.lane.late.len());
            let (key, chunk) = self.lane.late.swap_remove(late);
            let count = self.random.usize(..=chunk.len());
            return self.deliver(key, &chunk[..count]);
        }
        let key = self.random.usize(..KEYS);
        let chunk = std::mem::take(&mut self.lane.chunks[key]);
        let count = self.random.usize(..=chunk.len());
        for position in chunk[count..].iter().rev() {
            self.lane.queues[key].push_front(*position);
        }
        self.deliver(key, &chunk[..count])
    }

    pub(super) fn deliver(&mut self, key: usize, rows: &[Position]) -> Judged {
        for position in rows {
            let passed =
                self.table.committed[key].iter().find(|at| *at < position && !self.delivered.contains(at));
            if let Some(passed) = passed {
                return Err(format!("{position} was delivered before {passed} of the same key"));
            }
            self.delivered.insert(*position);
            self.confirmed.push(*position);
        }
        Ok(())
    }

    /// Rows that were delivered leave the table; at another step the poller is told.
    pub(super) fn settle(&mut self) {
        if self.random.bool() {
            self.random.shuffle(&mut self.confirmed);
            let count = self.random.usize(..=self.confirmed.len());
            for position in self.confirmed.drain(..count) {
                self.table.hot.remove(&position);
                self.removed.push(position);
            }
        } else if !self.removed.is_empty() {
            self.to_poller.push_back(ToPoller::Left(std::mem::take(&mut self.removed)));
        }
    }
}
