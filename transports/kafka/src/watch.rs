//! Looks at the topics of a member: which of them, or which partitions, can't be read, and why.
//!
//! The client tells of errors without their topic. So whatever may be of a single one makes this
//! look at each, by a client that belongs to no group: it reads where the member is, one topic
//! after the other, and thereby learns which one it is, and when it is over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;
use std::time::{Duration, Instant};

use outbox_contract::Topic;
use outbox_contract::backend::Unit;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::Message as _;
use rdkafka::metadata::MetadataTopic;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;

use crate::consumer_error::ConsumerError;
use crate::context::Events;
use crate::member::{Member, MemberContext};
use crate::problems::Finding;
use crate::produce_error::missing;

/// Interval of looks at topics that have a problem.
const SOON: Duration = Duration::from_secs(3);
/// Interval of looks at the others: a partition that lost its leader says nothing by itself.
const SELDOM: Duration = Duration::from_secs(30);
/// Interval of questions for the ends of partitions.
const ENDS: Duration = Duration::from_secs(5);
/// Time limit for the broker to describe a topic.
const ANSWER: Duration = Duration::from_secs(2);
/// Time limit for reading from a topic.
const READ: Duration = Duration::from_secs(3);
/// Time limit for the other partitions of a topic once one of them gave an error.
const REST: Duration = Duration::from_millis(500);
/// Time for which a record is waited for at once.
const POLL: Duration = Duration::from_millis(50);

/// The thread that looks, until its member leaves. `consumer`: the member's own client, which
/// describes topics as well as any.
pub(crate) fn run(member: &Member, consumer: &Weak<BaseConsumer<MemberContext>>, config: &ClientConfig) {
    let mut looked = Instant::now();
    let mut probe: Option<Probe> = None;
    loop {
        let soon = if member.problems().is_quiet() { SELDOM.saturating_sub(looked.elapsed()) } else { SOON };
        let soon = soon.min(ENDS);
        if !member.wait_for_doubt(soon) {
            return;
        }
        ask_ends(member, consumer);
        let all = looked.elapsed() >= SELDOM;
        let suspects = member.problems().suspects();
        if all {
            looked = Instant::now();
        }
        if probe.is_none() && !suspects.is_empty() {
            probe = Probe::new(config);
        }
        for topic in member.topics().iter().filter(|topic| all || suspects.contains(topic)) {
            if member.is_leaving() {
                return;
            }
            let looked = match &probe {
                Some(probe) if suspects.contains(topic) => {
                    look(&probe.client, topic, |led| probe.read(member, topic, led).ok().flatten())
                }
                // Gone when the member is about to end.
                _ => consumer.upgrade().and_then(|consumer| look(&consumer, topic, |_| Some(Vec::new()))),
            };
            let Some(Looked { findings, hidden }) = looked else { continue };
            member.problems().found(topic, findings);
            if let Some(consumer) = consumer.upgrade() {
                member.is_hidden(&consumer, topic, hidden);
            }
        }
        if member.problems().is_quiet() {
            // Its connections are worth keeping only while there is something to look at.
            probe = None;
        }
    }
}

/// Asks for the ends of partitions of which the client fetches nothing now, and learns nothing by
/// itself.
fn ask_ends(member: &Member, consumer: &Weak<BaseConsumer<MemberContext>>) {
    let stopped = member.dispatch().stopped();
    let mut ends = BTreeMap::new();
    let asked = || -> KafkaResult<TopicPartitionList> {
        let mut list = TopicPartitionList::with_capacity(stopped.len());
        for unit in &stopped {
            let number = i32::try_from(unit.number).unwrap_or(i32::MAX);
            list.add_partition_offset(unit.topic.as_str(), number, Offset::End)?;
        }
        // Gone when the member is about to end.
        consumer.upgrade().map_or_else(
            || Ok(TopicPartitionList::new()),
            |consumer| consumer.offsets_for_times(list, ANSWER),
        )
    };
    if !stopped.is_empty()
        && let Ok(found) = asked()
    {
        for element in found.elements() {
            let unit = stopped.iter().find(|unit| {
                unit.topic.as_str() == element.topic()
                    && i32::try_from(unit.number) == Ok(element.partition())
            });
            if let (Some(unit), Offset::Offset(end)) = (unit, element.offset()) {
                ends.insert(unit.clone(), end);
            }
        }
    }
    member.has_ends(ends);
}

