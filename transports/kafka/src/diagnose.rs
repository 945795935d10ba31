//! Examination of the broker for topics: topics that do not exist, replicas, limits, and settings
//! under which confirmed messages are lost.
//!
//! What a topic is and what it is set to is asked as for publishing ([`Topics`]). The judgement is
//! pure. Topics with the same finding share one: a broker with a bad default has it for all.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use outbox_contract::admin::{Diagnosis, DiagnosisKind};
use outbox_contract::backend::Unavailable;
use outbox_contract::{Topic, TransportError};

use crate::connection_error::kind_of;
use crate::topics::{Described, Settings, Topics};

/// Number of topics that are asked about at once.
const AT_ONCE: usize = 16;
/// Maximum number of topics that a finding names.
const MAX_NAMED: usize = 5;

/// Something wrong with a topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Found {
    /// It does not exist. `made_by_name`: the broker makes topics that a client asks for.
    Missing { made_by_name: Option<bool> },
    /// The user may not see it, and so may not write to it.
    NotAuthorized,
    /// It can't be published to, and why.
    Unavailable(String),
    /// These partitions have no leader.
    Leaderless(Vec<i32>),
    /// A partition has fewer replicas in sync than the broker wants before it takes a message.
    TooFewInSync { in_sync: usize, needed: usize },
    /// It never has as many replicas in sync as the broker wants.
    TooFewReplicas { replicas: usize, needed: usize },
    /// It takes less than the transport sends.
    SmallBatches { takes: usize, sent: usize },
    /// These partitions have replicas that are behind, or away.
    Lagging(Vec<i32>),
    /// There is one replica, and there are brokers for more.
    OneReplica { brokers: usize },
    /// A message is confirmed that one of several replicas has.
    OneConfirms { replicas: usize },
    /// A replica that is behind may become the leader.
    Unclean,
    /// The user may not see its settings.
    Hidden,
    /// The broker did not tell its settings.
    Silent,
}

impl Found {
    pub(crate) const fn kind(&self) -> DiagnosisKind {
        match self {
            Self::Missing { .. }
            | Self::NotAuthorized
            | Self::Unavailable(_)
            | Self::Leaderless(_)
            | Self::TooFewInSync { .. }
            | Self::TooFewReplicas { .. }
            | Self::SmallBatches { .. } => DiagnosisKind::Delivery,
            Self::Lagging(_) | Self::OneReplica { .. } | Self::OneConfirms { .. } | Self::Unclean => {
                DiagnosisKind::Durability
            }
            Self::Hidden | Self::Silent => DiagnosisKind::Unseen,
        }
    }

