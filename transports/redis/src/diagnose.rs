//! Examination of the server for topics: memory, settings under which messages or leases are lost,
//! and keys that hold something else.
//!
//! What a check refuses (a version that is too old, a policy that evicts streams, replicas or a
//! disk that can't confirm) is left to it. On a cluster each primary is asked for itself. The
//! judgement is pure.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_contract::Topic;
use outbox_contract::admin::Diagnosis;
use outbox_contract::backend::Unit;
use redis::{Pipeline, Value};

use crate::config::Config;
use crate::connection::{Link, list, refusal, text};
use crate::durability::field;
use crate::error::{Error, Reach};
use crate::routing::Routing;
use crate::topics::Topics;

/// Part of `maxmemory`, in percent, from which a server is about to be full.
const FULL: u64 = 90;

/// Maximum number of keys that are asked about at once.
const AT_ONCE: usize = 2_000;

/// Maximum number of topics or keys that a finding names.
const MAX_NAMED: usize = 5;

/// Examines the server, and the keys of these topics.
pub(crate) async fn find(
    link: &Link,
    config: &Config,
    routing: &Routing,
    topics: &Topics,
    wanted: &[Topic],
) -> Result<Vec<Diagnosis>, Error> {
    let mut question = Pipeline::new();
    for section in ["memory", "persistence", "replication"] {
        question.cmd("INFO").arg(section);
    }
    for setting in ["save", "appendfsync"] {
        question.cmd("CONFIG").arg("GET").arg(setting);
    }
    let mut found = Vec::new();
    for (node, answers) in link.ask_all(&question, config.request_timeout).await? {
        let of_node = Figures::read(&answers)?.diagnoses(config.confirm.disk);
        let of_node = of_node.into_iter().map(|it| match &node {
            Some(node) => Diagnosis::new(it.kind, format!("node {node}: {}", it.text), it.remedy),
            None => it,
        });
        found.extend(of_node);
    }
    found.extend(keys(link, config, routing, topics, wanted).await?);
    Ok(found)
}

/// State of a server, as it tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Figures {
    used: u64,
    /// 0: no limit.
    max: u64,
    policy: String,
    replicas: u64,
    append_only: bool,
    /// Rules of snapshots, and when the log is on the disk. None: hidden from this user.
    settings: Option<(String, String)>,
}

impl Figures {
    fn read(answers: &[Value]) -> Result<Self, Error> {
        let [memory, persistence, replication, save, fsync] = answers else {
            return Err(answers.iter().find_map(refusal).unwrap_or_else(|| Error::unexpected("INFO")));
        };
        let (memory, persistence, replication) = (text(memory)?, text(persistence)?, text(replication)?);
        let number = |info: &str, name| field(info, name).and_then(|it| it.parse().ok()).unwrap_or_default();
        Ok(Self {
            used: number(&memory, "used_memory"),
            max: number(&memory, "maxmemory"),
            policy: field(&memory, "maxmemory_policy").unwrap_or("noeviction").to_owned(),
            replicas: number(&replication, "connected_slaves"),
            append_only: field(&persistence, "aof_enabled") == Some("1"),
            settings: setting(save)?.zip(setting(fsync)?),
        })
    }

    /// Judges the state. Pure.
    fn diagnoses(&self, confirms_disk: bool) -> Vec<Diagnosis> {
        let Self { used, max, policy, replicas, append_only, settings } = self;
        let mut found = Vec::new();
        if *max > 0 && used.saturating_mul(100) >= max.saturating_mul(FULL) {
            found.push(Diagnosis::delivery(
                format!(
                    "used_memory is {} of maxmemory {}: when it is full, nothing can be published",
                    Diagnosis::size(*used),
                    Diagnosis::size(*max)
                ),
                "find the consumer that lags (XINFO GROUPS of its streams), or raise maxmemory: CONFIG SET maxmemory",
            ));
        }
        if *max > 0 && policy.starts_with("volatile-") {
            found.push(Diagnosis::delivery(
                format!(
                    "maxmemory-policy is {policy}: a full server evicts the leases of consumers, and their units change hands"
                ),
                "CONFIG SET maxmemory-policy noeviction, and in redis.conf",
            ));
        }
        let Some((save, fsync)) = settings else {
            found.push(Diagnosis::unseen(
                "this user may not read settings (save, appendfsync)",
                "grant it: ACL SETUSER NAME +config|get",
            ));
            return found;
        };
        if !append_only && save.is_empty() && *replicas == 0 {
            found.push(Diagnosis::durability(
                "appendonly is no, save is empty, and no replica is connected: a restart loses every message that is not consumed",
                "CONFIG SET appendonly yes, and in redis.conf",
            ));
        }
        if confirms_disk && *append_only && fsync == "no" {
            found.push(Diagnosis::delivery(
                "appendfsync is no, and the transport waits for the disk (confirm_disk): the server tells of no fsync in time",
                "CONFIG SET appendfsync everysec (or always), and in redis.conf",
            ));
        }
        found
    }
}

