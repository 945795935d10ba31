//! A crowd of members of one consumer that work, and what they have seen.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use outbox_contract::MessageId;
use outbox_contract::backend::{Deliveries, Delivery, Received, Stored, Transport};
use outbox_transport_rabbitmq::RabbitMqTransport;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};

use crate::rabbitmq_only::support::{deliver, eventually, id_of, message, subscription, topic};

/// Number of keys, which leaves none of 16 queues without one.
pub(crate) const KEYS: usize = 96;

/// Prefetch of each member.
const PREFETCH: usize = 20;

/// Queues of each member, by the number of the member.
pub(crate) type Owners = BTreeMap<usize, BTreeSet<u32>>;

#[derive(Clone, Default)]
pub(crate) struct Crowd(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    members: usize,
    killed: BTreeSet<usize>,
    /// Everything that was handled, in order.
    handled: Vec<Handled>,
    /// Deliveries in the hands of each member, by queue.
    in_hand: BTreeMap<(u32, usize), usize>,
    /// Queues of which two members had deliveries at once.
    overlaps: Vec<String>,
}

struct Handled {
    member: usize,
    queue: u32,
    id: MessageId,
}

impl Crowd {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap()
    }

    pub(crate) async fn join(&self, transport: &RabbitMqTransport) -> Member {
        let deliveries = transport.subscribe(subscription().with_prefetch(PREFETCH)).await.unwrap();
        let number = {
            let mut seen = self.seen();
            seen.members += 1;
            seen.members - 1
        };
        let (leave, asked) = oneshot::channel();
        let task = tokio::spawn(work(self.clone(), number, deliveries, asked));
        Member { crowd: self.clone(), number, leave, task }
    }

    /// Sends one message of each key, and waits until all of them were handled. Returns who has
    /// which queues.
    pub(crate) async fn round(&self, transport: &RabbitMqTransport) -> Owners {
        let sent = one_of_each_key();
        deliver(transport, &sent).await;
        self.finish(&sent).await;
        let (seen, mut owners) = (self.seen(), Owners::new());
        let ids: BTreeSet<MessageId> = sent.iter().map(|stored| stored.message.id).collect();
        for handled in seen.handled.iter().filter(|it| ids.contains(&it.id)) {
            owners.entry(handled.member).or_default().insert(handled.queue);
        }
        owners
    }

    pub(crate) async fn finish(&self, sent: &[Arc<Stored>]) {
        eventually("everything is handled", async || {
            let seen = self.seen();
            let ids: BTreeSet<MessageId> = seen.handled.iter().map(|it| it.id).collect();
            sent.iter().all(|stored| ids.contains(&stored.message.id)).then_some(())
        })
        .await;
    }

    /// Sends messages until the story is over. Returns what was sent, in order.
    pub(crate) async fn while_sending(
        &self,
        transport: &RabbitMqTransport,
        story: impl Future<Output = ()>,
    ) -> Vec<Arc<Stored>> {
        let (is_over, mut sent) = (Cell::new(false), Vec::new());
        let sending = async {
            while !is_over.get() {
                let round = one_of_each_key();
                deliver(transport, &round).await;
                sent.extend(round);
                // No faster than they are handled.
                let goal = sent.len().saturating_sub(3 * KEYS);
                eventually("most is handled", async || (self.seen().handled.len() >= goal).then_some(()))
                    .await;
            }
        };
        tokio::join!(sending, async {
            story.await;
            is_over.set(true);
        });
        sent
    }

    /// Waits until so many more were handled.
    pub(crate) async fn more(&self, count: usize) {
        let goal = self.seen().handled.len() + count;
        eventually("more is handled", async || (self.seen().handled.len() >= goal).then_some(())).await;
    }

    pub(crate) fn assert_complete_and_in_order(&self, sent: &[Arc<Stored>]) {
        let (seen, mut first) = (self.seen(), BTreeMap::new());
        for (place, handled) in seen.handled.iter().enumerate() {
            first.entry(handled.id).or_insert(place);
        }
        let mut last: BTreeMap<String, usize> = BTreeMap::new();
        for stored in sent {
            let key = stored.message.order_key().as_str().to_owned();
            let place = first.get(&stored.message.id).unwrap_or_else(|| panic!("one of {key} is lost"));
            let before = last.insert(key.clone(), *place);
            assert!(before.is_none_or(|before| before < *place), "{key}: one overtook another");
        }
    }

    pub(crate) fn assert_one_owner_at_a_time(&self) {
        let overlaps = &self.seen().overlaps;
        assert!(overlaps.is_empty(), "{overlaps:#?}");
    }

    /// Asserts that nothing was handled twice but what a member had in hand that was killed.
    pub(crate) fn assert_repeats_are_of_the_killed(&self) {
        let (seen, mut by) = (self.seen(), BTreeMap::new());
        let mut repeats = 0;
        for Handled { member, id, .. } in &seen.handled {
            if let Some(earlier) = by.insert(id, *member) {
                assert!(
                    seen.killed.contains(&earlier),
                    "member {earlier} finished it, and {member} got it again"
                );
                repeats += 1;
            }
        }
        println!("{} handled by {} members, {repeats} of them twice", seen.handled.len(), seen.members);
    }
}