    /// Returns the text behind the names of the topics and a colon.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Missing { made_by_name: None } => "messages wait".to_owned(),
            Self::Missing { made_by_name: Some(made) } => format!(
                "messages wait (auto.create.topics.enable is {made}; a relay creates no topic in any case)"
            ),
            Self::NotAuthorized => "this user is not authorized to write: messages wait".to_owned(),
            Self::Unavailable(why) => why.clone(),
            Self::Leaderless(of) => format!("no leader of {}: messages wait", partitions(of)),
            Self::TooFewInSync { in_sync, needed } => format!(
                "a partition has {in_sync} in-sync replicas, and min.insync.replicas is {needed}: the broker takes no message for it"
            ),
            Self::TooFewReplicas { replicas, needed } => format!(
                "replication factor {replicas}, and min.insync.replicas is {needed}: the broker never takes a message"
            ),
            Self::SmallBatches { takes, sent } => format!(
                "max.message.bytes is {takes}, and the transport accepts messages of up to {sent} bytes: larger ones fail when they are \
                 published"
            ),
            Self::Lagging(of) => {
                format!("under-replicated: replicas of {} are out of sync or away", partitions(of))
            }
            Self::OneReplica { brokers } => format!(
                "replication factor 1 in a cluster of {brokers} brokers: confirmed messages are lost with one disk, and wait while its \
                 broker is away"
            ),
            Self::OneConfirms { replicas } => format!(
                "replication factor {replicas} and min.insync.replicas 1: a message is confirmed that only one replica has"
            ),
            Self::Unclean => {
                "unclean.leader.election.enable is true: a replica that is out of sync may become the leader, and confirmed messages are \
                 lost"
                    .to_owned()
            }
            Self::Hidden => {
                "this user may not see the settings (min.insync.replicas, max.message.bytes, unclean.leader.election.enable)"
                    .to_owned()
            }
            Self::Silent => "the broker did not tell the settings".to_owned(),
        }
    }

    /// Returns the remedy. `topic`: the one that it is of, or one of them.
    pub(crate) fn remedy(&self, topic: &Topic) -> String {
        let set = |setting: &str| {
            format!(
                "set {setting}: kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {setting}"
            )
        };
        match self {
            Self::Missing { .. } => format!(
                "create it with the partitions and replicas that it needs: kafka-topics.sh --create --topic {topic}; or correct the name \
                 where messages are written"
            ),
            Self::NotAuthorized => format!(
                "grant Write, which includes Describe: kafka-acls.sh --add --allow-principal User:NAME --operation Write --topic {topic}"
            ),
            Self::Unavailable(_) => {
                format!("see the broker's log; kafka-topics.sh --describe --topic {topic} as an administrator")
            }
            Self::Leaderless(_) => format!(
                "start the brokers of their replicas: kafka-topics.sh --describe --unavailable-partitions --topic {topic}"
            ),
            Self::TooFewInSync { .. } | Self::Lagging(_) => format!(
                "start the brokers that are away, or find out why they are slow: kafka-topics.sh --describe --under-replicated-partitions \
                 --topic {topic}"
            ),
            Self::TooFewReplicas { replicas, .. } => format!(
                "add replicas with kafka-reassign-partitions.sh, or {}",
                set(&format!("min.insync.replicas={replicas}"))
            ),
            Self::SmallBatches { sent, .. } => {
                format!("{}; or lower max_message_bytes of the transport", set(&format!("max.message.bytes={sent}")))
            }
            Self::OneReplica { .. } => {
                "add replicas with kafka-reassign-partitions.sh (three, with min.insync.replicas=2), and set default.replication.factor of \
                 the brokers"
                    .to_owned()
            }
            Self::OneConfirms { .. } => set("min.insync.replicas=2"),
            Self::Unclean => set("unclean.leader.election.enable=false"),
            Self::Hidden => format!(
                "grant DescribeConfigs: kafka-acls.sh --add --allow-principal User:NAME --operation DescribeConfigs --topic {topic}"
            ),
            Self::Silent => "repeat it later, and see the broker's log".to_owned(),
        }
    }
}

/// Returns a list of partitions for people.
fn partitions(numbers: &[i32]) -> String {
    let named: Vec<String> = numbers.iter().take(MAX_NAMED).map(i32::to_string).collect();
    let noun = if numbers.len() == 1 { "partition" } else { "partitions" };
    format!("{noun} {}{}", named.join(", "), more(numbers.len()))
}

fn more(all: usize) -> String {
    if all > MAX_NAMED { format!(" and {} more", all - MAX_NAMED) } else { String::new() }
}

