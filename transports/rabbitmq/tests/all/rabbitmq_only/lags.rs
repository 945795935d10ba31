//! Backlogs in the queues of a member, and queues that do not exist any more.

use std::collections::BTreeMap;

use outbox_contract::Timestamp;
use outbox_contract::backend::{Deliveries, LossCause, OffsetReset, Subscription, Transport};

use crate::rabbitmq_only::support::{
    consumer, declared, delete_queue, deliver, eventually, finish, messages, subscribe, subscription, topic,
    vhost,
};

async fn waits(member: &dyn Deliveries, messages: u64) {
    let lag = async || {
        let lags = member.lags();
        (!lags.is_empty() && lags.iter().map(|lag| lag.messages).sum::<u64>() == messages).then_some(())
    };
    eventually("what waits is measured", lag).await;
}

#[tokio::test]
async fn what_waits_in_a_queue_and_what_the_member_has_of_it_is_measured() {
    let Some((_, url)) = vhost() else { return };
    let transport = declared(&url).build().unwrap();
    let sent = messages(&topic("orders"), &["a", "b"].repeat(100));
    let member = transport.subscribe(subscription().with_prefetch(10)).await.unwrap();
    deliver(&transport, &sent).await;
    waits(&*member, 200).await;
    finish(&*member, &sent).await;
    waits(&*member, 0).await;
}

/// Every member asks for every queue: added up, the figures would be too large.
#[tokio::test]
async fn what_waits_in_a_queue_is_reported_by_the_member_that_has_it() {
    let Some((_, url)) = vhost() else { return };
    let transport = declared(&url).consumer(topic("bills"), consumer()).build().unwrap();
    let sent = messages(&topic("orders"), &["a", "b"].repeat(100));
    let both = || Subscription::new(consumer(), [topic("orders"), topic("bills")]).unwrap().with_prefetch(10);
    let first = transport.subscribe(both()).await.unwrap();
    deliver(&transport, &sent).await;
    waits(&*first, 200).await;
    let second = transport.subscribe(both()).await.unwrap();
    let lags = eventually("it looked", async || Some(second.lags()).filter(|lags| !lags.is_empty())).await;
    assert_eq!(
        lags.iter().map(|lag| (lag.unit.topic.as_str(), lag.messages)).collect::<Vec<_>>(),
        [("bills", 0)]
    );
}

/// It is made again, so nothing else would tell that what was in it is gone.
#[tokio::test]
async fn a_queue_that_was_deleted_is_said_to_be_lost() {
    let Some((_, url)) = vhost() else { return };
    let transport = declared(&url).build().unwrap();
    let member = subscribe(&transport).await;
    assert!(member.losses().is_empty(), "a new consumer has lost nothing");
    delete_queue(&url, "inventory:orders").await;
    let lost = async || {
        // It learns of it when it receives.
        let _ = tokio::time::timeout(std::time::Duration::from_millis(50), member.next()).await;
        member.losses().pop()
    };
    let loss = eventually("the queue is missed", lost).await;
    assert!(loss.cause == LossCause::Queue && loss.words.contains("inventory:orders"), "{loss}");
    member.close().await.unwrap();

    delete_queue(&url, "inventory:orders").await;
    let handled = BTreeMap::from([(topic("orders"), Timestamp::now())]);
    let again = subscription().with_handled(handled, OffsetReset::None);
    let member = transport.subscribe(again.clone()).await.unwrap();
    assert_eq!(member.losses().len(), 1, "it was there when the consumer was last");
    let sent = messages(&topic("orders"), &["a"]);
    deliver(&transport, &sent).await;
    finish(&*member, &sent).await;
    member.close().await.unwrap();
    let member = transport.subscribe(again).await.unwrap();
    assert!(member.losses().is_empty());
}
