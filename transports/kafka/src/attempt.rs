//! One try to send a batch: what is sent when, what is heard, and when it is given up.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use outbox_contract::Topic;
use outbox_contract::backend::{Outcome, Outcomes};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::flight::{Flight, Heard};
use crate::gapless::{Gapless, Partition, Sent};
use crate::pool::Pool;
use crate::publish_timeout::PublishTimeout;
use crate::record::Record;

/// Time limit for reports of what was given up. They come at once.
const REPORTS: Duration = Duration::from_secs(5);

/// A message that can be sent.
pub(crate) struct Entry {
    /// Index in the batch.
    pub(crate) index: usize,
    pub(crate) record: Record,
    /// True if it is sent with nothing else under way, as its topic has taken nothing lately.
    pub(crate) alone: bool,
}

/// Messages of a batch for one partition.
pub(crate) struct PartitionMessages<'a> {
    partition: Partition,
    entries: Vec<&'a Entry>,
    /// True if all of it is acknowledged. Written and read by the parts of one future.
    delivered: AtomicBool,
}

impl<'a> PartitionMessages<'a> {
    /// Groups what goes out together.
    pub(crate) fn of(entries: &'a [Entry]) -> Vec<Self> {
        // The number first: it tells most apart.
        let mut lines: BTreeMap<(i32, &Topic), Vec<&Entry>> = BTreeMap::new();
        for entry in entries.iter().filter(|entry| !entry.alone) {
            lines.entry((entry.record.partition, entry.record.topic())).or_default().push(entry);
        }
        let line = |((partition, topic), entries): ((i32, &Topic), _)| PartitionMessages {
            partition: (topic.clone(), partition),
            entries,
            delivered: AtomicBool::new(false),
        };
        lines.into_iter().map(line).collect()
    }
}

/// End of an attempt.
pub(crate) struct Quiet<'a> {
    /// The partitions that it was given up for: they did not come nearer to their answers.
    pub(crate) silent: BTreeSet<&'a Partition>,
    /// Time at which single messages are given up too.
    pub(crate) deadline: Instant,
    /// Time at which every outcome has to be known.
    pub(crate) end: Instant,
}

