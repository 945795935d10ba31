//! Positions at which a member begins to read its partitions, where the broker has none for its
//! group any more.
//!
//! By itself the client begins such a partition at its first or its last record, and says nothing.
//! So what the group has committed is looked at before partitions are taken up: an offset that is
//! missing is that of a new consumer, or it expired or was deleted; one that lies before the log
//! was trimmed away.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use outbox_contract::backend::{Loss, LossCause, OffsetReset, Subscription, Unit};
use outbox_contract::{Timestamp, Topic};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaResult;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

/// Time limit of a question.
const ANSWER: Duration = Duration::from_secs(5);
/// Time limit of a question for the range of partitions.
const RANGE: Duration = Duration::from_secs(2);
/// Time for which the broker is asked: the coordinator of the group, or the leader of a partition,
/// may move.
const ASKED_FOR: Duration = Duration::from_secs(30);
/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(500);
/// Number of looks at an offset that lies behind the end: a new leader may not know yet how far its
/// followers are.
const LOOKS: u32 = 4;

/// Past of the consumer, and the position to take without it.
#[derive(Clone, Debug)]
pub(crate) struct Positions {
    group: String,
    handled: BTreeMap<Topic, Timestamp>,
    reset: OffsetReset,
    /// A consumer that is new begins with what is published from now on.
    from_end: bool,
}

/// Beginning of a partition whose position is not where the group left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begin {
    pub(crate) unit: Unit,
    /// The offset. `None`: nothing of it is read.
    pub(crate) at: Option<Offset>,
    /// The loss. `None`: the consumer is new there.
    pub(crate) loss: Option<Loss>,
}

/// A partition, as the broker describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    /// The offset that the group has committed.
    committed: Option<i64>,
    /// Beginning and end of the log, if its leader tells.
    range: Option<(i64, i64)>,
    /// The first record since the consumer handled anything of the topic.
    since: Option<i64>,
}

impl Positions {
    pub(crate) fn new(subscription: &Subscription, from_end: bool) -> Self {
        Self {
            group: subscription.consumer.to_string(),
            handled: subscription.handled.clone(),
            reset: subscription.offset_reset,
            from_end,
        }
    }

    /// Finds the partitions that do not begin where the group left them. Blocks until the broker
    /// answers, or until `is_over` returns true.
    pub(crate) fn find<C: ConsumerContext>(
        &self,
        consumer: &BaseConsumer<C>,
        units: &[Unit],
        is_over: impl Fn() -> bool,
    ) -> KafkaResult<Vec<Begin>> {
        let start = Instant::now();
        loop {
            match self.try_find(consumer, units) {
                Err(error) if start.elapsed() < ASKED_FOR && !is_over() => {
                    tracing::debug!(%error, "could not read the committed offsets of the group; will retry");
                    std::thread::sleep(PAUSE);
                }
                found => return found,
            }
        }
    }

    fn try_find<C: ConsumerContext>(
        &self,
        consumer: &BaseConsumer<C>,
        units: &[Unit],
    ) -> KafkaResult<Vec<Begin>> {
        let answer = consumer.committed_offsets(list(units, Offset::Invalid)?, ANSWER)?;
        let committed = offsets(&answer);
        // Of these the client finds out by itself what is wrong.
        let told = |unit: &&Unit| {
            answer.find_partition(unit.topic.as_str(), number(unit)).is_some_and(|it| it.error().is_ok())
        };
        let units: Vec<Unit> = units.iter().filter(told).cloned().collect();
        let mut seen = self.look(consumer, &units, &committed)?;
        for _ in 1..LOOKS {
            let beyond = |(_, it): (&Unit, &Seen)| {
                it.range.is_some_and(|(_, high)| it.committed.is_some_and(|at| at > high))
            };
            if !seen.iter().any(beyond) {
                break;
            }
            std::thread::sleep(PAUSE);
            seen = self.look(consumer, &units, &committed)?;
        }
        let mut known = BTreeSet::new();
        let missing: BTreeSet<&Topic> =
            seen.iter().filter(|(_, it)| it.committed.is_none()).map(|(unit, _)| &unit.topic).collect();
        for topic in missing.into_iter().filter(|topic| self.handled.contains_key(*topic)) {
            if self.has_any(consumer, topic)? {
                known.insert(topic.clone());
            }
        }
        let begin =
            |(unit, seen): (&Unit, &Seen)| self.begin(unit.clone(), *seen, known.contains(&unit.topic));
        Ok(seen.iter().filter_map(begin).collect())
    }

