//! The thread of a member: it polls, so that however slow handlers are, the broker does not take the
//! member for dead.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outbox_contract::backend::{Delivery, Unit};
use outbox_contract::{TransportError, TransportErrorKind};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;

use super::{Member, MemberContext, number};
use crate::consumer_error::ConsumerError;
use crate::dispatch::Flow;

/// Time for which the thread waits for a record before it looks at anything else.
const POLL: Duration = Duration::from_millis(100);
/// The same, while partitions are held back that may go on at any time.
const SHORT_POLL: Duration = Duration::from_millis(5);
/// Maximum number of records that are read before the thread looks at anything else.
const RUN: usize = 500;

/// The thread of a member, from its first poll until it has left.
pub(crate) fn run(member: &Member, consumer: Arc<BaseConsumer<MemberContext>>) {
    while !member.is_leaving() {
        let wait = if member.dispatch().has_stopped() { SHORT_POLL } else { POLL };
        let mut next = consumer.poll(wait);
        for _ in 0..RUN {
            match next {
                Some(Ok(record)) => push(member, &consumer, &record),
                Some(Err(error)) => fail(member, &consumer, &error),
                None => break,
            }
            next = consumer.poll(Duration::ZERO);
        }
        if let Some(last) = next {
            match last {
                Ok(record) => push(member, &consumer, &record),
                Err(error) => fail(member, &consumer, &error),
            }
        }
        let flow = member.dispatch().flow();
        steer(&consumer, &flow);
        member.commit_starts(&consumer);
    }
    // Whoever still asks hears so.
    member.dispatch().end();
    member.wake.notify_one();
    // A commit may still be under way elsewhere. The end of the client is here, as it blocks and
    // calls back. It has left the group when this thread ends: whoever closes waits for that, and
    // may end the process.
    let mut shared = Some(consumer);
    while let Some(consumer) = shared.take() {
        match Arc::try_unwrap(consumer) {
            Ok(last) => drop(last),
            Err(consumer) => {
                drop(consumer.poll(SHORT_POLL));
                shared = Some(consumer);
            }
        }
    }
    let mut dispatch = member.dispatch();
    let all = dispatch.owned();
    dispatch.revoke(&all);
    drop(dispatch);
    member.wake.notify_one();
}

fn push(member: &Member, consumer: &BaseConsumer<MemberContext>, record: &BorrowedMessage<'_>) {
    let Some(unit) = member.unit(record.topic(), record.partition()) else { return };
    let (message, origin) = crate::record::read(record, &unit.topic);
    let next = member.dispatch().next_of(&unit);
    member.begun().came(&unit, next, record.offset());
    let mut dispatch = member.dispatch();
    let flow = dispatch.push(&unit, record.offset(), |tag| Delivery::new(tag, message, origin));
    if let Some(millis) = record.timestamp().to_millis() {
        dispatch.written(&unit, record.offset(), millis);
    }
    drop(dispatch);
    member.wake.notify_one();
    match flow {
        Some(Flow::Back(unit, offset)) => go_back(member, consumer, &unit, offset),
        Some(flow) => steer(consumer, &[flow]),
        None => {}
    }
}

/// Seeks back to what the log of a partition still has and is not finished. By itself the client
/// goes on at the cut, and the next commit would pass the rest.
fn go_back(member: &Member, consumer: &BaseConsumer<MemberContext>, unit: &Unit, offset: i64) {
    tracing::warn!(topic = %unit.topic, partition = unit.number, offset, "the log of a partition was truncated; its unfinished messages are read again");
    // Not waited for: from now on nothing comes that was fetched before.
    let sought = consumer.seek(unit.topic.as_str(), number(unit), Offset::Offset(offset), Duration::ZERO);
    if let Err(error) = sought {
        // Going on would leave it out.
        let words = "the log of a partition was truncated, and the client can't seek back; subscribe again";
        let error = TransportError::new(TransportErrorKind::Other, "next", words).with_source(error);
        member.give_up(error);
    }
}

/// Tells the client what to fetch. The lists are short-lived: one that is alive when the client
/// ends makes it wait for ever.
fn steer(consumer: &BaseConsumer<MemberContext>, flow: &[Flow]) {
    let (mut stop, mut go) = (TopicPartitionList::new(), TopicPartitionList::new());
    for step in flow {
        let (list, unit) = match step {
            Flow::Stop(unit) => (&mut stop, unit),
            Flow::Go(unit) => (&mut go, unit),
            // Done where the record came.
            Flow::Back(..) => continue,
        };
        list.add_partition(unit.topic.as_str(), number(unit));
    }
    let stopped = if stop.count() > 0 { consumer.pause(&stop) } else { Ok(()) };
    let going = if go.count() > 0 { consumer.resume(&go) } else { Ok(()) };
    if let Err(error) = stopped.and(going) {
        tracing::warn!(%error, "could not pause or resume partitions");
    }
}

fn fail(member: &Member, consumer: &BaseConsumer<MemberContext>, error: &KafkaError) {
    let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
    if matches!(error, KafkaError::MessageConsumptionFatal(_)) {
        // The code of the event only says that there is one.
        let (code, words) = consumer.client().fatal_error().unwrap_or_else(|| (code, error.to_string()));
        return member.give_up(ConsumerError { code, words }.told_at_the_end());
    }
    let words = member.events.last().filter(|last| last.code == code).map(|last| last.words);
    let consumer_error = ConsumerError { code, words: words.unwrap_or_default() };
    if consumer_error.is_of_a_topic() {
        member.doubt(&consumer_error);
        // While none of the topics may be described, there are no others that go on.
        if !(consumer_error.is_of_the_group() && member.sees_nothing.load(Ordering::Acquire)) {
            return;
        }
    }
    match consumer_error.told() {
        Some(problem) => {
            member.dispatch().fail(problem, consumer_error.is_over_with_a_record());
            member.wake.notify_one();
        }
        None => tracing::debug!(%error, "transient error; librdkafka retries by itself"),
    }
}
