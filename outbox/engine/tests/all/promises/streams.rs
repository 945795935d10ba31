//! Keys with a steady stream of messages: a key that failed is retried when due, catches up, and
//! becomes an ordinary key again (P2, P5).

use std::time::Duration;

use outbox_contract::{MessageId, RetryPolicy};
use outbox_engine::RelayHandle;
use outbox_testkit::Fault;

use crate::promises::support::{MS, Rig, S, World, message};

/// Interval of messages, and latencies of the store for reads and for transitions of failing keys.
#[derive(Clone, Copy, Debug)]
struct Case {
    every: Duration,
    read: Duration,
    step: Duration,
}

const CASES: [Case; 4] = [
    Case { every: Duration::from_millis(2), read: MS, step: Duration::from_millis(5) },
    Case { every: MS, read: MS, step: Duration::from_millis(3) },
    Case { every: Duration::from_millis(5), read: Duration::from_millis(2), step: Duration::from_millis(10) },
    Case { every: Duration::from_millis(2), read: Duration::ZERO, step: Duration::ZERO },
];

/// A relay, and a steady stream of messages.
struct Stream {
    world: World,
    rig: Rig,
    relay: RelayHandle,
    every: Duration,
    keys: u64,
    sent: Vec<MessageId>,
}

impl Stream {
    async fn new(world: World, case: Case) -> Self {
        let rig = world.rig();
        rig.takes(case.read, case.step);
        let retry = RetryPolicy {
            first_delay: MS * 20,
            max_delay: MS * 20,
            max_attempts: u32::MAX,
            ..RetryPolicy::default()
        };
        let relay = rig.relay().retry(retry).start().await.unwrap();
        Self { world, rig, relay, every: case.every, keys: 1, sent: Vec::new() }
    }

    async fn flow(&mut self, lasts: Duration) {
        let began = tokio::time::Instant::now();
        while began.elapsed() < lasts {
            self.one().await;
            tokio::time::sleep(self.every).await;
        }
    }

    async fn one(&mut self) -> MessageId {
        let key = format!("key-{}", self.sent.len() as u64 % self.keys);
        let id = self.world.append([message(&key)]).await[0];
        self.sent.push(id);
        id
    }

    /// Makes the next message of each key fail, so many times.
    async fn fails(&mut self, times: usize) {
        for _ in 0..self.keys {
            let id = self.one().await;
            self.rig.transport.inject_times(id, Fault::Failed, times);
        }
    }

    /// Asserts that each message arrives soon after it was written, and that nothing more is
    /// parked.
    async fn is_ordinary(&mut self, what: &str) {
        let parked = self.relay.stats().parked;
        let lag = usize::try_from((MS * 200).as_micros() / self.every.as_micros()).unwrap();
        for _ in 0..10 {
            self.flow(MS * 100).await;
            let (sent, arrived) = (self.sent.len(), self.world.broker.len());
            assert!(arrived + lag >= sent, "{what}: of {sent} messages {arrived} have arrived");
        }
        let stats = self.relay.stats();
        assert_eq!(stats.parked, parked, "{what}: nothing more is parked");
        assert_eq!(self.world.store.snapshot().failing_keys, 0, "{what}");
        self.world.drained(S).await;
        let arrived = self.world.arrived();
        assert!(self.keys > 1 || arrived == self.sent, "{what}: each arrived once, and in order");
        assert_eq!(arrived.len(), self.sent.len(), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_failed_once_is_tried_and_flows_on_while_its_messages_keep_coming() {
    let others = [(World::concurrent(), CASES[0]), (World::stripes(), CASES[0])];
    for (world, case) in CASES.map(|case| (World::new(), case)).into_iter().chain(others) {
        let mut stream = Stream::new(world, case).await;
        stream.flow(MS * 500).await;
        stream.fails(1).await;
        stream.flow(S).await;
        stream.is_ordinary(&format!("{case:?}")).await;
        assert_eq!(stream.relay.stats().failed, 1);
    }
}

/// It has a backlog when it finally succeeds, and more messages keep arriving.
#[tokio::test(start_paused = true)]
async fn a_key_that_failed_for_long_catches_up_while_its_messages_keep_coming() {
    for case in CASES {
        let mut stream = Stream::new(World::new(), case).await;
        stream.fails(40).await;
        stream.flow(S * 4).await;
        stream.is_ordinary(&format!("{case:?}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn many_keys_that_failed_flow_on_while_their_messages_keep_coming() {
    for case in CASES {
        let mut stream = Stream::new(World::new(), case).await;
        stream.keys = 50;
        stream.fails(3).await;
        stream.flow(S * 2).await;
        stream.is_ordinary(&format!("{case:?}")).await;
    }
}

/// Messages behind a key that always fails are parked, and the key is retried on schedule.
#[tokio::test(start_paused = true)]
async fn a_key_that_always_fails_is_tried_in_time_while_its_messages_keep_coming() {
    for case in CASES {
        let mut stream = Stream::new(World::new(), case).await;
        stream.fails(usize::MAX).await;
        stream.flow(S * 4).await;
        // One retry each 10 ms on average because of jitter, plus the latency of the store.
        let failed = stream.relay.stats().failed;
        assert!(failed >= 60, "{case:?}: it was tried {failed} times in 4 s");
        let (hot, parked) = (stream.world.store.snapshot().hot.len(), stream.relay.stats().parked);
        assert!(hot <= 200, "{case:?}: {hot} wait to be set aside, {parked} are");
    }
}
