//! Knowledge of topics: the number of partitions of each; and, where nothing was confirmed, why.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outbox_contract::backend::Unavailable;
use outbox_contract::{Failure, Topic, TransportError};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, OwnedResourceSpecifier, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{IsError as _, KafkaError};
use rdkafka::metadata::{Metadata, MetadataPartition};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::connection_error::{Cause, ConnectionError, kind_of};
use crate::gapless::Gapless;
use crate::produce_error::{ProduceError, meaning, missing, not_enough_replicas};

/// Time for which a count of partitions is believed. As long as the Java client does
/// (`metadata.max.age.ms`), so that both see added partitions at about the same time.
const FRESH: Duration = Duration::from_secs(300);

/// Maximum number of topics whose settings are looked at.
const MAX_LOOKED_AT: usize = 50;

/// Time after which other brokers are asked too: a broker that is well answers within milliseconds.
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// A topic as the broker describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) partitions: i32,
    /// Number of replicas that are in step where they are the fewest.
    pub(crate) fewest_in_step: usize,
    /// Partitions without a leader.
    pub(crate) leaderless: Vec<i32>,
    /// Partitions with a leader that have replicas out of step.
    pub(crate) lagging: Vec<i32>,
    /// Number of copies where they are the fewest.
    pub(crate) copies: usize,
    /// Number of brokers that live.
    pub(crate) brokers: usize,
}

/// Settings of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Number of copies that must be in step before a message is confirmed.
    pub(crate) needed_in_step: usize,
    /// A copy that is behind may become the leader.
    pub(crate) unclean: bool,
    /// The most bytes of a record batch, if the broker tells.
    pub(crate) max_message_bytes: Option<usize>,
}

/// Settings as the broker told them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// Those of each topic; topics of which it told nothing are left out.
    pub(crate) settings: HashMap<Topic, Settings>,
    /// True if the user may not see those of some topic.
    pub(crate) refused: bool,
}

/// The brokers, as one of them told last. Empty: none did.
#[derive(Debug, Default)]
struct Brokers {
    addresses: String,
    /// The number of one of them.
    one: Option<i32>,
}

/// Asks the broker about topics.
#[derive(Debug)]
pub(crate) struct Topics {
    config: Arc<Config>,
    /// The client that asks. It is never retired.
    client: Arc<Gapless>,
    counts: Mutex<HashMap<Topic, (i32, Instant)>>,
    brokers: Arc<Mutex<Brokers>>,
    /// Dangers that were warned of.
    warned: Mutex<BTreeSet<String>>,
}

/// Reason why a topic is unavailable.
pub(crate) type Absent = (Unavailable, Failure);

