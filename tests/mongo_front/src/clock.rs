//! The cluster's time: in answers, and as clients have received it.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::UNIX_EPOCH;

use bson::spec::BinarySubtype;
use bson::{Binary, Document, Timestamp, doc};

/// The time of the cluster, which grows with each answer. Each answer counts as an operation of its
/// own, reads too: that is more than in MongoDB, and never less than the operations.
#[derive(Debug)]
pub(crate) struct Clock(Mutex<Timestamp>);

impl Default for Clock {
    fn default() -> Self {
        // Above the times of all earlier servers.
        let seconds = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        Self(Mutex::new(Timestamp { time: u32::try_from(seconds).unwrap_or(u32::MAX), increment: 0 }))
    }
}

impl Clock {
    /// Receives the time that a client has seen from an earlier server, or another one of the set.
    pub(crate) fn hear(&self, command: &Document) {
        let heard = command
            .get_document("$clusterTime")
            .ok()
            .and_then(|heard| heard.get_timestamp("clusterTime").ok());
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *now = heard.map_or(*now, |heard| heard.max(*now));
    }

    /// Stamps an answer with its time.
    pub(crate) fn stamp(&self, answer: &mut Document) {
        let now = self.tick();
        // A server without users signs with zeros.
        let hash = Binary { subtype: BinarySubtype::Generic, bytes: vec![0; 20] };
        let signature = doc! { "hash": hash, "keyId": 0_i64 };
        answer.insert("operationTime", now);
        answer.insert("$clusterTime", doc! { "clusterTime": now, "signature": signature });
    }

    fn tick(&self) -> Timestamp {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        now.increment = now.increment.saturating_add(1);
        *now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(clock: &Clock) -> Timestamp {
        let mut answer = doc! {};
        clock.stamp(&mut answer);
        let now = answer.get_timestamp("operationTime").unwrap();
        assert_eq!(answer.get_document("$clusterTime").unwrap().get_timestamp("clusterTime").unwrap(), now);
        now
    }

    #[test]
    fn each_answer_is_later_than_all_before_and_than_what_a_client_has_heard() {
        let clock = Clock::default();
        let (first, second) = (told(&clock), told(&clock));
        assert!(first < second);
        let ahead = Timestamp { time: second.time + 10, increment: 3 };
        clock.hear(&doc! { "find": "a", "$clusterTime": { "clusterTime": ahead } });
        assert_eq!(told(&clock), Timestamp { time: ahead.time, increment: 4 });
        clock.hear(&doc! { "find": "a", "$clusterTime": { "clusterTime": second } });
        clock.hear(&doc! { "find": "a" });
        assert!(told(&clock) > ahead);
    }
}
