//! The member, as the client calls it back: its partitions, its log, its figures.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use outbox_contract::backend::Unit;
use outbox_contract::{TransportError, TransportErrorKind};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};

use super::{Member, number};
use crate::begun::reset_of;
use crate::lags::Known;

/// The member, as the client calls it back.
#[derive(Clone)]
pub(crate) struct MemberContext(pub(crate) Arc<Member>);

impl ClientContext for MemberContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, words: &str) {
        if let Some((topic, partition)) = reset_of(words)
            && let Some(unit) = self.0.unit(topic, partition)
        {
            self.0.begun().is_trimmed(unit);
        }
        self.0.events.log(level, facility, words);
    }

    fn stats(&self, statistics: Statistics) {
        self.0.measure(&statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.events.error(error, reason);
    }
}

impl ConsumerContext for MemberContext {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        error: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let changed = match error {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.assign(consumer, partitions),
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS => {
                self.pre_rebalance(consumer, &Rebalance::Revoke(partitions));
                match consumer.rebalance_protocol() {
                    RebalanceProtocol::Cooperative => consumer.incremental_unassign(partitions),
                    _ => consumer.unassign(),
                }
            }
            error => {
                tracing::warn!(error = %RDKafkaErrorCode::from(error), "a rebalance failed; librdkafka gives up all partitions");
                consumer.unassign()
            }
        };
        if let Err(error) = changed {
            let words = "could not assign or revoke partitions; subscribe again";
            self.0.give_up(TransportError::new(TransportErrorKind::Other, "next", words).with_source(error));
        }
    }

    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(partitions) = rebalance else { return };
        let member = &self.0;
        let units = member.units(partitions);
        member.let_finish(&units);
        let _committing = member.committing();
        // Of partitions that were lost nothing can be committed: somebody else has them.
        if !consumer.assignment_lost()
            && let Err(error) = member.commit_once(consumer)
        {
            tracing::warn!(%error, "offsets were not committed before partitions moved; finished messages are delivered again");
        }
        member.dispatch().revoke(&units);
        member.begun().give_up(&units);
        member.wake.notify_one();
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Assign(partitions) = rebalance else { return };
        let member = &self.0;
        // A partition that was stopped when it was last this member's still is, for the client.
        if let Err(error) = consumer.resume(partitions) {
            tracing::warn!(%error, "could not resume partitions after a rebalance; they may receive nothing");
        }
        let units = member.units(partitions);
        let begun = member.begun();
        let mut dispatch = member.dispatch();
        units.into_iter().filter(|unit| !begun.is_refused(unit)).for_each(|unit| dispatch.assign(unit));
    }
}

impl MemberContext {
    /// Takes up partitions, each where the group left it, or where that is lost, where it is
    /// configured.
    fn assign(&self, consumer: &BaseConsumer<Self>, partitions: &mut TopicPartitionList) -> KafkaResult<()> {
        let refused = self.0.take_up(consumer, partitions)?;
        match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_assign(partitions)?,
            _ => consumer.assign(partitions)?,
        }
        self.post_rebalance(consumer, &Rebalance::Assign(partitions));
        let mut held = TopicPartitionList::with_capacity(refused.len());
        for unit in &refused {
            held.add_partition(unit.topic.as_str(), number(unit));
        }
        if held.count() > 0 { consumer.pause(&held) } else { Ok(()) }
    }
}

impl Member {
    /// Measures what waits in each partition of this member, by what the client knows.
    fn measure(&self, statistics: &Statistics) {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let dispatch = self.dispatch();
        let mut known = Vec::new();
        for unit in dispatch.owned() {
            let topic = statistics.topics.get(unit.topic.as_str());
            let Some(it) = topic.and_then(|topic| topic.partitions.get(&number(&unit))) else { continue };
            let high = it.hi_offset.max(ends.get(&unit).copied().unwrap_or(-1));
            let next = dispatch.next_of(&unit).unwrap_or(it.next_offset).max(it.next_offset);
            if high < 0 || next < 0 {
                continue;
            }
            let (unfinished, written) = dispatch.unfinished(&unit).unzip();
            let known_of = Known { next, unfinished, written: written.flatten(), high, stable: it.ls_offset };
            known.push((unit, known_of));
        }
        drop(dispatch);
        let millis = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
        self.lags().measure(known, Instant::now(), i64::try_from(millis).unwrap_or(i64::MAX));
    }

    /// Decides where partitions begin that this member takes up: notes it in the list. Returns the
    /// units of which nothing is to be read.
    fn take_up(
        &self,
        consumer: &BaseConsumer<MemberContext>,
        partitions: &mut TopicPartitionList,
    ) -> KafkaResult<Vec<Unit>> {
        let units = self.units(partitions);
        let begins = self.positions.find(consumer, &units, || self.is_leaving())?;
        let mut refused = Vec::new();
        for begin in &begins {
            let at = begin.at.unwrap_or_else(|| {
                refused.push(begin.unit.clone());
                // It is held back there.
                Offset::End
            });
            partitions.set_partition_offset(begin.unit.topic.as_str(), number(&begin.unit), at)?;
        }
        self.begun().take_up(&units, begins);
        Ok(refused)
    }

    /// Commits where a new consumer begins.
    pub(super) fn commit_starts(&self, consumer: &BaseConsumer<MemberContext>) {
        if self.begun().starts(Instant::now()).is_empty() {
            return;
        }
        // Nothing that is finished is committed meanwhile, and put back by this.
        let _committing = self.committing();
        let starts = self.begun().starts(Instant::now());
        let mut list = TopicPartitionList::with_capacity(starts.len());
        for (unit, at) in &starts {
            // One that can't be in a list can't be committed either.
            let _ = list.add_partition_offset(unit.topic.as_str(), number(unit), Offset::Offset(*at));
        }
        let committed = consumer.commit(&list, CommitMode::Sync);
        self.begun().told(&starts, committed.is_ok(), Instant::now());
        if let Err(error) = committed {
            tracing::debug!(%error, "could not commit the start position of a new consumer; will retry");
        }
    }
}
