//! Refusals that the batches of a transport share: gates of topics of which the broker refuses
//! messages, and which queue is full.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::stream::{self, StreamExt};
use lapin::types::ShortString;
use outbox_contract::{Failure, Topic};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::{Config, Topology};
use crate::gates::{Gates, Pass};
use crate::topology::AT_ONCE;
use crate::wire::Wire;

/// The topics of which something was refused.
pub(crate) struct Refusals {
    // A plain mutex: held for one step, never across an await.
    gates: Mutex<Gates>,
    /// Tells batches whose messages are held up that more may go, or nothing.
    changed: watch::Sender<()>,
    started: Instant,
}

/// Result of a look at the queues of a topic.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fullness {
    /// A queue takes no more; which one, and how much is in it.
    Full(Failure),
    /// Each takes more.
    Room,
    /// It can't be told: how much there is in them at least, as text.
    Unknown(Option<String>),
}

impl Refusals {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            gates: Mutex::new(Gates::new(config.first_pause, config.max_pause)),
            changed: watch::Sender::new(()),
            started: Instant::now(),
        }
    }

    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(crate) fn last(&self) -> u64 {
        self.gates().last_refusal()
    }

    pub(crate) fn wants_probe(&self, topic: &Topic) -> bool {
        self.gates().wants_probe(topic)
    }

    pub(crate) fn has_room(&self, topic: &Topic) {
        self.gates().has_room(topic);
    }

    pub(crate) fn pass(&self, topic: &Topic, since: u64) -> Pass {
        self.gates().pass(topic, since, self.started.elapsed())
    }

    pub(crate) fn confirmed(&self, topic: &Topic) {
        self.gates().confirmed(topic);
        self.changed.send_replace(());
    }

    /// Says whether this refusal closed the topic.
    pub(crate) fn refused(&self, topic: &Topic, was_counted: bool) -> bool {
        let closed = self.gates().refused(topic, was_counted, refusal(topic, None), self.started.elapsed());
        self.changed.send_replace(());
        closed
    }

    pub(crate) fn explained(&self, topic: &Topic, why: Failure) {
        self.gates().explained(topic, why);
    }

    pub(crate) fn left(&self, topic: &Topic) {
        self.gates().left(topic);
        self.changed.send_replace(());
    }

    pub(crate) fn why(&self, topic: &Topic) -> Failure {
        self.gates().why(topic).cloned().unwrap_or_else(|| refusal(topic, None))
    }

    fn gates(&self) -> MutexGuard<'_, Gates> {
        // A change is made in one step, or panics before it: what is there is whole.
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Failure of a topic of which a message was refused.
pub(crate) fn refusal(topic: &Topic, waiting: Option<&str>) -> Failure {
    let waiting = waiting.map_or_else(
        || "name its consumers to the transport to learn which one".to_owned(),
        |waiting| format!("messages waiting: {waiting}"),
    );
    Failure::new(
        "refused",
        format!(
            "the broker nacked a message of topic {topic}: one of its queues is full or unavailable ({waiting}); start its consumer, or raise the queue's limit"
        ),
    )
}

/// Asks the broker how full the queues of the topic's consumers are.
pub(crate) async fn look(
    wire: &Arc<Wire>,
    config: &Config,
    topic: &Topic,
    partitions: &BTreeSet<u32>,
) -> Fullness {
    let consumers = config.consumers.get(topic).into_iter().flatten();
    let names: Vec<_> = consumers
        .flat_map(|consumer| {
            partitions.iter().filter_map(|number| config.partitions.queue(consumer, topic, *number))
        })
        .collect();
    let asking: Vec<_> = names.into_iter().map(|name| ask(wire, name)).collect();
    let depths: Vec<_> = stream::iter(asking).buffered(AT_ONCE).collect().await;
    // Of queues that somebody else made the limit is not known.
    let limit = config.max_waiting.filter(|_| config.topology == Topology::Declared);
    judge(topic, depths, limit)
}

async fn ask(wire: &Arc<Wire>, name: ShortString) -> (ShortString, Option<u32>) {
    let waiting = wire.waiting_in(&name).await.map_err(|fault| {
        tracing::debug!(queue = name.as_str(), %fault, "could not read the depth of a queue");
    });
    (name, waiting.ok())
}

fn judge(topic: &Topic, mut depths: Vec<(ShortString, Option<u32>)>, limit: Option<u32>) -> Fullness {
    // So many at most are named.
    const MAX_NAMED: usize = 4;
    depths.sort_by_key(|(_, depth)| std::cmp::Reverse(*depth));
    // Once it was full, a quorum queue takes nothing before a fifth of it is empty.
    let is_full = |depth: u32| limit.is_some_and(|limit| depth >= (limit - limit / 5).max(1));
    let shown = |is_shown: &dyn Fn(u32) -> bool| {
        let known = depths.iter().filter_map(|(name, depth)| depth.map(|depth| (name.as_str(), depth)));
        let shown = known.filter(|(_, depth)| is_shown(*depth)).take(MAX_NAMED);
        shown.map(|(name, depth)| format!("{depth} in {name:?}")).collect::<Vec<_>>().join(", ")
    };
    match (limit, depths.first()) {
        (Some(limit), Some((_, Some(fullest)))) if is_full(*fullest) => {
            let words = format!(
                "topic {topic} has a full queue: messages waiting: {}, and max_waiting is {limit}; start its consumer, or raise max_waiting",
                shown(&is_full)
            );
            Fullness::Full(Failure::new("refused", words))
        }
        (Some(_), Some(_)) if depths.iter().all(|(_, depth)| depth.is_some()) => Fullness::Room,
        _ => Fullness::Unknown(Some(shown(&|_| true)).filter(|shown| !shown.is_empty())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queues_are_named_and_what_can_not_be_told_is_not_said() {
        let topic = Topic::new("orders").unwrap();
        let judge = |depths: &[(&str, Option<u32>)], limit| {
            let depths = depths.iter().map(|(name, depth)| (ShortString::from(*name), *depth));
            judge(&topic, depths.collect(), limit)
        };
        let Fullness::Full(why) = judge(&[("a:orders", Some(0)), ("b:orders", Some(12))], Some(10)) else {
            panic!("it is full");
        };
        assert!(why.message.contains("12 in \"b:orders\","), "{why}");
        assert_eq!(judge(&[("a:orders", Some(7))], Some(10)), Fullness::Room);
        assert!(matches!(judge(&[("a:orders", Some(8))], Some(10)), Fullness::Full(_)), "it was full before");
        assert_eq!(judge(&[("a:orders", Some(0))], Some(1)), Fullness::Room);
        assert_eq!(judge(&[], Some(10)), Fullness::Unknown(None));
        let depths = [("a:orders", None), ("b:orders", Some(3))];
        let waiting = "3 in \"b:orders\"".to_owned();
        assert_eq!(judge(&depths, Some(10)), Fullness::Unknown(Some(waiting.clone())));
        assert_eq!(judge(&depths[1..], None), Fullness::Unknown(Some(waiting)));
    }
}
