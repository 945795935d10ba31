//! Knowledge of topics: the number of partitions of each; and, where nothing was confirmed, why.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outbox_contract::backend::Unavailable;
use outbox_contract::{Failure, Topic, TransportError};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, OwnedResourceSpecifier, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{IsError as _, KafkaError};
use rdkafka::metadata::Metadata;
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
struct Described {
    partitions: i32,
    /// Number of replicas that are in step where they are the fewest.
    fewest_in_step: usize,
    /// A partition without a leader.
    leaderless: bool,
    /// Number of copies where they are the fewest.
    copies: usize,
}

/// Settings of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settings {
    /// Number of copies that must be in step before a message is confirmed.
    needed_in_step: usize,
    /// A copy that is behind may become the leader.
    unclean: bool,
}

impl Settings {
    /// Ways in which confirmed messages of a topic with so many copies can be lost.
    fn dangers(self, topic: &Topic, copies: usize) -> Vec<String> {
        let mut dangers = Vec::new();
        if copies > 1 && self.needed_in_step < 2 {
            dangers.push(format!(
                "topic {topic} has {copies} replicas, and confirms a message that only one of them has: set min.insync.replicas to 2"
            ));
        }
        if self.unclean {
            dangers.push(format!(
                "topic {topic} may elect a replica that is out of sync as its leader: set unclean.leader.election.enable to false"
            ));
        }
        dangers
    }
}

/// Asks the broker about topics.
#[derive(Debug)]
pub(crate) struct Topics {
    config: Arc<Config>,
    /// The client that asks. It is never retired.
    client: Arc<Gapless>,
    counts: Mutex<HashMap<Topic, (i32, Instant)>>,
    /// The addresses of all brokers, as one of them told last. Empty: none did.
    brokers: Arc<Mutex<String>>,
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
        if described.leaderless {
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

    async fn describe(&self, topic: &Topic, limit: Duration) -> Result<Described, Absent> {
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
        if !brokers.is_empty() {
            config.set("bootstrap.servers", brokers.as_str());
        }
        config.set("enable.sparse.connections", "false");
        config
    }

    /// Returns the number of replicas that must be in step before the broker takes anything. 1
    /// where it does not say.
    async fn needed_in_step(&self, topic: &Topic, limit: Duration) -> usize {
        let settings = self.settings(std::slice::from_ref(topic), limit).await;
        settings.get(topic).map_or(1, |settings| settings.needed_in_step)
    }

    /// Returns settings of topics; those that the broker does not tell are left out.
    async fn settings(&self, topics: &[Topic], limit: Duration) -> HashMap<Topic, Settings> {
        let admin: Result<AdminClient<DefaultClientContext>, KafkaError> = self.config.admin().create();
        let Ok(admin) = admin else { return HashMap::new() };
        let options = AdminOptions::new().request_timeout(Some(limit));
        let asked: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic.as_str())).collect();
        let told = admin.describe_configs(&asked, &options).await.unwrap_or_default();
        // The end of a client blocks.
        drop(tokio::task::spawn_blocking(move || drop(admin)));
        let mut settings = HashMap::new();
        for resource in told.into_iter().flatten() {
            let OwnedResourceSpecifier::Topic(name) = &resource.specifier else { continue };
            let Some(topic) = topics.iter().find(|topic| topic.as_str() == name) else { continue };
            let value = |name| resource.get(name).and_then(|entry| entry.value.clone());
            let needed_in_step = value("min.insync.replicas").and_then(|it| it.parse().ok()).unwrap_or(1);
            let unclean = value("unclean.leader.election.enable").is_some_and(|it| it == "true");
            settings.insert(topic.clone(), Settings { needed_in_step, unclean });
        }
        settings
    }

    /// Warns of settings of the topics in use under which messages can be lost that were confirmed:
    /// of each once, and again after it was over.
    pub(crate) async fn look_at_settings(&self, limit: Duration) {
        let topics: Vec<Topic> = self.counts().keys().take(MAX_LOOKED_AT).cloned().collect();
        if topics.is_empty() {
            return;
        }
        let settings = self.settings(&topics, limit).await;
        let mut found = BTreeSet::new();
        for (topic, settings) in &settings {
            if let Ok(described) = self.describe(topic, limit).await {
                found.extend(settings.dangers(topic, described.copies));
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

fn ask(client: &Gapless, brokers: &Mutex<String>, topic: &str, limit: Duration) -> Result<Described, Absent> {
    let metadata =
        client.client().fetch_metadata(Some(topic), limit).map_err(|error| unreachable(client, &error))?;
    client.answered();
    let all: Vec<String> =
        metadata.brokers().iter().map(|broker| format!("{}:{}", broker.host(), broker.port())).collect();
    *brokers.lock().unwrap_or_else(PoisonError::into_inner) = all.join(",");
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
    Ok(Described {
        partitions: i32::try_from(partitions.len()).unwrap_or(i32::MAX),
        fewest_in_step: partitions.iter().map(|it| it.isr().len()).min().unwrap_or_default(),
        leaderless: partitions.iter().any(|it| it.leader() < 0),
        copies: partitions.iter().map(|it| it.replicas().len()).min().unwrap_or_default(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_dangerous_only_where_there_are_copies_to_lose_it_to() {
        let dangers = |needed_in_step, unclean, copies| {
            Settings { needed_in_step, unclean }.dangers(&"orders".parse().unwrap(), copies).len()
        };
        assert_eq!((dangers(1, false, 1), dangers(2, false, 3)), (0, 0));
        assert_eq!((dangers(1, false, 3), dangers(1, true, 1), dangers(1, true, 3)), (1, 1, 2));
    }
}