/// Examines topics. `sent`: the most bytes of a message that the transport accepts.
///
/// # Errors
///
/// No broker answers, or it refuses this user everything.
pub(crate) async fn find(
    topics: &Topics,
    wanted: &[Topic],
    sent: usize,
    limit: Duration,
) -> Result<Vec<Diagnosis>, TransportError> {
    let mut found: BTreeMap<Found, Vec<&Topic>> = BTreeMap::new();
    let (mut described, mut missing) = (Vec::new(), Vec::new());
    let asking: Vec<_> = wanted.iter().map(|topic| topics.describe(topic, limit)).collect();
    let mut asked = stream::iter(asking).buffered(AT_ONCE).zip(stream::iter(wanted));
    while let Some((answer, topic)) = asked.next().await {
        match answer {
            Ok(it) => described.push((topic, it)),
            Err((Unavailable::Route, failure)) => {
                return Err(TransportError::new(kind_of(&failure.class), "diagnose", failure.message));
            }
            Err((Unavailable::Topic, failure)) if failure.class == "topic-missing" => missing.push(topic),
            Err((Unavailable::Topic, failure)) if failure.class == "not-authorized" => {
                found.entry(Found::NotAuthorized).or_default().push(topic);
            }
            Err((Unavailable::Topic, failure)) => {
                found.entry(Found::Unavailable(failure.message)).or_default().push(topic);
            }
        }
    }
    if !missing.is_empty() {
        let made_by_name = topics.makes_topics(limit).await;
        found.insert(Found::Missing { made_by_name }, missing);
    }
    let names: Vec<Topic> = described.iter().map(|(topic, _)| (*topic).clone()).collect();
    let told = topics.settings(&names, limit).await;
    for (topic, described) in &described {
        let of_settings = match told.settings.get(*topic) {
            Some(settings) => settings.found(described, sent),
            None if told.refused => vec![Found::Hidden],
            None => vec![Found::Silent],
        };
        for finding in described.found().into_iter().chain(of_settings) {
            found.entry(finding).or_default().push(topic);
        }
    }
    Ok(found.iter().map(|(found, topics)| diagnosis(found, topics)).collect())
}

fn diagnosis(found: &Found, topics: &[&Topic]) -> Diagnosis {
    let named: Vec<&str> = topics.iter().take(MAX_NAMED).map(|topic| topic.as_str()).collect();
    let (noun, verb) =
        if topics.len() == 1 { ("topic", " does not exist") } else { ("topics", " do not exist") };
    let verb = if matches!(found, Found::Missing { .. }) { verb } else { "" };
    let text = format!("{noun} {}{}{verb}: {}", named.join(", "), more(topics.len()), found.text());
    let remedy = topics.first().map_or_else(String::new, |topic| found.remedy(topic));
    Diagnosis::new(found.kind(), text, remedy)
}

impl Described {
    /// Judges what the broker tells of a topic. Pure.
    fn found(&self) -> Vec<Found> {
        let mut found = Vec::new();
        if !self.leaderless.is_empty() {
            found.push(Found::Leaderless(self.leaderless.clone()));
        }
        if !self.lagging.is_empty() {
            found.push(Found::Lagging(self.lagging.clone()));
        }
        if self.copies == 1 && self.brokers > 1 {
            found.push(Found::OneReplica { brokers: self.brokers });
        }
        found
    }
}

impl Settings {
    /// Judges the settings of a topic. Pure.
    fn found(self, described: &Described, sent: usize) -> Vec<Found> {
        let Self { needed_in_step: needed, max_message_bytes, .. } = self;
        let Described { copies: replicas, fewest_in_step: in_sync, .. } = *described;
        let mut found = self.dangers(replicas);
        if replicas < needed {
            found.push(Found::TooFewReplicas { replicas, needed });
        } else if in_sync < needed && described.leaderless.is_empty() {
            found.push(Found::TooFewInSync { in_sync, needed });
        }
        if let Some(takes) = max_message_bytes.filter(|takes| *takes < sent) {
            found.push(Found::SmallBatches { takes, sent });
        }
        found
    }