/// Reads the answer to `CONFIG GET` of one setting. None: this user may not ask.
fn setting(answer: &Value) -> Result<Option<String>, Error> {
    match refusal(answer) {
        // A server that does not know the command hides its settings as well.
        Some(_) => Ok(None),
        None => list(answer)?.get(1).map(text).transpose(),
    }
}

/// Finds topics that can't be used, and keys of topics and streams that hold something else.
async fn keys(
    link: &Link,
    config: &Config,
    routing: &Routing,
    topics: &Topics,
    wanted: &[Topic],
) -> Result<Vec<Diagnosis>, Error> {
    let of_topics = wanted.iter().map(|topic| routing.topic(topic)).collect();
    let of_topics = types(link, config.request_timeout, of_topics).await?;
    let mut found = of_types(&of_topics, "hash", &config.prefix);
    let (mut missing, mut there) = (Vec::new(), Vec::new());
    for (topic, (_, kind)) in wanted.iter().zip(&of_topics) {
        match kind.as_deref() {
            Some("hash") => there.push(topic),
            // With a topic that is made by its first message this is no fault.
            Some("none") if !topics.are_made_by_name() => missing.push(topic.to_string()),
            _ => {}
        }
    }
    if let Some(first) = missing.first() {
        found.push(Diagnosis::delivery(
            format!("{} not exist: messages wait", named("topic", &missing, "does", "do")),
            format!("create it with create_topic({first:?}), or correct the name where messages are written"),
        ));
    }
    let mut streams = Vec::new();
    for (topic, units) in there.iter().zip(topics.look(link, &there).await?) {
        match units {
            Ok(units) => streams.extend(
                (0..units.unwrap_or_default())
                    .map(|number| routing.stream(&Unit { topic: (*topic).clone(), number })),
            ),
            Err(error) if error.reach != Reach::Topic => return Err(error),
            Err(error) => found.push(Diagnosis::delivery(
                error.words,
                format!("HSET {:?} units with the number that it was made with", routing.topic(topic)),
            )),
        }
    }
    let of_streams = types(link, config.request_timeout, streams).await?;
    found.extend(of_types(&of_streams, "stream", &config.prefix));
    Ok(found)
}

/// A key with what is in it. None: this user may not ask.
type Typed = (String, Option<String>);

/// Asks for the types of keys.
async fn types(link: &Link, within: Duration, keys: Vec<String>) -> Result<Vec<Typed>, Error> {
    let mut types = Vec::with_capacity(keys.len());
    for keys in keys.chunks(AT_ONCE) {
        let mut question = Pipeline::new();
        for key in keys {
            question.cmd("TYPE").arg(key);
        }
        for (key, answer) in keys.iter().zip(link.request(&question, within).await?) {
            let kind = match refusal(&answer) {
                Some(refused) if refused.reach == Reach::Topic => None,
                Some(refused) => return Err(refused),
                None => Some(text(&answer)?),
            };
            types.push((key.clone(), kind));
        }
    }
    Ok(types)
}