impl Topics {
    pub(crate) fn new(config: &Arc<Config>, client: &Arc<Gapless>) -> Self {
        Self {
            config: Arc::clone(config),
            client: Arc::clone(client),
            counts: Mutex::default(),
            brokers: Arc::default(),
            warned: Mutex::default(),
        }
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Topic, (i32, Instant)>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of partitions of a topic, if it is known.
    pub(crate) fn known(&self, topic: &Topic) -> Option<i32> {
        self.counts().get(topic).filter(|(_, since)| since.elapsed() < FRESH).map(|(count, _)| *count)
    }

    /// Returns the number of partitions of a topic: asks the broker, for so long at most.
    pub(crate) async fn partitions(&self, topic: &Topic, limit: Duration) -> Result<i32, Absent> {
        if let Some(count) = self.known(topic) {
            return Ok(count);
        }
        let described = self.describe(topic, limit).await?;
        self.counts().insert(topic.clone(), (described.partitions, Instant::now()));
        Ok(described.partitions)
    }

    /// Forgets what is known of a topic: it may have been deleted or made anew.
    pub(crate) fn forget(&self, topic: &Topic) {
        self.counts().remove(topic);
    }

    /// Why nothing was confirmed of a topic in time: None when all of it looks well.
    pub(crate) async fn diagnose(&self, topic: &Topic, limit: Duration) -> Option<Absent> {
        let described = match self.describe(topic, limit).await {
            Ok(described) => described,
            Err(absent) => return Some(absent),
        };
        if !described.leaderless.is_empty() {
            let words = format!("a partition of {topic} has no leader; check its brokers");
            return Some((Unavailable::Topic, Failure::new("no-leader", words)));
        }
        let needed = self.needed_in_step(topic, limit).await;
        (described.fewest_in_step < needed).then(|| (Unavailable::Topic, not_enough_replicas(topic.as_str())))
    }

    /// Checks that the broker answers.
    pub(crate) async fn check(&self, operation: &'static str, limit: Duration) -> Result<(), TransportError> {
        // Any topic will do; this one is on every broker that has consumers, and an answer that it
        // is not there is an answer.
        let Ok(topic) = Topic::new("__consumer_offsets") else { return Ok(()) };
        match self.describe(&topic, limit).await {
            Ok(_) | Err((Unavailable::Topic, _)) => Ok(()),
            Err((Unavailable::Route, failure)) => {
                Err(TransportError::new(kind_of(&failure.class), operation, failure.message))
            }
        }
    }

    /// Asks the broker what a topic is, for so long at most.
    pub(crate) async fn describe(&self, topic: &Topic, limit: Duration) -> Result<Described, Absent> {
        let (client, name, brokers) = (Arc::clone(&self.client), topic.clone(), Arc::clone(&self.brokers));
        let mut answer = pin!(question(move || ask(&client, &brokers, name.as_str(), limit)));
        let first_wait = FIRST_WAIT.min(limit / 4);
        tokio::select! {
            biased;
            answer = &mut answer => return answer,
            trouble = self.client.lasting_trouble() => return Err(absent_by(&trouble)),
            () = tokio::time::sleep(first_wait) => {}
        }
        // A client asks the broker that it used last, again and again: that one alone may be
        // silent.
        let (config, name) = (self.config_of_others(), topic.clone());
        let others = question(move || ask_others(&config, name.as_str(), limit.saturating_sub(first_wait)));
        let others = async {
            match others.await {
                Err((Unavailable::Route, _)) => std::future::pending().await,
                answer => answer,
            }
        };
        tokio::select! {
            biased;
            answer = answer => answer,
            answer = others => answer,
            trouble = self.client.lasting_trouble() => Err(absent_by(&trouble)),
        }
    }

    /// Of a client that connects to all brokers there are, and asks the one that lets it in first.
    fn config_of_others(&self) -> ClientConfig {
        let mut config = self.config.admin();
        let brokers = self.brokers.lock().unwrap_or_else(PoisonError::into_inner);
        if !brokers.addresses.is_empty() {
            config.set("bootstrap.servers", brokers.addresses.as_str());
        }
        config.set("enable.sparse.connections", "false");
        config
    }

    /// Returns the number of replicas that must be in step before the broker takes anything. 1
    /// where it does not say.
    async fn needed_in_step(&self, topic: &Topic, limit: Duration) -> usize {
        let told = self.settings(std::slice::from_ref(topic), limit).await;
        told.settings.get(topic).map_or(1, |settings| settings.needed_in_step)
    }

    /// Returns settings of topics, as far as the broker tells them.
    pub(crate) async fn settings(&self, topics: &[Topic], limit: Duration) -> Told {
        let asked: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic.as_str())).collect();
        let mut told = Told::default();
        for resource in self.configs(&asked, limit).await {
            let OwnedResourceSpecifier::Topic(name) = &resource.specifier else { continue };
            let Some(topic) = topics.iter().find(|topic| topic.as_str() == name) else { continue };
            // The client leaves out the error of a single topic, mostly that the right is missing.
            if resource.entries.is_empty() {
                told.refused = true;
                continue;
            }
            let value = |name| resource.get(name).and_then(|entry| entry.value.clone());
            let number = |name| value(name).and_then(|it| it.parse().ok());
            let settings = Settings {
                needed_in_step: number("min.insync.replicas").unwrap_or(1),
                unclean: value("unclean.leader.election.enable").is_some_and(|it| it == "true"),
                max_message_bytes: number("max.message.bytes"),
            };
            told.settings.insert(topic.clone(), settings);
        }
        told
    }

    /// Returns true if the broker makes topics that a client asks for. None: it does not tell.
    pub(crate) async fn makes_topics(&self, limit: Duration) -> Option<bool> {
        let one = self.brokers.lock().unwrap_or_else(PoisonError::into_inner).one?;
        let told = self.configs(&[ResourceSpecifier::Broker(one)], limit).await;
        let broker = told.first()?;
        broker.get("auto.create.topics.enable")?.value.as_deref()?.parse().ok()
    }

    /// Asks for configurations. Empty: there was no answer.
    async fn configs(&self, asked: &[ResourceSpecifier<'_>], limit: Duration) -> Vec<ConfigResource> {
        if asked.is_empty() {
            return Vec::new();
        }
        let admin: Result<AdminClient<DefaultClientContext>, KafkaError> = self.config.admin().create();
        let Ok(admin) = admin else { return Vec::new() };
        let options = AdminOptions::new().request_timeout(Some(limit));
        let told = admin.describe_configs(asked, &options).await.unwrap_or_default();
        // The end of a client blocks.
        drop(tokio::task::spawn_blocking(move || drop(admin)));
        told.into_iter().flatten().collect()
    }

    /// Warns of settings of the topics in use under which messages can be lost that were confirmed:
    /// of each once, and again after it was over.
    pub(crate) async fn look_at_settings(&self, limit: Duration) {
        let topics: Vec<Topic> = self.counts().keys().take(MAX_LOOKED_AT).cloned().collect();
        if topics.is_empty() {
            return;
        }
        let told = self.settings(&topics, limit).await;
        let mut found = BTreeSet::new();
        for (topic, settings) in &told.settings {
            if let Ok(described) = self.describe(topic, limit).await {
                let dangers = settings.dangers(described.copies).into_iter();
                found.extend(dangers.map(|danger| format!("topic {topic}: {}", danger.text())));
            }
        }
        let before = std::mem::replace(
            &mut *self.warned.lock().unwrap_or_else(PoisonError::into_inner),
            found.clone(),
        );
        for danger in found.difference(&before) {
            tracing::warn!("messages that Kafka has confirmed can be lost: {danger}");
        }
    }
}

