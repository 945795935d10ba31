//! The transport itself.

mod publishing;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use outbox_contract::admin::Diagnosis;
use outbox_contract::backend::flow::Window;
use outbox_contract::backend::{Deliveries, Outcomes, PublishBatch, Subscription, Transport, Unit};
use outbox_contract::{Consumer, Message, NameError, Rejection, Topic, TransportError, TransportErrorKind};
use redis::{Client, IntoConnectionInfo, Pipeline, ProtocolVersion, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};

use crate::config::{Config, RedisTransportBuilder, Start};
use crate::connection::{Link, Server, limit, refusal};
use crate::deliveries::{Member, RedisDeliveries};
use crate::diagnose;
use crate::durability::{self, Durability};
use crate::epochs::KnownEpochs;
use crate::error::{Error, Reach};
use crate::lease::Lease;
use crate::past::Past;
use crate::record;
use crate::routing::Routing;
use crate::scripts::Script;
use crate::stream_id::StreamId;
use crate::topics::Topics;
use crate::trimming::Trimming;

/// Publishes to and consumes from Redis Streams. Clones share everything.
///
/// It connects with its first call, and spawns tasks for subscriptions: use it within a Tokio
/// runtime.
#[derive(Clone)]
pub struct RedisTransport {
    shared: Arc<SharedTransport>,
}

struct SharedTransport {
    config: Config,
    routing: Routing,
    server: Arc<Server>,
    publishing: Link,
    control: Arc<Link>,
    topics: Topics,
    epochs: KnownEpochs,
    durability: Durability,
    trimming: Trimming,
}

impl fmt::Debug for RedisTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisTransport").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl RedisTransport {
    /// Returns the builder of a transport to the server at this address:
    /// `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS.
    ///
    /// For `rediss://`, rustls needs a provider of cryptography. If the process has none, `build`
    /// installs that of `ring` for the whole process: install yours first, if you have another one.
    pub fn builder(url: impl Into<String>) -> RedisTransportBuilder {
        RedisTransportBuilder::new(url.into())
    }

    /// Creates a topic if it does not exist, with the number of units of this transport. Returns
    /// its number of units. The topic is text or a [`Topic`].
    ///
    /// # Errors
    ///
    /// An invalid name, or the errors of [`check`](Transport::check). If the call is dropped, the
    /// topic may or may not exist. Repeat: harmless.
    pub async fn create_topic(
        &self,
        topic: impl TryInto<Topic, Error: Into<NameError>>,
    ) -> Result<u32, TransportError> {
        let topic = topic.try_into().map_err(|error| {
            TransportError::new(TransportErrorKind::Invalid, "create topic", error.into().to_string())
        })?;
        let made = self.shared.topics.make(&self.shared.control, &topic).await;
        made.map_err(|error| error.transport_error("create topic"))
    }

    pub(crate) fn with_config(seeds: Vec<Client>, config: Config) -> Self {
        let server = Arc::new(Server::new(seeds, &config));
        let routing = Routing::new(config.prefix.clone());
        let shared = SharedTransport {
            publishing: Link::new(Arc::clone(&server)),
            control: Arc::new(Link::new(Arc::clone(&server))),
            topics: Topics::new(routing.clone(), &config),
            epochs: KnownEpochs::new(config.keep_epochs),
            durability: Durability::new(config.confirm, config.confirm_timeout),
            trimming: Trimming::new(config.retention.clone(), config.trim_every),
            server,
            routing,
            config,
        };
        Self { shared: Arc::new(shared) }
    }
}

/// A client of the server at an address, or what is wrong with it. Nothing is asked yet.
pub(crate) fn client(url: &str, authorities: Option<&[u8]>) -> Result<Client, String> {
    // Its words would repeat the address, which may hold a password.
    let info = url.into_connection_info().map_err(|_| {
        "invalid Redis URL; write redis://[user:password@]host[:port][/database] or rediss://".to_owned()
    })?;
    // The answers are read as this version of the protocol has them.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
    let info = info.set_redis_settings(settings);
    if url.starts_with("rediss://") && CryptoProvider::get_default().is_none() {
        // Where several are compiled in, rustls would panic for want of one. Another thread may
        // have installed its own meanwhile, which it keeps.
        let _ = ring::default_provider().install_default();
    }
    let client = match authorities {
        Some(pem) => {
            Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert: Some(pem.to_vec()) })
        }
        None => Client::open(info),
    };
    client.map_err(|error| {
        format!("authorities can't be used: {error}; begin the URL with rediss://, and make them PEM")
    })
}

impl SharedTransport {
    async fn check(&self) -> Result<(), Error> {
        let mut pipeline = Pipeline::new();
        for section in ["server", "persistence", "replication", "memory"] {
            pipeline.cmd("INFO").arg(section);
        }
        pipeline.cmd("CONFIG").arg("GET").arg("proto-max-bulk-len");
        // The server refuses a trial write for the same reasons as a real one.
        pipeline.cmd("SET").arg(self.routing.probe()).arg("").arg("PX").arg(1);
        let answers = self.control.request(&pipeline, self.config.request_timeout).await?;
        let (written, infos) = answers.split_last().ok_or_else(|| Error::unexpected("INFO"))?;
        let (size, infos) = infos.split_last().ok_or_else(|| Error::unexpected("INFO"))?;
        // On a cluster each node has its own, and all of them are asked with the connection.
        if !self.config.cluster {
            self.server.learn(limit(Some(size)));
        }
        let [server, persistence, replication, memory] = durability::infos(infos)?;
        durability::check_version(&server)?;
        durability::check_eviction(&memory)?;
        match refusal(written) {
            Some(refused) if refused.class == "cluster" && !self.config.cluster => {
                let words = format!("{}; build the transport with cluster()", refused.words);
                return Err(Error { kind: TransportErrorKind::Unsupported, words, ..refused });
            }
            Some(refused) => return Err(refused),
            None => {}
        }
        self.durability.check(&server, &persistence, &replication)
    }

