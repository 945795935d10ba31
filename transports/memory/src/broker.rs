//! The broker, as one state machine without async: topics, consumers, members, and batches in
//! flight.
//!
//! The shell around it holds the lock, calls one method, and waits on the signals that the methods
//! return. It uses ordered maps throughout, so that the same calls give the same answers in every
//! run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outbox_contract::backend::flow::Window;
use outbox_contract::backend::{
    Lag, Outcome, Outcomes, PublishBatch, Received, Stored, Subscription, Tag, Unavailable, Unit,
};
use outbox_contract::{Consumer, Failure, Topic, TransportError, TransportErrorKind};
use tokio::sync::Notify;

use crate::config::{Config, Confirm};
use crate::group::{Group, Move};
use crate::partition::{Entry, Waiter};
use crate::publication::{Publication, PublicationId};

/// Identifies one subscription; later ones have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MemberId(pub(crate) u64);

/// One subscription.
#[derive(Debug)]
struct Member {
    consumer: Consumer,
    topics: BTreeSet<Topic>,
    window: Window,
    wake: Arc<Notify>,
}

#[derive(Debug)]
pub(crate) struct Broker {
    config: Config,
    topics: BTreeMap<Topic, BTreeMap<Consumer, Group>>,
    members: BTreeMap<MemberId, Member>,
    publications: BTreeMap<PublicationId, Publication>,
    /// The next number for a member or a publication.
    next_id: u64,
    closed: bool,
}

impl Broker {
    pub(crate) fn new(config: Config) -> Self {
        let group = || Group::new(config.partitions);
        let topics = config
            .declared
            .iter()
            .map(|(topic, consumers)| {
                (topic.clone(), consumers.iter().map(|consumer| (consumer.clone(), group())).collect())
            })
            .collect();
        Self {
            topics,
            config,
            members: BTreeMap::new(),
            publications: BTreeMap::new(),
            next_id: 0,
            closed: false,
        }
    }

    pub(crate) fn check(&self, operation: &'static str) -> Result<(), TransportError> {
        if self.closed {
            return Err(TransportError::new(
                TransportErrorKind::Closed,
                operation,
                "the in-process transport was closed; build another one",
            ));
        }
        Ok(())
    }

    /// Returns what waits in the partitions of a member.
    pub(crate) fn lags(&self, member: MemberId) -> Vec<Lag> {
        let Some(of) = self.members.get(&member) else { return Vec::new() };
        let groups =
            of.topics.iter().filter_map(|topic| Some((topic, self.topics.get(topic)?.get(&of.consumer)?)));
        let lag =
            |topic: &Topic, (number, messages)| Lag::new(Unit { topic: topic.clone(), number }, messages);
        groups.flat_map(|(topic, group)| group.lags(member).map(move |of| lag(topic, of))).collect()
    }

    // ---- publishing

    /// Opens a publication of a batch; `advance` moves it.
    pub(crate) fn open(&mut self, batch: PublishBatch, outcomes: Outcomes) -> (PublicationId, Arc<Notify>) {
        let id = PublicationId(self.take_id());
        let publication = Publication::new(batch, outcomes);
        let wake = Arc::clone(&publication.wake);
        self.publications.insert(id, publication);
        (id, wake)
    }

    /// Enqueues as much of a batch as there is room for. Returns true if the batch is complete.
    pub(crate) fn advance(&mut self, id: PublicationId) -> bool {
        let Some(mut publication) = self.publications.remove(&id) else { return true };
        if self.closed {
            give_up(&mut publication);
        }
        // Topics without room: their later messages wait too, and those of other topics do not.
        let (mut full, mut from) = (BTreeSet::new(), 0);
        while let Some((index, stored)) = publication.next(from) {
            from = index + 1;
            if full.contains(&stored.message.topic) {
                continue;
            }
            if let Err(rejection) = self.config.validate(&stored.message) {
                publication.failed(index, Outcome::Rejected(rejection.0));
                continue;
            }
            match self.hand_out(&stored, publication.source(), Waiter { publication: id, index }) {
                Ok(Some(unfinished)) => publication.enqueued(index, unfinished),
                Ok(None) => drop(full.insert(stored.message.topic.clone())),
                Err(failure) => {
                    publication.failed(index, Outcome::Unavailable(Unavailable::Topic, failure));
                }
            }
        }
        publication.waits_for_room = !full.is_empty();
        let complete = publication.is_complete();
        self.publications.insert(id, publication);
        complete
    }

