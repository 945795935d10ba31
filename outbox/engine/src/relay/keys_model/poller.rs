//! The poller of the model: reads whatever it does not know, and hears what became of it.

use super::*;

/// What the poller is told.
pub(super) enum ToPoller {
    Left(Vec<Position>),
    Broken(usize),
    Forgotten(KeyId, Vec<Position>),
    TopicForgotten(usize),
    Worked(Vec<(KeyId, Option<Duration>)>),
    Lost(Vec<Bucket>),
}

/// A call that the poller waits for: what it asked, and when the store has looked, the answer.
pub(super) enum Call {
    Fetch {
        asked: BTreeSet<usize>,
        except: BTreeSet<Position>,
        limit: usize,
        answer: Option<Vec<FetchedRow>>,
    },
    Due {
        asked: BTreeSet<usize>,
        messages: usize,
        answer: Option<Vec<DueKey>>,
    },
}

/// The poller: reads whatever it does not know, so that what it deals of a key is always whole.
#[derive(Default)]
pub(super) struct Poller {
    pub(super) known: BTreeMap<Position, usize>,
    pub(super) owned: BTreeSet<usize>,
    pub(super) epochs: [Epoch; KEYS],
    pub(super) working: BTreeSet<usize>,
    pub(super) closed: [Option<usize>; TOPICS],
    pub(super) fetches: u64,
    pub(super) call: Option<Call>,
}

impl Model {
    pub(super) fn readable(&self) -> BTreeSet<usize> {
        let open = |of: &&usize| self.poller.closed[topic_of(**of)].is_none();
        self.poller.owned.iter().filter(open).copied().collect()
    }

    pub(super) fn poll(&mut self) {
        match self.poller.call.take() {
            None if self.random.u8(..4) == 0 => {
                let asked = self.readable().difference(&self.poller.working).copied().collect();
                let messages = self.random.usize(1..5);
                self.poller.call = Some(Call::Due { asked, messages, answer: None });
            }
            None => {
                self.poller.fetches += 1;
                let except = self.poller.known.keys().copied().collect();
                let limit = self.random.usize(1..8);
                self.poller.call = Some(Call::Fetch { asked: self.readable(), except, limit, answer: None });
            }
            Some(Call::Fetch { asked, except, limit, answer: None }) => {
                let answer = Some(self.table.fetch(&asked, &except, limit));
                self.poller.call = Some(Call::Fetch { asked, except, limit, answer });
            }
            Some(Call::Due { asked, messages, answer: None }) => {
                let answer = Some(self.table.due(&asked, messages, self.now));
                self.poller.call = Some(Call::Due { asked, messages, answer });
            }
            Some(Call::Fetch { answer: Some(rows), .. }) => self.deal(rows),
            Some(Call::Due { answer: Some(due), .. }) => {
                self.note(|| format!("due {due:?}"));
                self.poller.working.extend(due.iter().map(|due| number_of(&due.key)));
                let epoch = |due: DueKey| (self.poller.epochs[number_of(&due.key)], due);
                let due = due.into_iter().map(epoch).map(|(epoch, due)| (due, epoch)).collect();
                self.to_lane.push_back(ToLane::Due(due));
            }
        }
    }

    pub(super) fn deal(&mut self, rows: Vec<FetchedRow>) {
        let mut batch = Vec::new();
        for row in rows {
            let of = self.key_of(row.position());
            self.note(|| format!("fetch {}: {row:?}", self.poller.fetches));
            self.poller.known.insert(row.position(), of);
            batch.push((row, self.poller.epochs[of]));
        }
        if !batch.is_empty() {
            self.to_lane.push_back(ToLane::Batch(self.poller.fetches, batch));
        }
    }

    pub(super) fn tell_poller(&mut self) {
        if self.poller.call.is_some() {
            return;
        }
        match self.to_poller.pop_front() {
            None => {}
            Some(ToPoller::Left(positions)) => {
                self.poller.known.retain(|position, _| !positions.contains(position));
            }
            Some(ToPoller::Broken(topic)) => self.close(topic),
            Some(ToPoller::Forgotten(key, rows)) => {
                self.poller.known.retain(|position, _| !rows.contains(position));
                self.to_lane.push_back(ToLane::KeyForgotten(key));
            }
            Some(ToPoller::TopicForgotten(topic)) => {
                if let Some(lanes) = &mut self.poller.closed[topic] {
                    *lanes -= 1;
                }
            }
            Some(ToPoller::Worked(keys)) => {
                for (key, _) in keys {
                    self.poller.working.remove(&number_of(&key));
                }
            }
            Some(ToPoller::Lost(lost)) => {
                let lost = keys_in(lost.into_iter().collect()).collect();
                self.lose(&lost);
            }
        }
    }

    pub(super) fn close(&mut self, topic: usize) {
        self.note(|| format!("topic {topic} closed"));
        *self.poller.closed[topic].get_or_insert(0) += 1;
        self.to_lane.push_back(ToLane::ForgetTopic(topic));
    }

    pub(super) fn open(&mut self, topic: usize) {
        if self.poller.closed[topic] == Some(0) {
            self.poller.closed[topic] = None;
        }
    }

    pub(super) fn change_topic(&mut self) {
        let topic = self.random.usize(..TOPICS);
        if self.poller.call.is_some() {
        } else if self.poller.closed[topic].is_some() {
            self.open(topic);
        } else if self.random.u8(..3) == 0 {
            self.close(topic);
        }
    }

    pub(super) fn lose(&mut self, lost: &BTreeSet<usize>) {
        self.note(|| format!("lost {lost:?}"));
        self.poller.known.retain(|_, of| !lost.contains(of));
        self.poller.owned.retain(|of| !lost.contains(of));
        self.poller.working.retain(|of| !lost.contains(of));
        self.to_lane.push_back(ToLane::Lose(buckets(lost.iter().copied())));
    }

    pub(super) fn change_leases(&mut self) {
        let of = self.random.usize(..KEYS);
        if self.table.leased.contains(&of) {
            if self.random.u8(..4) == 0 {
                self.table.leased.remove(&of);
                self.table.epochs[of].0 += 1;
            }
        } else if self.random.bool() {
            if let Some(position) = self.table.take_first(of, self.now) {
                self.note(|| format!("another relay delivers {position}"));
                self.log.insert(position);
            }
        } else {
            self.heartbeat();
            self.take_over(of);
        }
    }

    pub(super) fn heartbeat(&mut self) {
        let lost: BTreeSet<usize> = self.poller.owned.difference(&self.table.leased).copied().collect();
        if self.poller.call.is_none() && !lost.is_empty() {
            self.lose(&lost);
        }
    }

    pub(super) fn take_over(&mut self, of: usize) {
        if self.poller.call.is_none() && !self.poller.owned.contains(&of) {
            self.table.epochs[of].0 += 1;
            self.table.leased.insert(of);
            self.poller.epochs[of] = self.table.epochs[of];
            self.poller.owned.insert(of);
        }
    }
}