/// A client of its own, in no group.
struct Probe {
    client: BaseConsumer<Events>,
}

impl Probe {
    fn new(config: &ClientConfig) -> Option<Self> {
        match config.create_with_context(Events::default()) {
            Ok(client) => Some(Self { client }),
            Err(error) => {
                tracing::warn!(%error, "could not create the client that watches topics; will retry");
                None
            }
        }
    }

    /// Reads from partitions where the member is. None: neither a record nor an error came in time.
    fn read(
        &self,
        member: &Member,
        topic: &Topic,
        mut open: BTreeSet<i32>,
    ) -> KafkaResult<Option<Vec<Finding>>> {
        {
            // Short-lived: a list that is alive when the client ends makes it wait for ever.
            let mut list = TopicPartitionList::with_capacity(open.len());
            for number in &open {
                let unit = u32::try_from(*number).ok().map(|number| Unit { topic: topic.clone(), number });
                let next = unit.and_then(|unit| member.dispatch().next_of(&unit));
                let offset = next.map_or(Offset::Stored, Offset::Offset);
                list.add_partition_offset(topic.as_str(), *number, offset)?;
            }
            self.client.assign(&list)?;
        }
        let (start, mut end) = (Instant::now(), READ);
        let mut why: Option<ConsumerError> = None;
        while !open.is_empty() && start.elapsed() < end && !member.is_leaving() {
            match self.client.poll(POLL) {
                Some(Ok(record)) => drop(open.remove(&record.partition())),
                Some(Err(KafkaError::PartitionEOF(number))) => drop(open.remove(&number)),
                Some(Err(error)) => {
                    let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
                    let words = self.client.context().last().filter(|last| last.code == code);
                    let error = ConsumerError { code, words: words.map(|it| it.words).unwrap_or_default() };
                    if error.is_of_a_topic() {
                        why = Some(error);
                        end = end.min(start.elapsed() + REST);
                    }
                }
                None => {}
            }
        }
        self.client.unassign()?;
        let Some((_, words)) = why.and_then(|why| why.is_told()) else {
            return Ok(open.is_empty().then(Vec::new));
        };
        let numbers = open.into_iter().filter_map(|number| u32::try_from(number).ok());
        Ok(Some(numbers.map(|number| (Some(number), words.clone())).collect()))
    }
}

/// Result of a look at a topic.
struct Looked {
    findings: Vec<Finding>,
    /// True if it may not be described.
    hidden: bool,
}

/// Returns what is wrong with a topic. None: no broker told. `read`: tells what is wrong with those
/// of its partitions that have a leader.
fn look<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    topic: &Topic,
    read: impl FnOnce(BTreeSet<i32>) -> Option<Vec<Finding>>,
) -> Option<Looked> {
    let seen = |findings| Some(Looked { findings, hidden: false });
    let metadata = client.fetch_metadata(Some(topic.as_str()), ANSWER).ok()?;
    let found = metadata.topics().iter().find(|found| found.name() == topic.as_str())?;
    if let Some(code) = found.error() {
        let code = RDKafkaErrorCode::from(code);
        let hidden = code == RDKafkaErrorCode::TopicAuthorizationFailed;
        let (_, words) = ConsumerError::of(code).is_told()?;
        return Some(Looked { findings: vec![(None, words)], hidden });
    }
    if found.partitions().is_empty() {
        return seen(vec![(None, missing(topic.as_str()).message.to_string())]);
    }
    let (mut findings, led) = leaders(found);
    if !led.is_empty() {
        findings.extend(read(led)?);
    }
    // The same of all partitions is said once.
    let all = findings.len() == found.partitions().len();
    if all && findings.iter().all(|(_, words)| Some(words) == findings.first().map(|(_, words)| words)) {
        findings.truncate(1);
        findings.iter_mut().for_each(|(number, _)| *number = None);
    }
    seen(findings)
}

/// The partitions that have a leader, and what is said of the others.
fn leaders(topic: &MetadataTopic) -> (Vec<Finding>, BTreeSet<i32>) {
    let (mut findings, mut led) = (Vec::new(), BTreeSet::new());
    for partition in topic.partitions() {
        if partition.leader() >= 0 {
            led.insert(partition.id());
        } else {
            let words = "the partition has no leader; check the brokers of its replicas".to_owned();
            findings.push((u32::try_from(partition.id()).ok(), words));
        }
    }
    (findings, led)
}