    /// Ways in which confirmed messages of a topic with so many replicas can be lost.
    pub(crate) fn dangers(self, replicas: usize) -> Vec<Found> {
        let mut dangers = Vec::new();
        if replicas > 1 && self.needed_in_step < 2 {
            dangers.push(Found::OneConfirms { replicas });
        }
        // With one replica too: others may be added.
        if self.unclean {
            dangers.push(Found::Unclean);
        }
        dangers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: usize = 1_048_588;

    /// A topic of three replicas, all in sync, with the settings that the book names.
    fn healthy() -> (Described, Settings) {
        let described = Described {
            partitions: 2,
            fewest_in_step: 3,
            leaderless: Vec::new(),
            lagging: Vec::new(),
            copies: 3,
            brokers: 3,
        };
        (described, Settings { needed_in_step: 2, unclean: false, max_message_bytes: Some(SENT) })
    }

    fn found(change: impl FnOnce(&mut Described, &mut Settings)) -> Vec<Found> {
        let (mut described, mut settings) = healthy();
        change(&mut described, &mut settings);
        described.found().into_iter().chain(settings.found(&described, SENT)).collect()
    }

    #[test]
    fn a_healthy_topic_has_no_finding() {
        assert_eq!(found(|_, _| {}), []);
        // One broker of its own, with the broker's defaults: there is nothing to copy to.
        let alone = found(|described, settings| {
            (described.copies, described.fewest_in_step, described.brokers) = (1, 1, 1);
            settings.needed_in_step = 1;
        });
        assert_eq!(alone, []);
    }

    #[test]
    fn settings_are_dangerous_by_the_number_of_replicas() {
        let dangers = |needed_in_step, unclean, replicas| {
            Settings { needed_in_step, unclean, max_message_bytes: None }.dangers(replicas)
        };
        assert_eq!((dangers(1, false, 1), dangers(2, false, 3)), (vec![], vec![]));
        assert_eq!(dangers(1, true, 1), [Found::Unclean]);
        let all = vec![Found::OneConfirms { replicas: 3 }, Found::Unclean];
        assert_eq!((dangers(2, true, 3), dangers(1, true, 3)), (vec![Found::Unclean], all));
    }

    #[test]
    fn each_fault_of_a_topic_is_told_once() {
        assert_eq!(found(|described, _| described.lagging = vec![1]), [Found::Lagging(vec![1])]);
        let one_left = found(|described, _| described.fewest_in_step = 1);
        assert_eq!(one_left, [Found::TooFewInSync { in_sync: 1, needed: 2 }]);
        let gone = found(|described, _| (described.fewest_in_step, described.leaderless) = (0, vec![0]));
        assert_eq!(gone, [Found::Leaderless(vec![0])]);
        let never = found(|described, _| (described.copies, described.fewest_in_step) = (1, 1));
        assert_eq!(
            never,
            [Found::OneReplica { brokers: 3 }, Found::TooFewReplicas { replicas: 1, needed: 2 }]
        );
        let small = found(|_, settings| settings.max_message_bytes = Some(SENT - 1));
        assert_eq!(small, [Found::SmallBatches { takes: SENT - 1, sent: SENT }]);
        assert_eq!(found(|_, settings| settings.max_message_bytes = None), [], "it is not known");
    }

    #[test]
    fn topics_with_the_same_fault_share_a_finding() {
        let topics: Vec<Topic> = (0..7).map(|at| Topic::new(format!("t{at}")).unwrap()).collect();
        let topics: Vec<&Topic> = topics.iter().collect();
        let one = diagnosis(&Found::Unclean, &topics[..1]);
        assert!(one.text.starts_with("topic t0: unclean.leader.election.enable is true"), "{one:?}");
        let all = diagnosis(&Found::Leaderless((0..9).collect()), &topics);
        let text = "topics t0, t1, t2, t3, t4 and 2 more: no leader of partitions 0, 1, 2, 3, 4 and 4 more: ";
        assert!(all.text.starts_with(text), "{all:?}");
        let missing = Found::Missing { made_by_name: None };
        assert_eq!(diagnosis(&missing, &topics[..1]).text, "topic t0 does not exist: messages wait");
        assert_eq!(diagnosis(&missing, &topics[..2]).text, "topics t0, t1 do not exist: messages wait");
    }
}