impl Seen {
    fn receive(&mut self, member: usize, delivery: &Delivery) {
        let queue = delivery.tag.unit.number;
        for (_, other) in self.in_hand.keys().filter(|(of, other)| (*of, true) == (queue, *other != member)) {
            self.overlaps.push(format!("queue {queue}: of {other}, and of {member}"));
        }
        *self.in_hand.entry((queue, member)).or_default() += 1;
    }

    fn finish(&mut self, member: usize, queue: u32) {
        let in_hand = self.in_hand.entry((queue, member)).or_default();
        *in_hand = in_hand.saturating_sub(1);
        if *in_hand == 0 {
            self.in_hand.remove(&(queue, member));
        }
    }

    /// Its deliveries are the broker's again.
    fn gone(&mut self, member: usize) {
        self.in_hand.retain(|(_, of), _| *of != member);
    }
}

/// A member at work.
pub(crate) struct Member {
    crowd: Crowd,
    number: usize,
    leave: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Member {
    /// Leaves politely: handles what it has in hand, and closes.
    pub(crate) async fn leave(self) {
        self.leave.send(()).unwrap();
        self.task.await.unwrap();
    }

    /// Ends at once, with what it has in hand.
    pub(crate) async fn kill(self) {
        self.crowd.seen().killed.insert(self.number);
        self.task.abort();
        assert!(self.task.await.is_err_and(|error| error.is_cancelled()));
    }
}

/// Forgets what is in the hands of a member, before its connection is cut.
struct Gone(Crowd, usize);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.seen().gone(self.1);
    }
}

async fn work(
    crowd: Crowd,
    number: usize,
    deliveries: Box<dyn Deliveries>,
    mut asked: oneshot::Receiver<()>,
) {
    // Behind the deliveries, so that it is dropped before them.
    let gone = Gone(crowd.clone(), number);
    let mut is_leaving = false;
    loop {
        let received = tokio::select! {
            _ = &mut asked, if !is_leaving => {
                is_leaving = true;
                deliveries.drain().await.unwrap();
                continue;
            }
            received = deliveries.next() => received,
        };
        match received {
            Ok(Received::Deliveries(batch)) => handle(&crowd, number, &*deliveries, batch).await,
            Ok(Received::Revoked(_)) => crowd.seen().gone(number),
            Ok(Received::Ended) => break,
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    drop(gone);
    deliveries.close().await.unwrap();
}

/// Handles messages one by one, each with a pause in which the member may be killed.
async fn handle(crowd: &Crowd, number: usize, deliveries: &dyn Deliveries, batch: Vec<Delivery>) {
    batch.iter().for_each(|delivery| crowd.seen().receive(number, delivery));
    for delivery in batch {
        let (queue, id) = (delivery.tag.unit.number, id_of(&delivery));
        crowd.seen().handled.push(Handled { member: number, queue, id });
        yield_now().await;
        // Before the broker is told: then the queue may move at once.
        crowd.seen().finish(number, queue);
        // Over a connection that is lost meanwhile it comes again.
        let _ = deliveries.acknowledge(&[delivery.tag]).await;
    }
}

fn one_of_each_key() -> Vec<Arc<Stored>> {
    (0..KEYS).map(|key| message(&topic("orders"), &format!("key-{key}"), 2)).collect()
}
