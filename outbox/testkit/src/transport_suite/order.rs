//! Messages of a key arrive in the order of the store (promise P3).

use futures_util::future::join_all;

use super::TransportHarness;
use super::receiver::{Log, Receiver, subscription};
use super::sender::Sender;

/// Several messages of a key travel in one batch, between others.
pub async fn messages_of_a_key_keep_their_order_within_a_batch<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let receiver = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    let sender = Sender::new(harness.transport());
    let messages = sender.messages(&topic, &["a", "b", "a", "a", "c"], 100);
    let sending = sender.start(&messages);
    receiver.finish(&messages).await;
    sending.finish().await;
    log.assert_complete_and_in_order(&messages);
}

/// The next batch of a key is sent when the last one is confirmed.
pub async fn messages_of_a_key_keep_their_order_across_batches<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let receiver = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    let sender = Sender::new(harness.transport());
    let messages = sender.messages(&topic, &["a", "b", "c"], 90);
    let send = async {
        for batch in messages.chunks(7) {
            sender.deliver(batch).await;
        }
    };
    tokio::join!(send, receiver.finish(&messages));
    log.assert_complete_and_in_order(&messages);
}

/// Several batches are unconfirmed at once, never two with the same key.
pub async fn batches_of_different_keys_can_be_published_at_once<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let receiver = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    let sender = Sender::new(harness.transport());
    let lanes: Vec<_> = (0..8)
        .map(|lane| {
            let keys = [format!("{lane}-a"), format!("{lane}-b")];
            sender.messages(&topic, &keys.each_ref().map(String::as_str), 50)
        })
        .collect();
    let messages = lanes.concat();
    let sendings: Vec<_> = lanes.iter().map(|lane| sender.start(lane)).collect();
    receiver.finish(&messages).await;
    join_all(sendings.into_iter().map(super::sender::Sending::finish)).await;
    log.assert_complete_and_in_order(&messages);
}