/// Judges the types of keys, which are to be this one. Pure.
fn of_types(types: &[Typed], wanted: &str, prefix: &str) -> Vec<Diagnosis> {
    let (mut others, mut hidden) = (BTreeMap::<&str, Vec<String>>::new(), Vec::new());
    for (key, kind) in types {
        match kind.as_deref() {
            Some("none") => {}
            Some(kind) if kind == wanted => {}
            Some(kind) => others.entry(kind).or_default().push(key.clone()),
            None => hidden.push(key.clone()),
        }
    }
    let mut found = Vec::new();
    for (kind, keys) in others {
        let holds = named("key", &keys, "holds", "hold");
        found.push(Diagnosis::delivery(
            format!("{holds} a {kind}, where a {wanted} belongs: what is published to it waits"),
            format!("move it away: RENAME '{}' NAME; or choose another prefix", keys[0]),
        ));
    }
    if !hidden.is_empty() {
        found.push(Diagnosis::unseen(
            format!("{} hidden from this user", named("key", &hidden, "is", "are")),
            format!("let it read the keys of the prefix: ACL SETUSER NAME +type ~{prefix}:*"),
        ));
    }
    found
}

/// Names some of these things, with a verb: `topics a, b and 3 more do`.
fn named(noun: &str, names: &[String], one: &str, many: &str) -> String {
    let shown = names.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len() {
        1 => format!("{noun} {shown} {one}"),
        all if all > MAX_NAMED => format!("{noun}s {shown} and {} more {many}", all - MAX_NAMED),
        _ => format!("{noun}s {shown} {many}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server as it is without a line of configuration.
    fn healthy() -> Figures {
        let settings = Some(("3600 1 300 100 60 10000".to_owned(), "everysec".to_owned()));
        Figures { used: 1 << 20, policy: "noeviction".to_owned(), settings, ..Figures::default() }
    }

    fn texts(change: impl FnOnce(&mut Figures), confirms_disk: bool) -> String {
        let mut figures = healthy();
        change(&mut figures);
        let found = figures.diagnoses(confirms_disk);
        found.into_iter().map(|it| it.text).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_server_with_its_defaults_has_no_finding() {
        assert_eq!(texts(|_| {}, false), "");
        assert_eq!(texts(|it| it.max = 2 << 20, false), "", "half of it is free");
        assert_eq!(texts(|it| it.append_only = true, true), "");
    }

    #[test]
    fn a_server_that_is_about_to_be_full_or_evicts_leases_is_found() {
        let full = texts(|it| (it.used, it.max) = (90 << 20, 100 << 20), false);
        assert!(full.starts_with("used_memory is 90 MiB of maxmemory 100 MiB"), "{full}");
        assert_eq!(texts(|it| (it.used, it.max) = (89 << 20, 100 << 20), false), "");
        let volatile = |it: &mut Figures| it.policy = "volatile-lru".to_owned();
        assert_eq!(texts(volatile, false), "", "without a limit nothing is evicted");
        let evicting = texts(
            |it| {
                volatile(it);
                it.max = 1 << 30;
            },
            false,
        );
        assert!(evicting.starts_with("maxmemory-policy is volatile-lru"), "{evicting}");
    }

    #[test]
    fn a_server_that_keeps_nothing_is_found_unless_a_replica_does() {
        let nothing = |it: &mut Figures| it.settings = Some((String::new(), "no".to_owned()));
        assert!(texts(nothing, false).starts_with("appendonly is no, save is empty"));
        let others: [fn(&mut Figures); 2] = [|it| it.append_only = true, |it| it.replicas = 1];
        for other in others {
            let text = texts(
                |it| {
                    nothing(it);
                    other(it);
                },
                false,
            );
            assert_eq!(text, "");
        }
    }

    #[test]
    fn keys_that_hold_something_else_or_are_hidden_are_named() {
        let of = |kinds: &[Option<&str>]| {
            let types = kinds.iter().enumerate();
            let types: Vec<Typed> =
                types.map(|(at, kind)| (format!("k{at}"), kind.map(str::to_owned))).collect();
            of_types(&types, "stream", "outbox").into_iter().map(|it| it.text).collect::<Vec<_>>()
        };
        assert_eq!(of(&[Some("stream"), Some("none")]), [""; 0]);
        let one = of(&[Some("stream"), Some("string"), None]);
        assert_eq!(one[0], "key k1 holds a string, where a stream belongs: what is published to it waits");
        assert_eq!(one[1], "key k2 is hidden from this user");
        let many = of(&[Some("list"); 8]);
        assert!(many[0].starts_with("keys k0, k1, k2, k3, k4 and 3 more hold a list"), "{many:?}");
    }
}
