//! Keys of Redis, and their content.
//!
//! Everything of a unit carries the same hash tag, so that one script may touch all of it on a
//! cluster, and units spread over its nodes.

use outbox_contract::backend::{Bucket, Unit};
use outbox_contract::{Consumer, Route, Topic};

/// Names the keys, under one prefix.
///
/// | key | what |
/// |---|---|
/// | `outbox:{orders}` | how many units the topic has |
/// | `outbox:{orders}:members:inventory` | who takes units of it for a consumer |
/// | `outbox:{orders:3}` | the stream of unit 3 |
/// | `outbox:{orders:3}:epochs:default:/shop` | the newest owners of buckets, of one route and source |
/// | `outbox:{orders:3}:owner:inventory` | who has unit 3 for a consumer, and under which epoch |
/// | `outbox:{orders:3}:lease:inventory` | exists while that owner's lease lasts |
#[derive(Clone, Debug)]
pub(crate) struct Routing {
    prefix: String,
}

impl Routing {
    pub(crate) fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }

    pub(crate) fn topic(&self, topic: &Topic) -> String {
        format!("{}:{{{}}}", self.prefix, escaped(topic.as_str()))
    }

    pub(crate) fn members(&self, topic: &Topic, consumer: &Consumer) -> String {
        format!("{}:members:{consumer}", self.topic(topic))
    }

    pub(crate) fn stream(&self, unit: &Unit) -> String {
        format!("{}:{{{}:{}}}", self.prefix, escaped(unit.topic.as_str()), unit.number)
    }

    pub(crate) fn epochs(&self, unit: &Unit, route: &Route, source: &str) -> String {
        format!("{}:epochs:{}:{source}", self.stream(unit), escaped(route.as_str()))
    }

    pub(crate) fn owner(&self, unit: &Unit, consumer: &Consumer) -> String {
        format!("{}:owner:{consumer}", self.stream(unit))
    }

    pub(crate) fn lease(&self, unit: &Unit, consumer: &Consumer) -> String {
        format!("{}:lease:{consumer}", self.stream(unit))
    }

    /// A key to try writing with. It is never read.
    pub(crate) fn probe(&self) -> String {
        format!("{}:check", self.prefix)
    }
}

/// The unit of a message: by its bucket, a hash of topic and key that never changes.
pub(crate) fn unit_of(topic: &Topic, bucket: Bucket, units: u32) -> Unit {
    Unit { topic: topic.clone(), number: u32::from(bucket.0) % units.max(1) }
}

/// A name as part of a key: without what would end a hash tag, or be taken for the next part.
fn escaped(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '%' => out.push_str("%25"),
            ':' => out.push_str("%3A"),
            '{' => out.push_str("%7B"),
            '}' => out.push_str("%7D"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of a key that a cluster hashes.
    fn tag(key: &str) -> &str {
        let open = key.find('{').unwrap();
        let close = key[open..].find('}').unwrap();
        &key[open + 1..open + close]
    }

    #[test]
    fn everything_of_a_unit_is_in_one_slot_of_a_cluster_whatever_the_topic_is_called() {
        let routing = Routing::new("outbox");
        let (consumer, route) = (Consumer::new("in}ven{tory").unwrap(), Route::default());
        for name in ["orders", "a}b", "{x}", "}", "a:b", "100%"] {
            let unit = Unit { topic: Topic::new(name).unwrap(), number: 3 };
            let keys = [
                routing.stream(&unit),
                routing.epochs(&unit, &route, "/shop"),
                routing.owner(&unit, &consumer),
                routing.lease(&unit, &consumer),
            ];
            assert!(keys.iter().all(|key| tag(key) == tag(&keys[0]) && !tag(key).is_empty()), "{keys:?}");
        }
    }

    #[test]
    fn no_topic_is_taken_for_a_unit_of_another() {
        let routing = Routing::new("outbox");
        let unit = Unit { topic: Topic::new("orders").unwrap(), number: 3 };
        assert_eq!(routing.stream(&unit), "outbox:{orders:3}");
        assert_ne!(routing.topic(&Topic::new("orders:3").unwrap()), routing.stream(&unit));
    }

    #[test]
    fn no_route_and_source_are_taken_for_others() {
        let (routing, unit) =
            (Routing::new("outbox"), Unit { topic: Topic::new("orders").unwrap(), number: 3 });
        let key = |route: &str, source| routing.epochs(&unit, &Route::new(route).unwrap(), source);
        assert_eq!(key("default", "/shop"), "outbox:{orders:3}:epochs:default:/shop");
        assert_ne!(key("a", "b:c"), key("a:b", "c"));
    }

    #[test]
    fn a_bucket_is_always_in_the_same_unit() {
        let topic = Topic::new("orders").unwrap();
        for bucket in 0..=255 {
            let unit = unit_of(&topic, Bucket(bucket), 8);
            assert_eq!(unit.number, u32::from(bucket) % 8);
        }
    }
}
