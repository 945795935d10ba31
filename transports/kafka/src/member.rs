//! A member of a consumer: what its thread, which polls, and its deliveries share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outbox_contract::backend::flow::Finished;
use outbox_contract::backend::{Problem, Unit};
use outbox_contract::{Topic, TransportError, TransportErrorKind};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::Notify;

use crate::begun::Begun;
use crate::consumer_error::ConsumerError;
use crate::context::Events;
use crate::dispatch::Dispatch;
use crate::lags::Lags;
use crate::positions::Positions;
use crate::problems::Problems;
use crate::subscribed::Subscribed;

mod calls;
mod polling;

pub(crate) use calls::MemberContext;
pub(crate) use polling::run;

/// Time for which partitions of a drained member stay with it while it finishes what it has. Moved
/// at once, all of that would come again.
const FINISH: Duration = Duration::from_secs(10);
/// Time for which an offset is tried to be committed: longer than a rebalance, in which the broker
/// takes none, mostly is.
const COMMIT: Duration = Duration::from_secs(15);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// State that the thread of a member and its deliveries share.
pub(crate) struct Member {
    events: Events,
    topics: Vec<Topic>,
    /// None if the members divide the partitions: then they refuse no topic.
    subscribed: Option<Mutex<Subscribed>>,
    /// True while it may describe none of the topics.
    sees_nothing: AtomicBool,
    // A plain mutex: held for one step of the machine, never across an await, nor while the broker
    // is asked.
    dispatch: Mutex<Dispatch>,
    /// Something was acknowledged.
    acknowledged: Condvar,
    /// There may be something to take.
    pub(crate) wake: Notify,
    /// Held while offsets are committed, and while partitions are given back: an offset that is
    /// committed after its partition has moved would put the new owner's back.
    committing: Mutex<()>,
    // Plain as well: held for a step of the machine.
    problems: Mutex<Problems>,
    positions: Positions,
    // And these.
    begun: Mutex<Begun>,
    lags: Mutex<Lags>,
    /// Ends of partitions of which the client fetches nothing now, as they were asked for.
    ends: Mutex<BTreeMap<Unit, i64>>,
    /// Something may be wrong with a topic.
    doubt: Condvar,
    leaving: AtomicBool,
}

impl Member {
    pub(crate) fn new(
        topics: Vec<Topic>,
        dispatch: Dispatch,
        problems: Problems,
        positions: Positions,
        subscribed: Option<Subscribed>,
    ) -> Self {
        Self {
            events: Events::default(),
            topics,
            sees_nothing: AtomicBool::new(subscribed.as_ref().is_some_and(Subscribed::is_nothing)),
            subscribed: subscribed.map(Mutex::new),
            dispatch: Mutex::new(dispatch),
            acknowledged: Condvar::new(),
            wake: Notify::new(),
            committing: Mutex::new(()),
            problems: Mutex::new(problems),
            positions,
            begun: Mutex::default(),
            lags: Mutex::default(),
            ends: Mutex::default(),
            doubt: Condvar::new(),
            leaving: AtomicBool::new(false),
        }
    }

    /// The machine. No step of it runs foreign code.
    pub(crate) fn dispatch(&self) -> MutexGuard<'_, Dispatch> {
        self.dispatch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the problems of single topics. No step of it runs foreign code.
    pub(crate) fn problems(&self) -> MutexGuard<'_, Problems> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what did not begin where the group left it. No step of it runs foreign code.
    pub(crate) fn begun(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lags(&self) -> MutexGuard<'_, Lags> {
        self.lags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the problems of single topics, and of partitions whose position is lost.
    pub(crate) fn all_problems(&self) -> Vec<Problem> {
        let mut all = self.problems().all();
        all.extend(self.begun().problems());
        all
    }

    /// The ends of partitions of which the client fetches nothing were asked for.
    pub(crate) fn has_ends(&self, ends: BTreeMap<Unit, i64>) {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner) = ends;
    }

    pub(crate) fn topics(&self) -> &[Topic] {
        &self.topics
    }

    /// A look at a topic has shown whether it may be described. Asks the group for others if it has
    /// to.
    pub(crate) fn is_hidden(&self, consumer: &BaseConsumer<MemberContext>, topic: &Topic, hidden: bool) {
        let Some(subscribed) = &self.subscribed else { return };
        let mut subscribed = subscribed.lock().unwrap_or_else(PoisonError::into_inner);
        subscribed.is_hidden(topic, hidden);
        self.sees_nothing.store(subscribed.is_nothing(), Ordering::Release);
        if let Err(error) = subscribed.ask(|topics| subscribe(consumer, topics)) {
            tracing::warn!(%topic, %error, "could not change the subscription; will retry");
        }
    }

    /// An error may be of a single topic: of one that it names, or of any.
    fn doubt(&self, error: &ConsumerError) {
        let ConsumerError { code, words } = error;
        tracing::debug!(%code, words, "an error that may concern a single topic; checking each topic");
        let named = |topic: &&Topic| {
            words.contains(&format!(" topic {topic} [")) || words.contains(&format!(": {topic}: "))
        };
        let mut named: Vec<&Topic> = self.topics.iter().filter(named).collect();
        if named.is_empty() {
            named = self.topics.iter().collect();
        }
        self.problems().doubt(named);
        self.doubt.notify_all();
    }