    fn look<C: ConsumerContext>(
        &self,
        consumer: &BaseConsumer<C>,
        units: &[Unit],
        committed: &Offsets,
    ) -> KafkaResult<BTreeMap<Unit, Seen>> {
        // The client asks each leader once, for all of its partitions. One without a leader is no
        // reason to wait for ever.
        let ask =
            |list| consumer.offsets_for_times(list, RANGE).map(|answer| offsets(&answer)).unwrap_or_default();
        let low = ask(list(units, Offset::Beginning)?);
        let high = if low.is_empty() { Offsets::new() } else { ask(list(units, Offset::End)?) };
        let mut times = TopicPartitionList::new();
        if self.reset == OffsetReset::LastHandled {
            for unit in units.iter().filter(|unit| !committed.contains_key(&key(unit))) {
                let Some(last) = self.handled.get(&unit.topic) else { continue };
                let millis = Offset::Offset(last.as_micros().div_euclid(1_000).max(0));
                times.add_partition_offset(unit.topic.as_str(), number(unit), millis)?;
            }
        }
        let since = if times.count() > 0 { ask(times) } else { Offsets::new() };
        let seen = units.iter().map(|unit| {
            let of = |offsets: &Offsets| offsets.get(&key(unit)).copied();
            (
                unit.clone(),
                Seen { committed: of(committed), range: of(&low).zip(of(&high)), since: of(&since) },
            )
        });
        Ok(seen.collect())
    }

    /// Returns true if the group has an offset of any partition of a topic: then one without is
    /// new, or nothing was ever handled of it.
    fn has_any<C: ConsumerContext>(&self, consumer: &BaseConsumer<C>, topic: &Topic) -> KafkaResult<bool> {
        let metadata = consumer.fetch_metadata(Some(topic.as_str()), ANSWER)?;
        let found = metadata.topics().iter().find(|found| found.name() == topic.as_str());
        let mut all = TopicPartitionList::new();
        for partition in found.map(|found| found.partitions()).unwrap_or_default() {
            all.add_partition(topic.as_str(), partition.id());
        }
        Ok(!offsets(&consumer.committed_offsets(all, ANSWER)?).is_empty())
    }

    /// Decides where a partition begins. `None`: where the group left it. `is_known`: the group has
    /// offsets of other partitions of the topic.
    fn begin(&self, unit: Unit, seen: Seen, is_known: bool) -> Option<Begin> {
        let Seen { committed, range, since } = seen;
        let low = range.map_or(Offset::Beginning, |(low, _)| Offset::Offset(low));
        let high = range.map_or(Offset::End, |(_, high)| Offset::Offset(high));
        let loss = match (committed, range) {
            (None, _) if is_known || !self.handled.contains_key(&unit.topic) => {
                return Some(Begin { unit, at: Some(if self.from_end { high } else { low }), loss: None });
            }
            (None, _) => Loss::new(
                unit.clone(),
                LossCause::Position,
                format!(
                    "the group {} has no offset of it any more, though the consumer has handled messages of the topic: its offsets expired \
                     (offsets.retention.minutes) or were deleted",
                    self.group
                ),
            ),
            (Some(at), Some((low, _))) if at < low => Loss::new(
                unit.clone(),
                LossCause::Trimmed,
                format!("the log now begins at offset {low} (retention or a deletion), and the group {} is at {at}", self.group),
            )
            .with_messages(low.abs_diff(at)),
            (Some(at), Some((_, high))) if at > high => Loss::new(
                unit.clone(),
                LossCause::Truncated,
                format!(
                    "the log ends at offset {high}, and the group {} is at {at}: the log was cut off, or the topic was made anew",
                    self.group
                ),
            ),
            (Some(_), _) => return None,
        };
        let (at, then) = match self.reset {
            OffsetReset::None => (None, self.remedy()),
            // What the client knows of the log's epochs finds the cut.
            _ if loss.cause == LossCause::Truncated => {
                (Some(Offset::Stored), "it is read from where it was cut off".to_owned())
            }
            OffsetReset::Latest => (Some(high), "it is read from its end".to_owned()),
            // The rest of a trimmed log is new.
            OffsetReset::LastHandled if committed.is_none() && range.is_some() => {
                // Nothing was written since: then the end.
                let at = since.map_or(high, Offset::Offset);
                (Some(at), "it is read from the hour in which the topic was last handled".to_owned())
            }
            OffsetReset::Earliest | OffsetReset::LastHandled => {
                (Some(low), "it is read from its beginning".to_owned())
            }
        };
        let mut loss = loss;
        loss.words = format!("{}; {then}", loss.words);
        Some(Begin { unit, at, loss: Some(loss) })
    }

    fn remedy(&self) -> String {
        format!(
            "nothing is read of it. Set an offset with kafka-consumer-groups --reset-offsets --group {} while the consumer is stopped, or configure \
             offset_reset (earliest, latest, last_handled), and start it again",
            self.group
        )
    }
}