/// Asks in a thread, since a client's question blocks to its end: no task must wait for that, not
/// even the end of a program.
async fn question(
    ask: impl FnOnce() -> Result<Described, Absent> + Send + 'static,
) -> Result<Described, Absent> {
    let not_asked = |why: &dyn std::fmt::Display| {
        Err((Unavailable::Route, Failure::new("broker-unavailable", format!("not asked for: {why}"))))
    };
    let (tell, told) = oneshot::channel();
    let thread = std::thread::Builder::new().name("outbox-kafka-question".to_owned());
    // The caller may have gone: then no task waits for the answer.
    match thread.spawn(move || drop(tell.send(ask()))) {
        Ok(_) => told.await.unwrap_or_else(|error| not_asked(&error)),
        Err(error) => not_asked(&error),
    }
}

fn ask(
    client: &Gapless,
    brokers: &Mutex<Brokers>,
    topic: &str,
    limit: Duration,
) -> Result<Described, Absent> {
    let metadata =
        client.client().fetch_metadata(Some(topic), limit).map_err(|error| unreachable(client, &error))?;
    client.answered();
    let all: Vec<String> =
        metadata.brokers().iter().map(|broker| format!("{}:{}", broker.host(), broker.port())).collect();
    let one = metadata.brokers().first().map(|broker| broker.id());
    *brokers.lock().unwrap_or_else(PoisonError::into_inner) = Brokers { addresses: all.join(","), one };
    described(&metadata, topic)
}

fn ask_others(config: &ClientConfig, topic: &str, limit: Duration) -> Result<Described, Absent> {
    let client: Result<AdminClient<DefaultClientContext>, KafkaError> = config.create();
    let metadata = client.and_then(|client| client.inner().fetch_metadata(Some(topic), limit));
    let metadata = metadata.map_err(|error| silent(&error))?;
    described(&metadata, topic)
}

fn described(metadata: &Metadata, topic: &str) -> Result<Described, Absent> {
    let absent = |code: RDKafkaRespErr| match meaning(RDKafkaErrorCode::from(code), topic) {
        ProduceError::Unavailable(what, failure) => (what, failure),
        ProduceError::Unknown(failure) | ProduceError::MayBeRejected(failure) => {
            (Unavailable::Topic, failure)
        }
    };
    let Some(found) = metadata.topics().iter().find(|it| it.name() == topic) else {
        return Err((Unavailable::Topic, missing(topic)));
    };
    if let Some(code) = found.error().filter(|code| code.is_error()) {
        return Err(absent(code));
    }
    let partitions = found.partitions();
    if partitions.is_empty() {
        return Err((Unavailable::Topic, missing(topic)));
    }
    let of = |is: &dyn Fn(&MetadataPartition) -> bool| {
        partitions.iter().filter(|it| is(it)).map(MetadataPartition::id).collect()
    };
    Ok(Described {
        partitions: i32::try_from(partitions.len()).unwrap_or(i32::MAX),
        fewest_in_step: partitions.iter().map(|it| it.isr().len()).min().unwrap_or_default(),
        leaderless: of(&|it| it.leader() < 0),
        lagging: of(&|it| it.leader() >= 0 && it.isr().len() < it.replicas().len()),
        copies: partitions.iter().map(|it| it.replicas().len()).min().unwrap_or_default(),
        brokers: metadata.brokers().len(),
    })
}

/// Why the broker gave no answer.
fn unreachable(client: &Gapless, error: &KafkaError) -> Absent {
    match client.trouble() {
        Some(trouble) => absent_by(&trouble),
        None => silent(error),
    }
}

fn silent(error: &KafkaError) -> Absent {
    let words = format!("{}: {error}", Cause::Other.remedy());
    (Unavailable::Route, Failure::new(Cause::Other.class(), words))
}

fn absent_by(trouble: &ConnectionError) -> Absent {
    let cause = trouble.cause();
    let words = format!("{}; librdkafka says: {}", cause.remedy(), trouble.words);
    (Unavailable::Route, Failure::new(cause.class(), words))
}