    async fn subscribe(
        self: &Arc<Self>,
        subscription: Subscription,
        window: Window<Lease, StreamId>,
    ) -> Result<RedisDeliveries, Error> {
        self.server.check_open()?;
        let topics: BTreeSet<&Topic> = subscription.topics.iter().collect();
        let (mut counted, mut refused) = (BTreeMap::new(), Vec::new());
        let past = Past::of(&subscription);
        for (topic, units) in self.prepare(&topics, &subscription.consumer, &past).await? {
            match units {
                Ok(units) => drop(counted.insert(topic, units)),
                Err(error) => refused.push((topic, error)),
            }
        }
        // Nothing at all can be received.
        if counted.is_empty()
            && let Some((_, error)) = refused.pop()
        {
            return Err(error);
        }
        let control = Arc::clone(&self.control);
        let (config, routing) = (self.config.clone(), self.routing.clone());
        let consumer = subscription.consumer;
        let mut deliveries =
            RedisDeliveries::start(consumer, window, counted, past, config, routing, control);
        if !refused.is_empty() {
            let shared = Arc::clone(self);
            deliveries.join_later(|member| tokio::spawn(shared.join_later(member, refused)));
        }
        Ok(deliveries)
    }

    /// Tries topics again that are refused, until none is.
    async fn join_later(self: Arc<Self>, member: Arc<Member>, mut refused: Vec<(Topic, Error)>) {
        for (topic, error) in &refused {
            _ = member.is_refused(topic, None, error);
        }
        while !refused.is_empty() && self.server.check_open().is_ok() {
            tokio::time::sleep(self.config.heartbeat).await;
            let topics: BTreeSet<&Topic> = refused.iter().map(|(topic, _)| topic).collect();
            // Problems of all topics are reported by those that are read.
            let Ok(prepared) = self.prepare(&topics, &member.consumer, &member.past).await else { continue };
            refused.clear();
            for (topic, units) in prepared {
                match units {
                    Ok(units) => member.add(topic, units),
                    Err(error) => {
                        _ = member.is_refused(&topic, None, &error);
                        refused.push((topic, error));
                    }
                }
            }
        }
    }

    /// Counts the units of topics, and makes the groups of a consumer where they are not there yet.
    /// From then on nothing is trimmed that the consumer has not finished.
    ///
    /// # Errors
    ///
    /// An error that concerns all topics.
    async fn prepare(
        &self,
        topics: &BTreeSet<&Topic>,
        consumer: &Consumer,
        past: &Past,
    ) -> Result<BTreeMap<Topic, Result<u32, Error>>, Error> {
        let mut prepared = self.topics.units(&self.control, topics).await?;
        let start = match self.config.start {
            Start::Oldest => "0",
            Start::Newest => "$",
        };
        for (topic, units) in &mut prepared {
            let Ok(number) = *units else { continue };
            // One that is not there any more was lost: who takes the unit sees to it.
            if past.has_handled(topic) {
                continue;
            }
            let of_topic = BTreeMap::from([(topic.clone(), number)]);
            // Once more for a server that has lost its scripts, or a slot.
            let mut made = self.make_groups(&of_topic, consumer, start).await;
            if made.as_ref().is_err_and(|refused| matches!(refused.class, "no-script" | "cluster")) {
                made = self.make_groups(&of_topic, consumer, start).await;
            }
            match made {
                Err(refused) if refused.reach == Reach::Topic => *units = Err(refused),
                made => made?,
            }
        }
        Ok(prepared)
    }

    /// Makes the groups of a consumer, where they are not there yet.
    async fn make_groups(
        &self,
        topics: &BTreeMap<Topic, u32>,
        consumer: &Consumer,
        start: &str,
    ) -> Result<(), Error> {
        let mut connection = self.control.connection().await?;
        let mut pipeline = Pipeline::new();
        for (topic, units) in topics {
            for number in 0..*units {
                let stream = self.routing.stream(&Unit { topic: topic.clone(), number });
                let call = connection.scripts.call(Script::Group, &[&stream], &mut pipeline);
                call.arg(consumer.as_str()).arg(start);
            }
        }
        let answers = self.control.within(&mut connection, &pipeline, self.config.request_timeout).await?;
        answers.iter().find_map(refusal).map_or(Ok(()), Err)
    }
}

#[async_trait]
impl Transport for RedisTransport {
    fn name(&self) -> &'static str {
        "redis"
    }

    async fn check(&self) -> Result<(), TransportError> {
        self.shared.check().await.map_err(|error| error.transport_error("check"))
    }

    async fn diagnose(&self, topics: &[Topic]) -> Result<Vec<Diagnosis>, TransportError> {
        let SharedTransport { control, config, routing, topics: known, .. } = &*self.shared;
        let found = diagnose::find(control, config, routing, known, topics).await;
        found.map_err(|error| error.transport_error("diagnose"))
    }

    fn validate(&self, message: &Message) -> Result<(), Rejection> {
        record::validate(message, self.shared.server.max_bytes())
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        if let Err(error) = self.shared.publish(&batch, outcomes).await {
            outcomes.report_rest(&error.outcome());
        }
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        let window = Window::new(&subscription)?;
        let deliveries = self.shared.subscribe(subscription, window).await;
        Ok(Box::new(deliveries.map_err(|error| error.transport_error("subscribe"))?))
    }

    async fn close(&self) {
        self.shared.server.close();
        self.shared.publishing.shut();
        self.shared.control.shut();
    }
}
