//! Examination of the broker, as far as AMQP tells: a resource alarm, the exchange, and the queues
//! of consumers that the transport was told of.
//!
//! AMQP does not tell to which queues an exchange routes, so a topic without a queue is found only
//! when it is published to. Nor does it tell of an alarm before something is published: so one
//! message goes to the default exchange, under the name of a queue that does not exist, and comes
//! back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use outbox_contract::admin::{Diagnosis, DiagnosisKind};
use outbox_contract::{MessageId, Topic, TransportErrorKind};
use tokio::time::timeout;

use crate::channel::Word;
use crate::channel_state::Wants;
use crate::config::{Config, Topology};
use crate::error::Fault;
use crate::frames::Publish;
use crate::inequivalent::Inequivalent;
use crate::publication::Answer;
use crate::refusals::{Fullness, look};
use crate::topology::{AT_ONCE, Declaration, Declares, check_publishing, prepare_queue, queues};
use crate::wire::Wire;

/// Maximum number of queues that a finding names.
const MAX_NAMED: usize = 5;

/// Text about a queue that the user may not look into, with the remedy.
const HIDDEN: &str = "this user may not inspect it; grant it the permission `configure`, or use Topology::Trusted and check the queue yourself";

/// Examines the broker, and the queues of these topics.
pub(crate) async fn find(
    wire: &Arc<Wire>,
    config: &Config,
    topics: &[Topic],
) -> Result<Vec<Diagnosis>, Fault> {
    let mut found = Vec::new();
    // Of a connection that is blocked the broker reads no question.
    if wire.blocked_by().is_none() {
        check_publishing(wire, config).await?;
        match config.topology {
            Topology::Declared => found.extend(full_queues(wire, config, topics).await),
            Topology::Checked => {
                found.extend(exchange(wire, config).await?);
                found.extend(of_queues(wire, config, topics).await?);
            }
            Topology::Trusted => found.extend(of_queues(wire, config, topics).await?),
        }
    }
    if let Some(reason) = alarm(wire, config).await? {
        found.push(Diagnosis::delivery(
            format!("a resource alarm ({reason}): the broker takes nothing from publishers"),
            "give it memory or disk, or raise vm_memory_high_watermark or lower disk_free_limit: rabbitmq-diagnostics alarms",
        ));
    }
    Ok(found)
}

/// Returns the reason why the broker takes nothing, if it does not.
async fn alarm(wire: &Arc<Wire>, config: &Config) -> Result<Option<String>, Fault> {
    if let Some(reason) = wire.blocked_by() {
        return Ok(Some(reason));
    }
    let silent = |_| Fault::silent(&config.address, "publishing", config.timeout);
    timeout(config.timeout, probe(wire)).await.map_err(silent)?
}

/// Publishes messages that reach no queue: two, since the broker blocks a connection for the first,
/// and may confirm that one before it says so.
async fn probe(wire: &Arc<Wire>) -> Result<Option<String>, Fault> {
    let mut channel = wire.confirming_channel().await?;
    for number in 0..2 {
        let publish = Publish {
            channel: channel.id(),
            exchange: "",
            routing_key: &format!("outbox-check-{}", MessageId::new()),
            payload: &[],
        };
        let mut bytes = Vec::new();
        let without_properties = |out: &mut Vec<u8>| {
            out.extend_from_slice(&[0, 0]);
            Ok(())
        };
        // Names and properties are as short as that.
        if publish.write(&mut bytes, channel.max_frame_bytes(), without_properties).is_err() {
            return Ok(None);
        }
        channel.send(bytes, vec![number]);
        let mut is_answered = false;
        while !is_answered {
            let answers = match channel.news(Wants::default()).await {
                Word::Answers(answers) => answers,
                Word::Blocked(reason) => return Ok(reason),
                Word::Room => continue,
            };
            for answer in answers {
                match answer {
                    Answer::Returned(_) => {}
                    Answer::Confirmed(_) | Answer::Refused(_) => is_answered = true,
                    // The broker blocks a connection before it looks at the rights of its user.
                    Answer::Broken(fault) if fault.kind == TransportErrorKind::NotPermitted => {
                        return Ok(wire.blocked_by());
                    }
                    Answer::Broken(fault) => return Err(fault),
                }
            }
        }
    }
    Ok(wire.blocked_by())
}

/// Looks what the exchange is, which somebody else made. Declaring one that is there changes
/// nothing: the broker names the first difference.
async fn exchange(connection: &impl Declares, config: &Config) -> Result<Vec<Diagnosis>, Fault> {
    let name = &config.exchange;
    let (mut kind, mut found) = ("direct", Vec::new());
    // Once more with the kind that it has.
    for _ in 0..2 {
        let declaration = Declaration::Exchange { name: name.clone(), kind, is_passive: false };
        let Err(fault) = connection.declare(format!("exchange {:?}", name.as_str()), declaration).await
        else {
            break;
        };
        if fault.kind == TransportErrorKind::NotPermitted {
            found.push(Diagnosis::unseen(
                format!("what exchange {:?} is: telling it needs the `configure` permission", name.as_str()),
                "grant it, or use Topology::Trusted and check the exchange yourself",
            ));
            break;
        }
        let Some(difference) = Inequivalent::read(&fault.to_string()) else { return Err(fault) };
        let is = difference.current.unwrap_or_default();
        found.extend(of_exchange(name.as_str(), &difference.argument, &is));
        let known = ["topic", "fanout", "headers"].into_iter().find(|known| *known == is);
        match known.filter(|_| difference.argument == "type") {
            Some(known) => kind = known,
            None => break,
        }
    }
    Ok(found)
}

