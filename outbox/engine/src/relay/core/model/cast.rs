//! What model tests play with: a few topics and keys, each in a bucket of its own, and the running of many seeds.
//!
//! `OUTBOX_MODEL_SEEDS` is how many seeds each test runs; `OUTBOX_MODEL_SEED` runs one seed, and tells what happens in it.

use std::sync::{Arc, OnceLock};

use outbox_contract::backend::{Bucket, BucketSet, Position, Stored};
use outbox_contract::{Key, KeyId, Message, MessageId, Timestamp, Topic};

pub(super) const TOPICS: usize = 2;
pub(super) const KEYS: usize = 8;

/// What a judge says: nothing, or what went wrong.
pub(super) type Judged = Result<(), String>;

struct Names {
    topics: Vec<Topic>,
    keys: Vec<KeyId>,
    buckets: Vec<Bucket>,
}

fn names() -> &'static Names {
    static NAMES: OnceLock<Names> = OnceLock::new();
    NAMES.get_or_init(|| {
        let topics: Vec<Topic> = (0..TOPICS).map(|n| Topic::new(format!("topic-{n}")).unwrap()).collect();
        let key = |n: usize| KeyId {
            topic: topics[topic_of(n)].clone(),
            key: Key::new(format!("key-{n}")).unwrap(),
        };
        let keys: Vec<KeyId> = (0..KEYS).map(key).collect();
        let buckets: Vec<Bucket> = keys.iter().map(KeyId::bucket).collect();
        assert_eq!(buckets.iter().copied().collect::<BucketSet>().len(), KEYS);
        Names { buckets, keys, topics }
    })
}

pub(super) fn the_topic(topic: usize) -> &'static Topic {
    &names().topics[topic]
}

pub(super) fn topic_of(key: usize) -> usize {
    key % TOPICS
}

pub(super) fn the_key(key: usize) -> &'static KeyId {
    &names().keys[key]
}

pub(super) fn number_of(key: &KeyId) -> usize {
    names().keys.iter().position(|known| known == key).unwrap()
}

pub(super) fn bucket(key: usize) -> Bucket {
    names().buckets[key]
}

pub(super) fn keys_in(buckets: BucketSet) -> impl Iterator<Item = usize> {
    (0..KEYS).filter(move |key| buckets.contains(bucket(*key)))
}

pub(super) fn stored(position: Position, of: usize, id: MessageId) -> Arc<Stored> {
    let KeyId { topic, key } = the_key(of);
    let message = Message::new(topic.clone(), "event").with_key(key.as_str()).unwrap().with_id(id);
    Arc::new(Stored::new(position, Timestamp::default(), message))
}

/// Runs many seeds; says how the first one failed, if one did.
pub(super) fn first_failure(seeds: u64, run: impl Fn(u64, bool) -> Judged) -> Option<String> {
    if let Some(seed) = setting("OUTBOX_MODEL_SEED") {
        return run(seed, true).err();
    }
    (0..seeds).find_map(|seed| {
        let failed = run(seed, false).err()?;
        Some(format!(
            "seed {seed}: {failed}\n  replay with OUTBOX_MODEL_SEED={seed} and the name of this test"
        ))
    })
}

/// Runs as many seeds as are asked for; none may fail.
pub(super) fn holds(run: impl Fn(u64, bool) -> Judged) {
    if let Some(failed) = first_failure(setting("OUTBOX_MODEL_SEEDS").unwrap_or(200), run) {
        panic!("{failed}");
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
