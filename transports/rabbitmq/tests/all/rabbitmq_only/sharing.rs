//! Members of a consumer that share its queues: they join, leave and lose their connections. On
//! RabbitMQ 4.0: later ones can stop a queue (see `broker.rs`), and there members do not share.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_servers::{OrSkip, Proxy, RabbitMq, RabbitMqServer};
use outbox_testkit::Warnings;
use outbox_transport_rabbitmq::RabbitMqTransport;

use crate::rabbitmq_only::crowd::{Crowd, KEYS, Owners};
use crate::rabbitmq_only::support::{
    declared, delete_queue, deliver, deliveries, eventually, finish, id_of, message, messages, subscribe,
    topic, vhost, vhost_of,
};

const QUEUES: u32 = 16;

/// A virtual host of a broker whose queues move safely.
fn moving() -> Option<(RabbitMqServer, String)> {
    let server = RabbitMq::oldest().shared().or_skip()?;
    let url = server.fresh_vhost();
    Some((server, url))
}

fn shared(url: &str) -> RabbitMqTransport {
    declared(url).partitions(QUEUES).share_queues(true).build().unwrap()
}

/// Returns the number of queues of each member.
fn shares(owners: &Owners) -> Vec<usize> {
    owners.values().map(BTreeSet::len).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_the_queues_and_one_that_leaves_gives_its_own_to_the_others() {
    let Some((_server, url)) = moving() else { return };
    let (transport, crowd) = (shared(&url), Crowd::default());
    let first = crowd.join(&transport).await;
    assert_eq!(shares(&crowd.round(&transport).await), [16]);
    let second = crowd.join(&transport).await;
    let of_two = crowd.round(&transport).await;
    assert_eq!(shares(&of_two), [8, 8]);

    let third = crowd.join(&transport).await;
    let of_three = crowd.round(&transport).await;
    let shares_of_three = shares(&of_three);
    assert!(shares_of_three.iter().all(|share| *share <= 8), "{shares_of_three:?}");
    assert_eq!(shares_of_three.iter().sum::<usize>(), 16);
    for (member, queues) in of_three.iter().filter(|(member, _)| **member != 2) {
        assert!(
            queues.is_subset(&of_two[member]),
            "only the third one took queues: {of_two:?}, {of_three:?}"
        );
    }

    second.leave().await;
    let of_two = crowd.round(&transport).await;
    assert_eq!(shares(&of_two), [8, 8], "the first and the third one: {of_two:?}");
    first.kill().await;
    assert_eq!(shares(&crowd.round(&transport).await), [16]);
    third.leave().await;
    crowd.assert_one_owner_at_a_time();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_do_not_share_leave_everything_to_the_first() {
    let Some((_server, url)) = vhost() else { return };
    let transport = declared(&url).partitions(QUEUES).build().unwrap();
    let crowd = Crowd::default();
    let first = crowd.join(&transport).await;
    let second = crowd.join(&transport).await;
    let owners = crowd.round(&transport).await;
    assert_eq!(shares(&owners), [16]);
    assert!(owners.contains_key(&0), "{owners:?}");
    first.leave().await;
    assert_eq!(shares(&crowd.round(&transport).await), [16]);
    second.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_do_not_share_on_a_broker_that_can_stop_a_queue_and_the_log_says_so() {
    let Some((server, url)) = vhost() else { return };
    let (transport, crowd) = (shared(&url), Crowd::default());
    let (warnings, _guard) = Warnings::capture();
    let first = crowd.join(&transport).await;
    let said = warnings.take();
    let [said] = &said[..] else { panic!("one warning: {said:?}") };
    for part in ["share_queues has no effect", "RabbitMQ 4.", "consumer=inventory"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let second = crowd.join(&transport).await;
    assert_eq!(shares(&crowd.round(&transport).await), [16]);
    let arguments = server.ctl(&["-p", vhost_of(&url), "list_consumers", "queue_name", "arguments"]);
    assert_eq!(arguments.matches("x-consumer-timeout").count(), 32, "{arguments}");
    assert!(!arguments.contains("x-priority"), "{arguments}");
    first.kill().await;
    assert_eq!(shares(&crowd.round(&transport).await), [16]);
    second.leave().await;
}

/// Of two queues the second member gets one, whatever both draw.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_moves_when_everything_of_it_is_acknowledged_and_not_before() {
    let Some((_server, url)) = moving() else { return };
    let transport = declared(&url).partitions(2).share_queues(true).build().unwrap();
    let first = subscribe(&transport).await;
    let orders = topic("orders");
    let of_queue = |queue| {
        let mut keys = (0..).map(|number| format!("key-{number}"));
        keys.find(|key| message(&orders, key, 2).bucket.0 % 2 == queue).unwrap()
    };
    let (a, b) = (of_queue(0), of_queue(1));
    let [before, after, last] = [0; 3].map(|_| messages(&orders, &[&a, &a, &a, &b, &b, &b]));
    deliver(&transport, &before).await;
    let mut held = Vec::new();
    while held.len() < before.len() {
        held.extend(deliveries(&*first).await);
    }

    let second = subscribe(&transport).await;
    deliver(&transport, &after).await;
    // The first one still gets what comes to the queue that is its own.
    let mut came = Vec::new();
    while came.len() < 3 {
        came.extend(deliveries(&*first).await);
    }
    let own = units(came.iter().map(|it| it.tag.unit.number));
    assert_eq!((came.len(), own.len()), (3, 1), "nothing more of the queue that moves");
    let moving: Vec<_> = held.into_iter().filter(|it| !own.contains(&it.tag.unit.number)).collect();
    for held in &moving[..2] {
        first.acknowledge(std::slice::from_ref(&held.tag)).await.unwrap();
    }
    deliver(&transport, &last).await;
    while came.len() < 6 {
        came.extend(deliveries(&*first).await);
    }
    assert_eq!(units(came.iter().map(|it| it.tag.unit.number)), own);
    let said = tokio::time::timeout(Duration::ZERO, second.next()).await;
    assert!(said.is_err(), "one message of it is not finished, and {said:?} came");

    first.acknowledge(std::slice::from_ref(&moving[2].tag)).await.unwrap();
    let key = moving[0].message.as_ref().unwrap().order_key();
    let expected: Vec<_> =
        after.iter().chain(&last).filter(|it| it.message.order_key() == key).cloned().collect();
    let mut moved = Vec::new();
    while moved.len() < expected.len() {
        moved.extend(deliveries(&*second).await);
    }
    let in_order: Vec<_> = expected.iter().map(|stored| stored.message.id).collect();
    assert_eq!(moved.iter().map(id_of).collect::<Vec<_>>(), in_order);
    // Who leaves gives back the rest in order.
    second.acknowledge(std::slice::from_ref(&moved[0].tag)).await.unwrap();
    second.close().await.unwrap();
    assert_eq!(finish(&*first, &expected[1..]).await, in_order[1..]);
}

fn units(numbers: impl Iterator<Item = u32>) -> BTreeSet<u32> {
    numbers.collect()
}

/// Members join, leave and are killed under load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_come_and_go_lose_nothing_and_keep_the_order_of_keys() {
    let Some((_server, url)) = moving() else { return };
    let (transport, crowd) = (shared(&url), Crowd::default());
    let mut members = Vec::from([crowd.join(&transport).await]);
    let story = async {
        for round in 0..4 {
            while members.len() < 3 {
                crowd.more(KEYS).await;
                members.push(crowd.join(&transport).await);
            }
            crowd.more(KEYS).await;
            members.remove(round % 3).leave().await;
            crowd.more(KEYS).await;
            members.remove(0).kill().await;
        }
    };
    let sent = crowd.while_sending(&transport, story).await;
    crowd.finish(&sent).await;
    for member in members {
        member.leave().await;
    }
    crowd.assert_complete_and_in_order(&sent);
    crowd.assert_one_owner_at_a_time();
    crowd.assert_repeats_are_of_the_killed();
}

/// A broker that cancels a consumer, and a connection that is lost, cost a member its queues for as
/// long as it is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_comes_back_has_the_queues_that_it_had() {
    let Some((server, url)) = moving() else { return };
    let (transport, crowd) = (shared(&url), Crowd::default());
    let proxy = Proxy::to(&url);
    let through = shared(&proxy.url(&url));
    let (first, second) = (crowd.join(&transport).await, crowd.join(&through).await);
    let before = crowd.round(&transport).await;
    assert_eq!(shares(&before), [8, 8]);
    let is_as_before = async || (crowd.round(&transport).await == before).then_some(());
    let bids = Bids::of(&server, &url);

    proxy.cut();
    let again = bids.until_new(16, &server, &url).await;
    assert_eq!(again.of_queues, bids.of_queues, "the second member bids what it did");
    eventually("the queues are back", is_as_before).await;

    delete_queue(&url, "inventory:orders.3").await;
    let again = again.until_new(32, &server, &url).await;
    assert_eq!(again.of_queues, bids.of_queues, "both bid what they did");
    eventually("the canceled ones are back", is_as_before).await;
    first.leave().await;
    second.leave().await;
}

/// Consumers of a virtual host, as the broker lists them.
struct Bids {
    tags: BTreeSet<String>,
    /// Names of the queues with the arguments of their consumers.
    of_queues: BTreeSet<(String, String)>,
}

impl Bids {
    fn of(server: &RabbitMqServer, url: &str) -> Self {
        let columns = ["queue_name", "consumer_tag", "arguments"];
        let vhost = vhost_of(url);
        let listed = server.ctl(&[&["-p", vhost, "list_consumers"][..], &columns[..]].concat());
        let mut bids = Self { tags: BTreeSet::new(), of_queues: BTreeSet::new() };
        for line in listed.lines().filter(|line| line.contains("x-priority")) {
            let mut fields = line.split('\t').map(str::to_owned);
            let mut next = || fields.next().unwrap();
            let (queue, tag, arguments) = (next(), next(), next());
            bids.tags.insert(tag);
            bids.of_queues.insert((queue, arguments));
        }
        bids
    }

    /// Waits until this many consumers are other ones, and all are there.
    async fn until_new(&self, count: usize, server: &RabbitMqServer, url: &str) -> Self {
        eventually("the consumers are back", async || {
            let now = Self::of(server, url);
            let new = now.tags.difference(&self.tags).count();
            (now.tags.len() == self.tags.len() && new == count).then_some(now)
        })
        .await
    }
}