    /// Waits until something may be wrong with a topic, for so long at most. False: the member
    /// leaves.
    pub(crate) fn wait_for_doubt(&self, limit: Duration) -> bool {
        let quiet = |problems: &mut Problems| !problems.is_urgent() && !self.is_leaving();
        drop(self.doubt.wait_timeout_while(self.problems(), limit, quiet));
        !self.is_leaving()
    }

    /// Something was acknowledged: what waits for it goes on.
    pub(crate) fn finished(&self) {
        self.acknowledged.notify_all();
        self.wake.notify_one();
    }

    /// The thread ends, and the member leaves.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        // Under the lock: who is about to wait has not seen it, and must not miss this.
        drop(self.problems());
        self.doubt.notify_all();
        self.acknowledged.notify_all();
    }

    /// The member leaves by itself, and says why.
    fn give_up(&self, why: TransportError) {
        self.dispatch().fail(why, false);
        self.leave();
        self.wake.notify_one();
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    fn units(&self, partitions: &TopicPartitionList) -> Vec<Unit> {
        let elements = partitions.elements();
        elements.iter().filter_map(|it| self.unit(it.topic(), it.partition())).collect()
    }

    fn unit(&self, topic: &str, partition: i32) -> Option<Unit> {
        let topic = self.topics.iter().find(|it| it.as_str() == topic)?.clone();
        Some(Unit { topic, number: u32::try_from(partition).ok()? })
    }

    /// A drained member keeps its partitions for a while, to finish what it has of them.
    fn let_finish(&self, units: &[Unit]) {
        let busy =
            |dispatch: &mut Dispatch| !self.is_leaving() && dispatch.is_drained() && dispatch.is_busy(units);
        drop(self.acknowledged.wait_timeout_while(self.dispatch(), FINISH, busy));
    }

    /// Commits what is finished. Topics that something is wrong with are committed one by one: what
    /// one of them is refused is no other's matter, and is tried again with the next
    /// acknowledgement. As long as it is not committed, it may come again.
    fn commit_once(&self, consumer: &BaseConsumer<MemberContext>) -> KafkaResult<()> {
        let mut well = Vec::new();
        let mut ill: BTreeMap<Topic, Vec<Finished<()>>> = BTreeMap::new();
        {
            let offsets = self.dispatch().to_commit();
            let problems = self.problems();
            for finished in offsets {
                if problems.has(&finished.unit.topic) {
                    ill.entry(finished.unit.topic.clone()).or_default().push(finished);
                } else {
                    well.push(finished);
                }
            }
        }
        let committed = self.commit_offsets(consumer, &well);
        if let Err(error) = &committed
            && error.rdkafka_error_code().is_some_and(|code| ConsumerError::of(code).is_of_a_topic())
        {
            // Which one is found out; from then on the others are committed without it.
            self.doubt(&ConsumerError { code: RDKafkaErrorCode::Unknown, words: error.to_string() });
        }
        for (topic, offsets) in ill {
            if let Err(error) = self.commit_offsets(consumer, &offsets) {
                tracing::debug!(%topic, %error, "offsets of a topic with a problem could not be committed");
            }
        }
        committed
    }

    fn commit_offsets(
        &self,
        consumer: &BaseConsumer<MemberContext>,
        offsets: &[Finished<()>],
    ) -> KafkaResult<()> {
        if offsets.is_empty() {
            return Ok(());
        }
        let mut list = TopicPartitionList::with_capacity(offsets.len());
        for Finished { unit, through, .. } in offsets {
            let next = through.and_then(|through| i64::try_from(through + 1).ok());
            let Some(next) = next else { continue };
            list.add_partition_offset(unit.topic.as_str(), number(unit), Offset::Offset(next))?;
        }
        consumer.commit(&list, CommitMode::Sync)?;
        self.begun().finished(offsets.iter().map(|finished| &finished.unit));
        self.dispatch().committed(offsets);
        Ok(())
    }

    fn committing(&self) -> MutexGuard<'_, ()> {
        self.committing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the group for topics.
pub(crate) fn subscribe(consumer: &BaseConsumer<MemberContext>, topics: &[Topic]) -> KafkaResult<()> {
    consumer.subscribe(&topics.iter().map(Topic::as_str).collect::<Vec<_>>())
}

/// The partition of a unit, as the client has it.
fn number(unit: &Unit) -> i32 {
    i32::try_from(unit.number).unwrap_or(i32::MAX)
}

/// Commits what is finished, for so long as it takes within reason. Blocks.
pub(crate) fn commit(member: &Member, consumer: &BaseConsumer<MemberContext>) -> Result<(), TransportError> {
    let start = Instant::now();
    loop {
        let error = {
            let _committing = member.committing();
            match member.commit_once(consumer) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            }
        };
        // A rebalance is under way, or the broker is away. Partitions that are taken away meanwhile
        // are not committed any more.
        if start.elapsed() > COMMIT || member.is_leaving() {
            let words = "committing offsets failed; finished messages may be delivered again";
            let error =
                TransportError::new(TransportErrorKind::Unavailable, "acknowledge", words).with_source(error);
            return Err(error);
        }
        std::thread::sleep(PAUSE);
    }
}