/// Judges a difference between the exchange and a direct, durable one. Pure.
fn of_exchange(name: &str, argument: &str, is: &str) -> Option<Diagnosis> {
    let again = || format!("create it again as a direct, durable exchange, with its bindings: {name:?}");
    let said = |text: &str| format!("exchange {name:?} is {text}");
    Some(match (argument, is) {
        ("type", "fanout") => Diagnosis::delivery(
            said("a fanout exchange: every queue gets the messages of all topics"),
            again(),
        ),
        ("type", "headers") => {
            Diagnosis::delivery(said("a headers exchange, which does not route by topic"), again())
        }
        ("durable", "false") => Diagnosis::durability(
            said("not durable: it is gone with its bindings when the broker restarts"),
            again(),
        ),
        ("auto_delete", "true") => {
            Diagnosis::durability(said("deleted by itself, with its last binding (auto_delete)"), again())
        }
        _ => return None,
    })
}

/// Finds topics with a full queue, as far as their consumers and the limit are known.
async fn full_queues(wire: &Arc<Wire>, config: &Config, topics: &[Topic]) -> Vec<Diagnosis> {
    let partitions: BTreeSet<u32> = (0..config.partitions.0).collect();
    let mut found = Vec::new();
    for topic in topics.iter().filter(|topic| config.consumers.contains_key(*topic)) {
        if let Fullness::Full(why) = look(wire, config, topic, &partitions).await {
            let (text, remedy) = parted(&why.message);
            found.push(Diagnosis::delivery(text, remedy));
        }
    }
    found
}

/// Looks at the queues of known consumers of topics.
async fn of_queues(
    connection: &impl Declares,
    config: &Config,
    topics: &[Topic],
) -> Result<Vec<Diagnosis>, Fault> {
    let mut all = Vec::new();
    for topic in topics {
        for consumer in config.consumers.get(topic).into_iter().flatten() {
            all.extend(queues(config, consumer, topic)?);
        }
    }
    let looking: Vec<_> = all.iter().map(|queue| prepare_queue(connection, config, queue)).collect();
    let mut looked = stream::iter(looking).buffered(AT_ONCE).zip(stream::iter(&all));
    let mut found: BTreeMap<String, (DiagnosisKind, Vec<String>)> = BTreeMap::new();
    while let Some((result, queue)) = looked.next().await {
        let Err(fault) = result else { continue };
        if !fault.is_of_one_queue() {
            return Err(fault);
        }
        let label = format!("{:?}", queue.name.as_str());
        let (kind, why) = match fault.class {
            "not-authorized" => (DiagnosisKind::Unseen, HIDDEN.to_owned()),
            class => {
                let why = fault.own_words().replace(&format!("queue {label}"), "");
                let why = why.trim_start_matches([':', ' ']).to_owned();
                let loses = class == "queue-not-fit";
                (if loses { DiagnosisKind::Durability } else { DiagnosisKind::Delivery }, why)
            }
        };
        found.entry(why).or_insert_with(|| (kind, Vec::new())).1.push(label);
    }
    let diagnosis = |(why, (kind, queues)): (String, (DiagnosisKind, Vec<String>))| {
        let (text, remedy) = parted(&why);
        Diagnosis::new(kind, format!("{}: {text}", named(&queues)), remedy)
    };
    Ok(found.into_iter().map(diagnosis).collect())
}

/// Names some of these queues.
fn named(queues: &[String]) -> String {
    let shown = queues.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match queues.len() {
        1 => format!("queue {shown}"),
        all if all > MAX_NAMED => format!("queues {shown} and {} more", all - MAX_NAMED),
        _ => format!("queues {shown}"),
    }
}

/// Parts a text with a remedy behind it.
fn parted(words: &str) -> (&str, &str) {
    words.rsplit_once("; ").unwrap_or((words, "see the broker's log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_is_found_if_it_does_not_route_by_topic_or_does_not_last() {
        let kind = |argument, is| of_exchange("outbox", argument, is).map(|it| it.kind);
        assert_eq!(kind("type", "topic"), None, "keys without wildcards route as in a direct one");
        assert_eq!(kind("type", "x-consistent-hash"), None, "not known");
        assert_eq!(kind("alternate-exchange", "other"), None);
        for other in ["fanout", "headers"] {
            assert_eq!(kind("type", other), Some(DiagnosisKind::Delivery));
        }
        assert_eq!(kind("durable", "false"), Some(DiagnosisKind::Durability));
        assert_eq!(kind("auto_delete", "true"), Some(DiagnosisKind::Durability));
    }

    #[test]
    fn a_text_is_parted_from_its_remedy_and_many_queues_are_counted() {
        assert_eq!(parted("it is full; of old; start it"), ("it is full; of old", "start it"));
        assert_eq!(parted("alone").0, "alone");
        let queues: Vec<String> = (0..7).map(|at| format!("\"q{at}\"")).collect();
        assert_eq!(named(&queues[..1]), "queue \"q0\"");
        assert_eq!(named(&queues), "queues \"q0\", \"q1\", \"q2\", \"q3\", \"q4\" and 2 more");
    }
}