    /// Forgets a batch whose future is gone. Buffered messages stay there and arrive.
    pub(crate) fn abandon(&mut self, id: PublicationId) {
        self.publications.remove(&id);
    }

    // ---- receiving

    pub(crate) fn subscribe(
        &mut self,
        subscription: Subscription,
    ) -> Result<(MemberId, Arc<Notify>), TransportError> {
        self.check("subscribe")?;
        let window = Window::new(&subscription)?;
        let id = MemberId(self.take_id());
        let member = Member {
            consumer: subscription.consumer,
            topics: subscription.topics.into_iter().collect(),
            window,
            wake: Arc::new(Notify::new()),
        };
        let (wake, consumer, topics) =
            (Arc::clone(&member.wake), member.consumer.clone(), member.topics.clone());
        self.members.insert(id, member);
        for topic in &topics {
            let partitions = self.config.partitions;
            let groups = self.topics.entry(topic.clone()).or_default();
            let group = groups.entry(consumer.clone()).or_insert_with(|| Group::new(partitions));
            let moves = group.join(id);
            self.announce(&consumer, topic, moves);
        }
        Ok((id, wake))
    }

    /// Takes what a member is told next. One step returns it, so dropping the answer's future loses
    /// nothing.
    pub(crate) fn take(&mut self, id: MemberId) -> Result<Option<Received>, TransportError> {
        self.check("receive")?;
        Ok(self.members.get_mut(&id).map_or(Some(Received::Ended), |member| member.window.receive()))
    }

    pub(crate) fn acknowledge(&mut self, id: MemberId, tags: &[Tag]) -> Result<(), TransportError> {
        self.check("acknowledge")?;
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        for tag in tags {
            member.window.finish(tag);
        }
        for finished in member.window.take_finished() {
            let group = self.topics.get_mut(&finished.unit.topic).and_then(|it| it.get_mut(&member.consumer));
            let Some(group) = group else { continue };
            let removed = finished.deliveries.iter();
            let entry = removed.filter_map(|(number, ())| group.remove(finished.unit.number, *number));
            for waiter in entry.flat_map(|entry| entry.waiters) {
                if let Some(publication) = self.publications.get_mut(&waiter.publication) {
                    publication.acknowledged(waiter.index);
                }
            }
        }
        // There is room again: in the prefetch of this member, and in the buffer for publishers.
        member.wake.notify_one();
        self.wake_publications();
        Ok(())
    }

    pub(crate) fn pause(&mut self, id: MemberId, units: &[Unit], paused: bool) -> Result<(), TransportError> {
        self.check(if paused { "pause" } else { "resume" })?;
        if let Some(member) = self.members.get_mut(&id) {
            member.window.pause(units, paused);
            member.wake.notify_one();
        }
        Ok(())
    }

    pub(crate) fn drain(&mut self, id: MemberId) -> Result<(), TransportError> {
        self.check("drain")?;
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        member.window.drain();
        member.wake.notify_one();
        for topic in &member.topics {
            if let Some(group) = self.topics.get_mut(topic).and_then(|it| it.get_mut(&member.consumer)) {
                group.drain(id);
            }
        }
        // There may be no member left to take the messages that wait for room.
        self.wake_publications();
        Ok(())
    }

    /// Removes a member, after a clean exit or a crash: its units go to others, from the first
    /// unacknowledged message on.
    pub(crate) fn leave(&mut self, id: MemberId) {
        let Some(member) = self.members.remove(&id) else { return };
        member.wake.notify_one();
        for topic in &member.topics {
            let group = self.topics.get_mut(topic).and_then(|it| it.get_mut(&member.consumer));
            let moves = group.map(|group| group.leave(id)).unwrap_or_default();
            self.announce(&member.consumer, topic, moves);
        }
        self.wake_publications();
    }

    // ---- closing

