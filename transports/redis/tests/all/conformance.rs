//! The suite of all transports, on each server that is supported.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Topic;
use outbox_contract::backend::Transport;
use outbox_servers::{Missing, Redis, RedisCluster, RedisClusterServer, RedisServer};
use outbox_testkit::transport_suite::{Capability, TransportHarness};
use outbox_transport_redis::{RedisTransport, RedisTransportBuilder};

const LIMIT: usize = 1024 * 1024;

/// Which server.
trait Version: Send + Sync + 'static {
    fn wish() -> Redis;
}

struct On<V> {
    url: String,
    prefix: String,
    transport: RedisTransport,
    _server: RedisServer,
    _version: std::marker::PhantomData<V>,
}

/// Leases as long as they are by default, so that a slow machine loses none; heartbeats so short
/// that members need not wait for each other.
fn builder(url: &str, prefix: &str) -> RedisTransportBuilder {
    RedisTransport::builder(url)
        .prefix(prefix)
        .existing_topics_only()
        .max_message_bytes(LIMIT)
        .lease(Duration::from_secs(60))
        .heartbeat(Duration::from_millis(200))
        .request_timeout(Duration::from_secs(30))
        .connect_timeout(Duration::from_secs(30))
}

impl<V: Version> TransportHarness for On<V> {
    const LACKS: &'static [Capability] = &[Capability::BatchesInParts];

    async fn fresh() -> Self {
        let server = V::wish().shared().unwrap();
        let (url, prefix) = (server.url(), server.fresh_prefix());
        let transport = builder(&url, &prefix).build().unwrap();
        Self { url, prefix, transport, _server: server, _version: std::marker::PhantomData }
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.transport.clone())
    }

    async fn topic(&self) -> Topic {
        let topic = Topic::new(format!("topic {{{}}}", number())).unwrap();
        self.transport.create_topic(topic.clone()).await.unwrap();
        topic
    }

    async fn as_another_process(&self) -> Arc<dyn Transport> {
        Arc::new(builder(&self.url, &self.prefix).build().unwrap())
    }

    fn unroutable_topic(&self) -> Topic {
        Topic::new("nobody made this").unwrap()
    }

    fn too_large(&self) -> usize {
        LIMIT + 1
    }

    fn skipped() -> Option<String> {
        match V::wish().shared() {
            Err(missing @ Missing::Absent { .. }) => {
                outbox_servers::skip(&missing.to_string());
                Some(missing.to_string())
            }
            _ => None,
        }
    }
}

/// Something that no other topic of this test program has in its name.
fn number() -> usize {
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

struct Newest;
impl Version for Newest {
    fn wish() -> Redis {
        Redis::newest()
    }
}

struct Oldest;
impl Version for Oldest {
    fn wish() -> Redis {
        Redis::oldest()
    }
}

struct Valkey;
impl Version for Valkey {
    fn wish() -> Redis {
        Redis::valkey()
    }
}

mod redis_8 {
    use super::*;
    outbox_testkit::transport_conformance!(On<Newest>);
}

mod redis_7 {
    use super::*;
    outbox_testkit::transport_conformance!(On<Oldest>);
}

mod valkey_9 {
    use super::*;
    outbox_testkit::transport_conformance!(On<Valkey>);
}

/// A cluster of three primaries: each topic has units on all of them.
struct OnCluster {
    url: String,
    prefix: String,
    transport: RedisTransport,
    _cluster: RedisClusterServer,
}

impl OnCluster {
    fn transport_to(url: &str, prefix: &str) -> RedisTransport {
        builder(url, prefix).cluster(Vec::<String>::new()).build().unwrap()
    }
}

impl TransportHarness for OnCluster {
    const LACKS: &'static [Capability] = &[Capability::BatchesInParts];

    async fn fresh() -> Self {
        let cluster = RedisCluster::newest().shared().unwrap();
        let (url, prefix) = (cluster.url(), cluster.fresh_prefix());
        let transport = Self::transport_to(&url, &prefix);
        Self { url, prefix, transport, _cluster: cluster }
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.transport.clone())
    }

    async fn topic(&self) -> Topic {
        let topic = Topic::new(format!("topic {{{}}}", number())).unwrap();
        self.transport.create_topic(topic.clone()).await.unwrap();
        topic
    }

    async fn as_another_process(&self) -> Arc<dyn Transport> {
        Arc::new(Self::transport_to(&self.url, &self.prefix))
    }

    fn unroutable_topic(&self) -> Topic {
        Topic::new("nobody made this").unwrap()
    }

    fn too_large(&self) -> usize {
        LIMIT + 1
    }

    fn skipped() -> Option<String> {
        match RedisCluster::newest().shared() {
            Err(missing @ Missing::Absent { .. }) => {
                outbox_servers::skip(&missing.to_string());
                Some(missing.to_string())
            }
            _ => None,
        }
    }
}

mod redis_8_cluster {
    use super::*;
    outbox_testkit::transport_conformance!(OnCluster);
}