/// One try to send messages by the gapless producer. Dropped before its [`end`](Self::end), it
/// takes back what it can.
pub(crate) struct Attempt<'a> {
    pool: &'a Arc<Pool>,
    producer: &'a Arc<Gapless>,
    outcomes: &'a Outcomes,
    // Plain mutexes: the parts of one future share them.
    flights: Mutex<Vec<(Arc<Flight>, Sent<'a>)>>,
    /// Flights that were delivered and not yet reported.
    delivered: Mutex<Vec<Arc<Flight>>>,
    ended: bool,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(pool: &'a Arc<Pool>, producer: &'a Arc<Gapless>, outcomes: &'a Outcomes) -> Self {
        Self {
            pool,
            producer,
            outcomes,
            flights: Mutex::default(),
            delivered: Mutex::default(),
            ended: false,
        }
    }

    fn flights(&self) -> MutexGuard<'_, Vec<(Arc<Flight>, Sent<'a>)>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn delivered(&self) -> MutexGuard<'_, Vec<Arc<Flight>>> {
        self.delivered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports what was delivered by now. Of a key nothing stands in front of it: what goes ahead
    /// of a flight was delivered before it went.
    fn report_delivered(&self) {
        for flight in self.delivered().drain(..) {
            flight.indices().iter().for_each(|index| self.outcomes.report(*index, Outcome::Delivered));
        }
    }

    /// Sends everything; returns when all is acknowledged, the producer has failed, or a partition
    /// does not come nearer to its answer.
    pub(crate) async fn run<'l>(
        &self,
        lines: &'l [PartitionMessages<'_>],
        mut publish_timeout: PublishTimeout<'l>,
    ) -> Quiet<'l> {
        let all = join_all(lines.iter().map(|line| self.follow_lead(line)));
        let mut all = pin!(all);
        let mut all = poll_fn(|context| {
            let all = all.as_mut().poll(context);
            // Where all partitions have answered it is said of all messages together, which costs
            // less.
            if all.is_pending() {
                self.report_delivered();
            }
            all
        });
        let open = || {
            let open = lines.iter().filter(|line| !line.delivered.load(Ordering::Relaxed));
            open.map(|line| &line.partition)
        };
        let mut looks = interval_at(publish_timeout.first(), publish_timeout.every());
        looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                _ = &mut all => break,
                () = self.producer.broken() => break,
                _ = looks.tick() => {}
            }
            let now = Instant::now();
            publish_timeout.look(open(), &self.producer.ahead(), now);
            // One is enough: what is given up takes the producer with it.
            if open().any(|partition| publish_timeout.is_silent(partition, now)) {
                break;
            }
        }
        let now = Instant::now();
        let silent: BTreeSet<_> =
            open().filter(|partition| publish_timeout.is_silent(partition, now)).collect();
        let since = |partition: &&Partition| publish_timeout.since(partition);
        // Its time counts from the moment at which it was given up, or else from the last answer.
        let given_up = silent.iter().map(since).min();
        let since = given_up.or_else(|| open().map(|it| since(&it)).max()).unwrap_or(publish_timeout.began());
        Quiet { silent, deadline: publish_timeout.given_up(since), end: publish_timeout.over(since) }
    }

    /// On a partition whose broker does not know the producer: the first message alone, then the
    /// others.
    ///
    /// Such a broker takes any first number. Were several under way, a later one could be taken
    /// after an earlier one was rejected or lost.
    async fn follow_lead(&self, line: &PartitionMessages<'_>) {
        let PartitionMessages { partition, entries, delivered } = line;
        let mut rest = &entries[..];
        if !self.producer.is_warm(partition) {
            let lead = self.producer.lead(partition);
            let _lead = lead.lock().await;
            if !self.producer.is_warm(partition)
                && let Some((first, others)) = entries.split_first()
            {
                if !self.send(partition, &[first]).await {
                    return;
                }
                rest = others;
            }
        }
        let all = self.send(partition, rest).await;
        delivered.store(all, Ordering::Relaxed);
    }

    /// Sends messages of a partition and waits for all reports; says whether all were acknowledged.
    async fn send(&self, partition: &Partition, entries: &[&Entry]) -> bool {
        if entries.is_empty() {
            return true;
        }
        let flight = Flight::new(partition.clone(), entries.iter().map(|entry| entry.index).collect());
        let records: Vec<&Record> = entries.iter().map(|entry| &entry.record).collect();
        let sent = self.producer.send(&records, &flight);
        self.flights().push((Arc::clone(&flight), sent));
        flight.done().await;
        let delivered = flight.is_delivered();
        if delivered {
            self.producer.warmed(partition);
            self.delivered().push(flight);
        } else if flight.all().iter().any(|(_, heard)| *heard == Heard::NotSent) {
            // The producer is closed: nothing more is to come.
            self.producer.broken().await;
        }
        delivered
    }

    fn is_complete(&self) -> bool {
        self.flights().iter().all(|(flight, _)| flight.is_delivered())
    }

    /// Returns what was heard of each message of the batch. A producer that did not deliver
    /// everything is retired.
    pub(crate) async fn end(mut self, len: usize) -> Vec<Heard> {
        self.ended = true;
        let complete = self.is_complete();
        let flights = std::mem::take(self.flights.get_mut().unwrap_or_else(PoisonError::into_inner));
        if !complete || self.producer.is_broken() {
            self.pool.retire(self.producer);
            let reports = join_all(flights.iter().map(|(_, sent)| sent.done()));
            // Messages not reported by then are unknown.
            let _ = timeout(REPORTS, reports).await;
        }
        let mut heard = vec![Heard::NotSent; len];
        for (index, what) in flights.iter().flat_map(|(flight, _)| flight.all()) {
            if let Some(slot) = heard.get_mut(index) {
                *slot = what;
            }
        }
        heard
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        // The future was dropped on its way: what waits in the client must not be started.
        if !self.ended && !self.is_complete() {
            self.pool.retire(self.producer);
        }
    }
}