    /// Closes everything. The content of the buffers is lost.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.publications.values_mut().for_each(give_up);
        self.members.values().for_each(|member| member.wake.notify_one());
        self.topics.clear();
    }

    /// Adds a message to the buffers of the consumers that have not finished it. Returns how many
    /// of them must acknowledge it; `None` if a buffer has no room. An error: the topic has no
    /// subscriber.
    fn hand_out(
        &mut self,
        stored: &Arc<Stored>,
        source: &Arc<str>,
        waiter: Waiter,
    ) -> Result<Option<usize>, Failure> {
        let Self { config, topics, members, publications, .. } = self;
        let groups = groups_to_reach(topics, &stored.message.topic, config.confirm)?;
        let (id, bytes) = (stored.message.id, stored.message.bytes());
        let waits_already = groups.values_mut().any(|group| group.partition_of(stored.bucket).1.contains(id));
        if !waits_already && groups.values().any(|group| !group.load().has_room_for(bytes, config.buffer)) {
            return Ok(None);
        }
        let acknowledged = match config.confirm {
            Confirm::Acknowledged => Some(waiter),
            Confirm::Enqueued => None,
        };
        let mut unfinished = 0;
        for group in groups.values_mut() {
            match group.partition_of(stored.bucket).1.find(id) {
                // Resent while it still waits: another copy would only pile up behind it.
                // Publications that were given up are removed here, so that a hanging consumer
                // does not collect them.
                Some(entry) => {
                    // Its own, which is taken out meanwhile, stays: it may have a message twice.
                    let publication = waiter.publication;
                    entry.waiters.retain(|waiter| {
                        waiter.publication == publication || publications.contains_key(&waiter.publication)
                    });
                    entry.waiters.extend(acknowledged);
                }
                // This consumer has finished it, and another one has not.
                None if waits_already => continue,
                None => {
                    let (stored, source) = (Arc::clone(stored), Arc::clone(source));
                    enqueue(
                        group,
                        members,
                        Entry { stored, source, waiters: acknowledged.into_iter().collect() },
                    );
                }
            }
            unfinished += usize::from(acknowledged.is_some());
        }
        Ok(Some(unfinished))
    }

    fn announce(&mut self, consumer: &Consumer, topic: &Topic, moves: Vec<Move>) {
        tracing::debug!(%topic, partitions = moves.len(), "partitions moved");
        let Some(group) = self.topics.get_mut(topic).and_then(|it| it.get_mut(consumer)) else { return };
        for Move { partition, from, to } in moves {
            let unit = Unit { topic: topic.clone(), number: partition };
            if let Some(member) = from.and_then(|from| self.members.get_mut(&from)) {
                member.window.revoke(&unit);
                member.wake.notify_one();
            }
            let Some(member) = to.and_then(|to| self.members.get_mut(&to)) else { continue };
            member.window.assign(unit.clone(), ());
            for (number, entry) in group.partition(partition).iter().flat_map(|it| it.entries()) {
                member.window.arrived(&unit, *number, (), |tag| entry.delivery(tag));
            }
            member.wake.notify_one();
        }
    }

    fn wake_publications(&self) {
        let waiting = self.publications.values().filter(|publication| publication.waits_for_room);
        waiting.for_each(|publication| publication.wake.notify_one());
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

/// Adds a message to the buffer of a consumer, and to the window of the member that gets it.
fn enqueue(group: &mut Group, members: &mut BTreeMap<MemberId, Member>, entry: Entry) {
    let (partition, number, entry, owner) = group.push(entry);
    if let Some(member) = owner.and_then(|owner| members.get_mut(&owner)) {
        let unit = Unit { topic: entry.stored.message.topic.clone(), number: partition };
        member.window.arrived(&unit, number, (), |tag| entry.delivery(tag));
        member.wake.notify_one();
    }
}

fn give_up(publication: &mut Publication) {
    let failure = Failure::new("closed", "the in-process transport was closed; build another one");
    let unknown = Outcome::Unknown(failure.clone());
    publication.give_up(&unknown, &Outcome::Unavailable(Unavailable::Route, failure));
}

/// Returns the consumers that a message of this topic must reach, or the reason why it can't.
fn groups_to_reach<'t>(
    topics: &'t mut BTreeMap<Topic, BTreeMap<Consumer, Group>>,
    topic: &Topic,
    confirm: Confirm,
) -> Result<&'t mut BTreeMap<Consumer, Group>, Failure> {
    let groups = topics.get_mut(topic).ok_or_else(|| {
        no_subscriber(format!("topic {topic} has no subscriber; subscribe, or declare its consumers"))
    })?;
    let absent = groups.iter().find(|(_, group)| !group.has_takers());
    match absent {
        Some((consumer, _)) if confirm == Confirm::Acknowledged => Err(no_subscriber(format!(
            "consumer {consumer} of topic {topic} is not connected; delivery resumes when it subscribes"
        ))),
        _ => Ok(groups),
    }
}

fn no_subscriber(words: String) -> Failure {
    Failure::new("no-subscriber", words)
}
