//! Configuration of a Redis transport: its builder, with the default and the reason of each value.

use std::fmt;
use std::time::Duration;

use outbox_contract::backend::BUCKETS;
use outbox_contract::{TransportError, TransportErrorKind};
use redis::Client;

use crate::transport::{RedisTransport, client};

/// Limit of times: Redis and the clocks of a process refuse times that they can't count to.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// Retention of the entries of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retention {
    /// Entries that every group of a stream has acknowledged are removed when they are older than
    /// this. Entries that a group has not acknowledged are never removed, and neither are those of
    /// a stream without a group: if consumers stay away, Redis fills up, publishing becomes
    /// unavailable, and messages wait in the outbox.
    Finished(Duration),
    /// Like `Finished` with no delay. In addition, of more than about this many entries in a unit
    /// the oldest are removed, **whether they were read or not**: a consumer that is further behind
    /// loses messages.
    AtMost(u64),
    /// Nothing is removed. Another program trims the streams.
    Everything,
}

/// Starting point of a consumer that subscribes for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// The oldest entry that was not removed.
    Oldest,
    /// The first entry that is published after the subscription.
    Newest,
}

/// Topics that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topics {
    /// All that are named.
    MadeByName,
    /// Those that were made.
    Existing,
}

/// Confirmation that Redis has to give beyond having executed a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Confirm {
    pub(crate) replicas: u32,
    pub(crate) disk: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) cluster: bool,
    pub(crate) prefix: String,
    pub(crate) units: u32,
    pub(crate) topics: Topics,
    pub(crate) retention: Retention,
    pub(crate) start: Start,
    pub(crate) max_message_bytes: Option<usize>,
    pub(crate) confirm: Confirm,
    pub(crate) confirm_timeout: Duration,
    pub(crate) keep_epochs: Duration,
    pub(crate) trim_every: Duration,
    pub(crate) lease: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
}

impl Config {
    pub(crate) fn lease_millis(&self) -> u64 {
        u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX)
    }

    /// Lists what is wrong with the settings.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.prefix.is_empty() || self.prefix.contains(['{', '}']) {
            problems.push(format!("prefix is {:?}; make it a name without braces", self.prefix));
        }
        if self.units == 0 || usize::try_from(self.units).is_ok_and(|units| units > BUCKETS) {
            problems.push(format!("units is {}; make it 1 to {BUCKETS}", self.units));
        }
        if self.max_message_bytes == Some(0) {
            problems.push("max_message_bytes is 0; make it at least 1".to_owned());
        }
        for (what, time) in [
            ("confirm_timeout", self.confirm_timeout),
            ("keep_epochs", self.keep_epochs),
            ("lease", self.lease),
            ("heartbeat", self.heartbeat),
            ("connect_timeout", self.connect_timeout),
            ("request_timeout", self.request_timeout),
        ] {
            if time < Duration::from_millis(1) {
                problems.push(format!("{what} is {time:?}; make it at least 1 ms"));
            }
        }
        if self.heartbeat > self.lease / 2 {
            problems.push(format!(
                "heartbeat is {:?}; make it at most half of the lease ({:?})",
                self.heartbeat, self.lease
            ));
        }
        if self.retention == Retention::AtMost(0) {
            problems.push(
                "retention is AtMost(0), which would delete unread messages; make it at least 1, or use Finished"
                    .to_owned(),
            );
        }
        if self.cluster && self.confirm != Confirm::default() {
            problems.push(
                "confirm_replicas or confirm_disk is set, which a cluster does not support; remove it, and use appendfsync and \
                 min-replicas-to-write"
                    .to_owned(),
            );
        }
        problems
    }

    fn times(&mut self) -> impl Iterator<Item = &mut Duration> {
        let kept = match &mut self.retention {
            Retention::Finished(keep) => Some(keep),
            Retention::AtMost(_) | Retention::Everything => None,
        };
        let others = [
            &mut self.confirm_timeout,
            &mut self.keep_epochs,
            &mut self.trim_every,
            &mut self.lease,
            &mut self.heartbeat,
            &mut self.connect_timeout,
            &mut self.request_timeout,
        ];
        others.into_iter().chain(kept)
    }
}

/// Builds a [`RedisTransport`]. Durations over a hundred years, such as `Duration::MAX`, count as a
/// hundred years.
///
/// ```
/// # mod outbox { pub use outbox_contract::*; pub mod redis { pub use outbox_transport_redis::*; } }
/// use outbox::redis::RedisTransport;
///
/// let transport = RedisTransport::builder("redis://127.0.0.1:6379").units(16).build()?;
/// # Ok::<(), outbox::TransportError>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct RedisTransportBuilder {
    url: String,
    others: Vec<String>,
    authorities: Option<Vec<u8>>,
    config: Config,
}

/// Leaves the address out: it may hold a password.
impl fmt::Debug for RedisTransportBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisTransportBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl RedisTransportBuilder {
    pub(crate) fn new(url: String) -> Self {
        let lease = Duration::from_secs(15);
        Self {
            url,
            authorities: None,
            others: Vec::new(),
            config: Config {
                cluster: false,
                prefix: "outbox".to_owned(),
                units: 8,
                topics: Topics::MadeByName,
                retention: Retention::Finished(Duration::ZERO),
                start: Start::Oldest,
                max_message_bytes: None,
                confirm: Confirm::default(),
                confirm_timeout: Duration::from_secs(2),
                keep_epochs: Duration::from_secs(3_600),
                trim_every: Duration::from_secs(1),
                lease,
                heartbeat: lease / 5,
                connect_timeout: Duration::from_secs(5),
                request_timeout: Duration::from_secs(5),
            },
        }
    }

