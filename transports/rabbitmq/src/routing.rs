//! Destination of a message: its partition, the routing key of that, and the queue in which a
//! consumer finds it.
//!
//! Names are wire format: publishers and consumers of other programs rely on them.
//!
//! | | with one partition | with several |
//! |---|---|---|
//! | routing key | `topic` | `topic.N` |
//! | queue | `consumer:topic` | `consumer:topic.N` |

use lapin::types::ShortString;
use outbox_contract::backend::Bucket;
use outbox_contract::{Consumer, Topic};

/// The most bytes that AMQP lets a name have.
pub(crate) const MAX_NAME_BYTES: usize = 255;

/// Partitions of a topic: their number and names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partitions(pub(crate) u32);

impl Partitions {
    /// The partition of a key, by the bucket that topic and key are hashed into.
    pub(crate) fn of(self, bucket: Bucket) -> u32 {
        u32::from(bucket.0) % self.0
    }

    /// The routing key of a partition.
    pub(crate) fn routing_key(self, topic: &Topic, partition: u32) -> String {
        if self.0 == 1 { topic.as_str().to_owned() } else { format!("{topic}.{partition}") }
    }

    /// The queue of a consumer for a partition. None: the name is too long for AMQP.
    pub(crate) fn queue(self, consumer: &Consumer, topic: &Topic, partition: u32) -> Option<ShortString> {
        ShortString::try_new(format!("{consumer}:{}", self.routing_key(topic, partition))).ok()
    }
}

/// Returns what is wrong with a consumer's name here, if something is: with a colon in it, the
/// queues of two consumers could have one name.
pub(crate) fn problem_of(consumer: &Consumer) -> Option<String> {
    consumer.as_str().contains(':').then(|| {
        format!(
            "the consumer {consumer:?} has a colon in its name, which separates consumer and topic in names of queues; rename it"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn topic(name: &str) -> Topic {
        Topic::new(name).unwrap()
    }

    #[test]
    fn names_are_what_other_programs_rely_on() {
        let (orders, inventory) = (topic("orders"), Consumer::new("inventory").unwrap());
        assert_eq!(Partitions(1).routing_key(&orders, 0), "orders");
        assert_eq!(Partitions(4).routing_key(&orders, 3), "orders.3");
        assert_eq!(Partitions(1).queue(&inventory, &orders, 0).unwrap().as_str(), "inventory:orders");
        assert_eq!(Partitions(4).queue(&inventory, &orders, 3).unwrap().as_str(), "inventory:orders.3");
        assert_eq!(Partitions(4).of(Bucket(62)), 2);
    }

    #[test]
    fn every_key_has_one_partition_and_every_partition_has_keys() {
        let partitions: BTreeSet<u32> =
            (0..=u8::MAX).map(|bucket| Partitions(7).of(Bucket(bucket))).collect();
        assert_eq!(partitions, (0..7).collect());
    }

    #[test]
    fn no_two_queues_have_one_name() {
        let long = topic(&"t".repeat(249));
        let consumer = Consumer::new("a:b").unwrap();
        assert!(problem_of(&consumer).is_some());
        assert!(problem_of(&Consumer::new("a.b").unwrap()).is_none());
        assert_eq!(Partitions(4).queue(&Consumer::new("inventory").unwrap(), &long, 0), None);
        assert!(Partitions(4).routing_key(&long, 255).len() <= MAX_NAME_BYTES);
    }
}