fn key(unit: &Unit) -> (String, i32) {
    (unit.topic.as_str().to_owned(), number(unit))
}

/// The partition of a unit, as the client has it.
fn number(unit: &Unit) -> i32 {
    i32::try_from(unit.number).unwrap_or(i32::MAX)
}

fn list(units: &[Unit], offset: Offset) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::with_capacity(units.len());
    for unit in units {
        list.add_partition_offset(unit.topic.as_str(), number(unit), offset)?;
    }
    Ok(list)
}

/// Offsets of partitions.
type Offsets = BTreeMap<(String, i32), i64>;

/// The offsets of an answer; those that are none are left out.
fn offsets(answer: &TopicPartitionList) -> Offsets {
    let well = answer.elements().into_iter().filter(|element| element.error().is_ok());
    let known = well.filter_map(|element| match element.offset() {
        Offset::Offset(offset) => Some(((element.topic().to_owned(), element.partition()), offset)),
        _ => None,
    });
    known.collect()
}

#[cfg(test)]
mod tests {

    use super::*;

    fn unit() -> Unit {
        Unit { topic: Topic::new("orders").unwrap(), number: 3 }
    }

    fn positions(reset: OffsetReset, has_handled: bool) -> Positions {
        let handled = if has_handled {
            BTreeMap::from([(unit().topic, Timestamp::default())])
        } else {
            BTreeMap::new()
        };
        let subscription = Subscription::new("billing", [unit().topic]).unwrap();
        Positions::new(&subscription.with_handled(handled, reset), false)
    }

    fn begin(
        reset: OffsetReset,
        has_handled: bool,
        committed: Option<i64>,
    ) -> Option<(Option<Offset>, Option<LossCause>)> {
        let seen = Seen { committed, range: Some((10, 20)), since: Some(15) };
        let begin = positions(reset, has_handled).begin(unit(), seen, false)?;
        Some((begin.at, begin.loss.map(|loss| loss.cause)))
    }

    #[test]
    fn only_a_consumer_that_has_handled_something_can_have_lost_its_offset() {
        let at = |offset| Some(Offset::Offset(offset));
        for reset in [OffsetReset::None, OffsetReset::Latest] {
            assert_eq!(begin(reset, false, None), Some((at(10), None)));
            assert_eq!(begin(reset, true, Some(10)), None);
            assert_eq!(begin(reset, true, Some(20)), None);
        }
        let lost = Some(LossCause::Position);
        assert_eq!(begin(OffsetReset::None, true, None), Some((None, lost)));
        assert_eq!(begin(OffsetReset::Earliest, true, None), Some((at(10), lost)));
        assert_eq!(begin(OffsetReset::Latest, true, None), Some((at(20), lost)));
        assert_eq!(begin(OffsetReset::LastHandled, true, None), Some((at(15), lost)));
        let seen = Seen { committed: None, range: Some((10, 20)), since: None };
        let added = positions(OffsetReset::None, true).begin(unit(), seen, true).unwrap();
        assert_eq!((added.at, added.loss), (at(10), None), "a partition that was added, or never used");
        let idle = positions(OffsetReset::LastHandled, true).begin(unit(), seen, false).unwrap();
        assert_eq!(idle.at, at(20), "nothing was written since");
    }

    #[test]
    fn an_offset_that_is_not_in_the_log_is_lost_for_a_new_consumer_too() {
        let at = |offset| Some(Offset::Offset(offset));
        let (trimmed, cut) = (Some(LossCause::Trimmed), Some(LossCause::Truncated));
        for has_handled in [true, false] {
            assert_eq!(begin(OffsetReset::None, has_handled, Some(9)), Some((None, trimmed)));
            assert_eq!(begin(OffsetReset::Earliest, has_handled, Some(9)), Some((at(10), trimmed)));
            assert_eq!(begin(OffsetReset::LastHandled, has_handled, Some(9)), Some((at(10), trimmed)));
            assert_eq!(begin(OffsetReset::None, has_handled, Some(21)), Some((None, cut)));
            assert_eq!(
                begin(OffsetReset::Earliest, has_handled, Some(21)),
                Some((Some(Offset::Stored), cut))
            );
        }
        let seen = Seen { committed: Some(4), range: Some((10, 20)), since: None };
        let loss = positions(OffsetReset::None, true).begin(unit(), seen, false).unwrap().loss.unwrap();
        assert_eq!(loss.messages, Some(6));
        assert!(
            loss.words.contains("kafka-consumer-groups") && loss.words.contains("last_handled"),
            "{loss}"
        );
    }
}
