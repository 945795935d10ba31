//! Producers of topics. A message that is rejected takes its producer with it, and all
//! that is under way there is sent again: so topics that reject, or that take no batches of the
//! common size, go by producers of their own.
//!
//! Small batches have a producer of their own too: whether it waits for more messages is a setting
//! of a producer. It is safe that a key goes by one and by the other in turns (promise P3): a key
//! has one batch under way, and a batch whose end is unknown takes its producer with it before that
//! is said, so nothing of it is left to be sent.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outbox_contract::{Topic, TransportError};

use crate::config::Config;
use crate::pool::Pool;
use crate::retired::Retired;

/// Time after its last rejection for which a topic goes by a producer of its own.
const APART: Duration = Duration::from_secs(600);
/// Number of pools of producers that the rejecting topics share.
const POOLS: u64 = 4;
/// From so many rejections in a row on, the messages of a topic are sent alone: a batch of them
/// would be rejected too, and cost a producer.
const STREAK: u32 = 3;
/// Maximum number of topics that are remembered to have rejected something, before those are
/// forgotten that have not lately.
const MAX_TOPICS: usize = 1_000;

/// Number of messages up to which a batch is small: it is handed to the client within microseconds,
/// so it is rarely split though nothing waits. From a backlog come hundreds.
const SMALL: usize = 32;

/// Producers that are not the common ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Apart {
    /// For topics that take no larger batches than this.
    Batches(usize),
    /// For topics that reject.
    Rejecting(u64),
}

/// All producers of a transport.
#[derive(Debug)]
pub(crate) struct Pools {
    config: Arc<Config>,
    retired: Arc<Retired>,
    common: Arc<Pool>,
    /// For small batches. None: they wait like others.
    small: Option<Arc<Pool>>,
    apart: Mutex<Others>,
    rejections: Mutex<HashMap<Topic, Rejections>>,
}

#[derive(Debug, Default)]
struct Others {
    pools: BTreeMap<Apart, Arc<Pool>>,
    closed: bool,
}

/// Rejections of a topic.
#[derive(Clone, Copy, Debug)]
struct Rejections {
    last: Instant,
    /// Number of messages in a row, since it took one that was sent alone.
    in_a_row: u32,
}