    /// Connects to a Redis Cluster. The address of the builder is one of its nodes, which names all
    /// others; `others` are further nodes to ask if that one does not answer, and may be empty.
    /// Default: one server. The units of a topic spread over the primaries. While a primary is
    /// unavailable and no replica has replaced it, nothing is published to the other ones either.
    pub fn cluster<O: Into<String>>(mut self, others: impl IntoIterator<Item = O>) -> Self {
        self.config.cluster = true;
        self.others = others.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the prefix of all keys, without braces. Default `outbox`. Services that exchange
    /// messages need the same one.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.prefix = prefix.into();
        self
    }

    /// Sets the number of units (streams) of each topic that this transport creates: the maximum
    /// number of members of a consumer that work in parallel. Default 8, at most 256. A topic keeps
    /// the number that it was created with: another one would move keys to other units, and their
    /// order would be lost.
    pub fn units(mut self, units: u32) -> Self {
        self.config.units = units;
        self
    }

    /// Uses only topics that were created with [`RedisTransport::create_topic`]. Messages of others
    /// are unavailable, and a subscription to them is `Missing`. Default: the first message or
    /// subscription creates a topic.
    pub fn existing_topics_only(mut self) -> Self {
        self.config.topics = Topics::Existing;
        self
    }

    /// Sets the retention of entries. Default: an entry is removed once every group has acknowledged
    /// it.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.config.retention = retention;
        self
    }

    /// Sets the starting point of a consumer that subscribes for the first time. Default
    /// [`Start::Oldest`].
    ///
    /// If the group of a consumer is lost later (its stream was deleted, or a failover lost it), the
    /// receiver gets an error. The subscription's `offset_reset` decides where a consumer continues
    /// that has handled messages of the topic; any other continues with the oldest entry.
    pub fn start(mut self, start: Start) -> Self {
        self.config.start = start;
        self
    }

    /// Sets the maximum size of a payload in bytes; larger messages are rejected. Default: the limit
    /// of the server (`proto-max-bulk-len`, 512 MiB unless configured), which is read with each new
    /// connection if the user has the right to.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.config.max_message_bytes = Some(bytes);
        self
    }

    /// Sets the number of replicas that must have a message before it counts as delivered (`WAIT`).
    /// Default 0. A message that reaches fewer in time has an unknown outcome, and publishing waits
    /// for the replicas. If there are more replicas than this, a failover can choose one that does
    /// not have the message. Not supported on a cluster.
    pub fn confirm_replicas(mut self, replicas: u32) -> Self {
        self.config.confirm.replicas = replicas;
        self
    }

    /// Counts a message as delivered only when it is on the disk of the primary (`WAITAOF`: Redis 7.2
    /// or later, with `appendonly yes`). Default off. Not supported on a cluster.
    pub fn confirm_disk(mut self) -> Self {
        self.config.confirm.disk = true;
        self
    }

    /// Sets the time limit for replicas and the disk. Default 2 s; shorter than a relay's
    /// `publish_timeout`.
    pub fn confirm_timeout(mut self, timeout: Duration) -> Self {
        self.config.confirm_timeout = timeout;
        self
    }

    /// Sets the time for which a stream remembers the newest owner of a bucket after its last
    /// message. Default 1 hour: much longer than a relay can be late.
    ///
    /// After a restore of the outbox's database without a new identity, owners may have lower epochs
    /// than a stream remembers. Publishing of such a bucket is then unavailable for this time, or
    /// until the keys `PREFIX:{TOPIC:UNIT}:epochs:*` are deleted. Outboxes that are configured with
    /// the same source refuse each other as long as both publish; by default each has its own.
    pub fn keep_epochs(mut self, keep: Duration) -> Self {
        self.config.keep_epochs = keep;
        self
    }

    /// Sets the interval at which a stream is trimmed while something is published to it. Default
    /// 1 s.
    pub fn trim_every(mut self, every: Duration) -> Self {
        self.config.trim_every = every;
        self
    }

    /// Sets the time for which a member owns a unit without a heartbeat. Default 15 s: after a kill,
    /// the other members wait for this long. If the server's clock goes back meanwhile (a replica
    /// with another clock became primary), they wait for twice as long at most.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// Sets the interval at which a member renews its leases and looks for other members. Default
    /// 3 s; at most half of the lease. Units move to a member that joins within two heartbeats.
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.config.heartbeat = heartbeat;
        self
    }

    /// Sets the time limit of connecting, for all nodes of a cluster together. Default 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// Sets the time limit of heartbeats, reads and acknowledgments. Default 5 s. Publishing has the
    /// relay's `publish_timeout`.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.config.request_timeout = timeout;
        self
    }

    /// Sets the certificate authorities that are trusted with a `rediss://` address, in PEM. Default:
    /// those of the system.
    pub fn authorities(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities = Some(pem.into());
        self
    }

    /// Creates the transport. It connects with its first call.
    ///
    /// # Errors
    ///
    /// [`Invalid`](TransportErrorKind::Invalid), with all problems of the configuration. No password
    /// is shown.
    pub fn build(self) -> Result<RedisTransport, TransportError> {
        let Self { url, others, authorities, mut config } = self;
        for time in config.times() {
            *time = (*time).min(LONGEST);
        }
        let mut problems = config.problems();
        let urls = std::iter::once(&url).chain(&others);
        let seeds = urls.filter_map(|url| {
            client(url, authorities.as_deref()).map_err(|problem| problems.push(problem)).ok()
        });
        let seeds: Vec<Client> = seeds.collect();
        problems.dedup();
        if problems.is_empty() {
            return Ok(RedisTransport::with_config(seeds, config));
        }
        let words = format!("invalid configuration of the Redis transport: {}", problems.join("; "));
        Err(TransportError::new(TransportErrorKind::Invalid, "build", words))
    }
}
