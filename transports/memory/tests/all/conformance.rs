//! The suite of all transports, on the in-process one: in both of its modes, on a single thread in
//! paused time and on several in real time.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_contract::Topic;
use outbox_contract::backend::Transport;
use outbox_testkit::transport_suite::TransportHarness;
use outbox_transport_memory::{MemoryTransport, MemoryTransportBuilder};

const LIMIT: usize = 1024 * 1024;

struct Memory<const ENQUEUED: bool> {
    transport: MemoryTransport,
    topics: AtomicUsize,
}

/// Small buffers, so that publishing has to wait for room.
fn builder() -> MemoryTransportBuilder {
    MemoryTransport::builder().buffer_messages(50).max_message_bytes(LIMIT)
}

impl<const ENQUEUED: bool> TransportHarness for Memory<ENQUEUED> {
    async fn fresh() -> Self {
        let builder = if ENQUEUED { builder().confirm_on_enqueue() } else { builder() };
        Self { transport: builder.build(), topics: AtomicUsize::new(0) }
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.transport.clone())
    }

    async fn topic(&self) -> Topic {
        Topic::new(format!("topic-{}", self.topics.fetch_add(1, Ordering::Relaxed))).unwrap()
    }

    fn unroutable_topic(&self) -> Topic {
        Topic::new("nobody-subscribes-to-this").unwrap()
    }

    fn too_large(&self) -> usize {
        LIMIT
    }

    fn quiet(&self) -> Duration {
        Duration::from_millis(50)
    }
}

mod confirmed_when_acknowledged {
    use super::*;
    outbox_testkit::transport_conformance!(Memory<false>, start_paused = true);
}

mod confirmed_when_enqueued {
    use super::*;
    outbox_testkit::transport_conformance!(Memory<true>, start_paused = true);
}

mod on_several_threads {
    use super::*;
    outbox_testkit::transport_conformance!(Memory<false>);
}