impl Pools {
    pub(crate) fn new(config: &Arc<Config>) -> Result<Self, TransportError> {
        let retired = Arc::default();
        Ok(Self {
            config: Arc::clone(config),
            common: Pool::new(config, config.batch_bytes(), true, &retired)?,
            small: config
                .sends_small_ones_at_once()
                .then(|| Pool::new(config, config.batch_bytes(), false, &retired))
                .transpose()?,
            retired,
            apart: Mutex::default(),
            rejections: Mutex::default(),
        })
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        self.apart.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rejections(&self) -> MutexGuard<'_, HashMap<Topic, Rejections>> {
        self.rejections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool by which a topic goes in a batch of so many messages. `batch_bytes`: the most that it
    /// takes in a record batch, if that is known.
    ///
    /// # Errors
    ///
    /// A producer could not be made.
    pub(crate) fn of(
        &self,
        topic: &Topic,
        batch_bytes: Option<usize>,
        messages: usize,
    ) -> Result<Arc<Pool>, TransportError> {
        let batch_bytes = batch_bytes.filter(|bytes| *bytes < self.config.batch_bytes());
        let which = match (self.has_rejected(topic), batch_bytes) {
            (false, None) => return Ok(Arc::clone(self.usual(messages))),
            // In powers of two: few pools, whatever the limits are.
            (false, Some(bytes)) => Apart::Batches(1 << bytes.max(1).ilog2()),
            (true, _) => {
                let mut hash = DefaultHasher::new();
                topic.hash(&mut hash);
                Apart::Rejecting(hash.finish() % POOLS)
            }
        };
        let mut others = self.others();
        if others.closed {
            return Ok(Arc::clone(&self.common));
        }
        if let Some(pool) = others.pools.get(&which) {
            return Ok(Arc::clone(pool));
        }
        let bytes = match which {
            Apart::Batches(bytes) => bytes,
            Apart::Rejecting(_) => self.config.batch_bytes(),
        };
        let pool = Pool::new(&self.config, bytes, true, &self.retired)?;
        others.pools.insert(which, Arc::clone(&pool));
        Ok(pool)
    }

    fn usual(&self, messages: usize) -> &Arc<Pool> {
        self.small.as_ref().filter(|_| messages <= SMALL).unwrap_or(&self.common)
    }

    fn has_rejected(&self, topic: &Topic) -> bool {
        let rejections = self.rejections();
        // Mostly none ever did.
        !rejections.is_empty() && rejections.get(topic).is_some_and(|it| it.last.elapsed() < APART)
    }

    /// Returns true if the messages of a topic are to be sent alone.
    pub(crate) fn sends_alone(&self, topic: &Topic) -> bool {
        let rejections = self.rejections();
        !rejections.is_empty()
            && rejections.get(topic).is_some_and(|it| it.in_a_row >= STREAK && it.last.elapsed() < APART)
    }

    /// A topic has rejected a message that was sent alone.
    pub(crate) fn rejected(&self, topic: &Topic) {
        let mut rejections = self.rejections();
        if rejections.len() >= MAX_TOPICS {
            rejections.retain(|_, it| it.last.elapsed() < APART);
        }
        let now = Instant::now();
        let of = rejections.entry(topic.clone()).or_insert(Rejections { last: now, in_a_row: 0 });
        *of = Rejections { last: now, in_a_row: of.in_a_row.saturating_add(1) };
    }

    /// A topic has taken a message that was sent alone.
    pub(crate) fn took(&self, topic: &Topic) {
        if let Some(of) = self.rejections().get_mut(topic) {
            of.in_a_row = 0;
        }
    }

    /// Lets go of all producers.
    pub(crate) fn close(&self) {
        let others = {
            let mut others = self.others();
            others.closed = true;
            others.pools.values().cloned().collect::<Vec<_>>()
        };
        [&self.common].into_iter().chain(&self.small).chain(&others).for_each(Pool::close);
    }

    /// Returns the number of producers that were retired since the transport was built.
    pub(crate) fn retired(&self) -> u64 {
        self.retired.all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KafkaTransport;

    const MANY: usize = 1_000;

    fn topic(name: &str) -> Topic {
        Topic::new(name).unwrap()
    }

    fn pools() -> Pools {
        let config = KafkaTransport::builder("127.0.0.1:1").config;
        Pools::new(&Arc::new(config)).unwrap()
    }

    #[test]
    fn topics_that_take_what_is_usual_share_a_pool() {
        let pools = pools();
        let one = pools.of(&topic("one"), None, MANY).unwrap();
        assert!(Arc::ptr_eq(&one, &pools.of(&topic("other"), Some(2_000_000), MANY).unwrap()));
        let small = pools.of(&topic("small"), Some(2_000), MANY).unwrap();
        assert!(!Arc::ptr_eq(&one, &small));
        assert!(Arc::ptr_eq(&small, &pools.of(&topic("as small"), Some(1_025), MANY).unwrap()));
        pools.close();
    }

    #[test]
    fn small_batches_go_by_a_producer_that_does_not_wait() {
        let (all, one) = (pools(), topic("one"));
        let of = |messages| all.of(&one, None, messages).unwrap();
        assert!(Arc::ptr_eq(&of(1), &of(SMALL)) && Arc::ptr_eq(&of(SMALL + 1), &of(MANY)));
        assert!(!Arc::ptr_eq(&of(SMALL), &of(SMALL + 1)));
        all.rejected(&one);
        assert!(Arc::ptr_eq(&of(1), &of(MANY)), "a rejection would cost all small batches their producer");
        all.close();
        let config = KafkaTransport::builder("127.0.0.1:1").linger(Duration::ZERO).config;
        let all = Pools::new(&Arc::new(config)).unwrap();
        assert!(Arc::ptr_eq(&all.of(&one, None, 1).unwrap(), &all.of(&one, None, MANY).unwrap()));
        all.close();
    }

    #[test]
    fn a_topic_that_rejects_goes_apart_and_alone_while_it_takes_nothing() {
        let (pools, bad) = (pools(), topic("bad"));
        let common = pools.of(&bad, None, MANY).unwrap();
        (0..STREAK).for_each(|_| pools.rejected(&bad));
        assert!(!Arc::ptr_eq(&common, &pools.of(&bad, None, MANY).unwrap()) && pools.sends_alone(&bad));
        assert!(!pools.sends_alone(&topic("good")));
        pools.took(&bad);
        assert!(!Arc::ptr_eq(&common, &pools.of(&bad, None, MANY).unwrap()) && !pools.sends_alone(&bad));
        pools.close();
        assert!(
            Arc::ptr_eq(&common, &pools.of(&topic("small"), Some(2_000), MANY).unwrap()),
            "none is made any more"
        );
    }
}
