//! The cast of the model: a few topics and keys. Two keys share a sequence shard, and two others a
//! bucket; all others are apart.

use std::sync::{Arc, OnceLock};

use outbox_contract::backend::{Bucket, BucketSet, Position, Stored, StripeId};
use outbox_contract::{Key, KeyId, Message, MessageId, Timestamp, Topic};

pub(super) const TOPICS: usize = 2;
pub(super) const KEYS: usize = 10;
/// Number of buckets in which keys are.
pub(super) const SLOTS: usize = 8;
/// Number of sequence shards in which keys are.
pub(super) const SHARDS: usize = 9;

struct Names {
    topics: Vec<Topic>,
    keys: Vec<KeyId>,
    /// By slot.
    buckets: Vec<Bucket>,
    stripes: Vec<StripeId>,
    /// A message of each key.
    rows: Vec<Arc<Stored>>,
}

fn stripe(key: &KeyId) -> StripeId {
    StripeId::of(key.topic.as_str(), key.key.as_str())
}

fn key(topics: &[Topic], of: usize, suffix: usize) -> KeyId {
    KeyId {
        topic: topics[topic_of(of)].clone(),
        key: Key::new(format!("k{of}-{suffix}")).expect("it is a name"),
    }
}

fn names() -> &'static Names {
    static NAMES: OnceLock<Names> = OnceLock::new();
    NAMES.get_or_init(|| {
        let topics: Vec<Topic> =
            (0..TOPICS).map(|n| Topic::new(format!("topic-{n}")).expect("it is a name")).collect();
        let mut keys: Vec<KeyId> = (0..SLOTS).map(|of| key(&topics, of, 0)).collect();
        let find = |of, is_it: &dyn Fn(&KeyId) -> bool| {
            (0..).map(|suffix| key(&topics, of, suffix)).find(is_it).expect("there is no end of names")
        };
        let same_shard = find(SLOTS, &|key| stripe(key) == stripe(&keys[0]));
        let same_bucket =
            find(SLOTS + 1, &|key| key.bucket() == keys[1].bucket() && stripe(key) != stripe(&keys[1]));
        keys.extend([same_shard, same_bucket]);
        let buckets: Vec<Bucket> = keys[..SLOTS].iter().map(KeyId::bucket).collect();
        assert_eq!(buckets.iter().copied().collect::<BucketSet>().len(), SLOTS);
        let row = |key: &KeyId| {
            let message = Message::new(key.topic.clone(), "event").expect("it is a topic");
            let message = message.with_key(key.key.as_str()).expect("it is a key");
            Arc::new(Stored::new(Position::START, Timestamp::default(), message))
        };
        let (stripes, rows) = (keys.iter().map(stripe).collect(), keys.iter().map(row).collect());
        Names { buckets, stripes, rows, keys, topics }
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
    usize::from(key.key.as_str().as_bytes()[1] - b'0')
}

/// The slot of a key's bucket.
pub(super) fn slot_of(key: usize) -> usize {
    key % SLOTS
}

pub(super) fn bucket_at(slot: usize) -> Bucket {
    names().buckets[slot]
}

pub(super) fn slot_at(bucket: Bucket) -> usize {
    names().buckets.iter().position(|known| *known == bucket).unwrap_or_default()
}

pub(super) fn bucket(key: usize) -> Bucket {
    bucket_at(slot_of(key))
}

/// The sequence shard of a key.
pub(super) fn shard_of(key: usize) -> usize {
    if key == SLOTS { 0 } else { key.min(SHARDS - 1) }
}

pub(super) fn stripe_of(key: usize) -> StripeId {
    names().stripes[key]
}

pub(super) fn slots_in(buckets: BucketSet) -> impl Iterator<Item = usize> {
    (0..SLOTS).filter(move |slot| buckets.contains(bucket_at(*slot)))
}

pub(super) fn id_of(serial: usize) -> MessageId {
    MessageId::from_uuid(uuid::Uuid::from_u128(serial as u128))
}

/// The number of a message among all that were ever committed, from 1.
pub(super) fn serial_of(id: MessageId) -> usize {
    usize::try_from(id.as_uuid().as_u128()).unwrap_or_default()
}

pub(super) fn stored(position: Position, of: usize, id: MessageId) -> Arc<Stored> {
    let mut stored = Stored::clone(&names().rows[of]);
    (stored.position, stored.message.id) = (position, id);
    Arc::new(stored)
}
