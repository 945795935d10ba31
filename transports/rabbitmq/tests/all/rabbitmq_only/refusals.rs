//! A broker, a network or an operator that refuses: said with a remedy and without a secret.

use std::io::{ErrorKind, Read as _};
use std::net::TcpListener;
use std::time::Duration;

use outbox_contract::backend::{Outcome, Transport, Unavailable};
use outbox_contract::{TransportError, TransportErrorKind as Kind};
use outbox_servers::{OrSkip, RabbitMq};
use outbox_transport_rabbitmq::{RabbitMqTransport, Topology};

use crate::rabbitmq_only::support::{
    PATIENCE, declared, deliver, messages, publish, subscription, topic, vhost, vhost_of,
};

/// Looks at the broker, and publishes: both say the same.
async fn refused(transport: RabbitMqTransport) -> TransportError {
    let error = transport.check().await.unwrap_err();
    let outcomes = publish(&transport, &messages(&topic("orders"), &["a"]), PATIENCE).await;
    assert!(matches!(outcomes[0], Some(Outcome::Unavailable(Unavailable::Route, _))), "{outcomes:?}");
    error
}

fn assert_says(error: &TransportError, kind: Kind, words: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
    assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
}

#[tokio::test]
async fn a_wrong_password_is_named_without_a_word_of_it() {
    let Some((_server, url)) = vhost() else { return };
    let error = refused(declared(&url.replace("guest:guest", "guest:s3cret")).build().unwrap()).await;
    assert_says(&error, Kind::NotPermitted, "user \"guest\"");
}

#[tokio::test]
async fn an_unknown_vhost_is_missing() {
    let Some((_server, url)) = vhost() else { return };
    let url = url.replace(vhost_of(&url), "nowhere");
    assert_says(&refused(declared(&url).build().unwrap()).await, Kind::Missing, "vhost \"nowhere\"");
}

#[tokio::test]
async fn a_queue_that_is_missing_is_named() {
    let Some((_server, url)) = vhost() else { return };
    for topology in [Topology::Checked, Topology::Trusted] {
        let transport = RabbitMqTransport::builder(&url).topology(topology).build().unwrap();
        let error = transport.subscribe(subscription()).await.err().unwrap();
        assert_says(&error, Kind::Missing, "queue \"inventory:orders\"");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_is_told_what_to_grant() {
    let Some((server, url)) = vhost() else { return };
    let (vhost, user) = (vhost_of(&url), format!("user_of_{}", vhost_of(&url)));
    server.ctl(&["add_user", &user, "s3cret"]);
    let of_user = url.replace("guest:guest", &format!("{user}:s3cret"));
    let error = refused(declared(&of_user).build().unwrap()).await;
    assert_says(&error, Kind::NotPermitted, "set its permissions");

    // Everything is there, and may be read and consumed, but neither written nor looked into.
    let owner = declared(&url).build().unwrap();
    owner.check().await.unwrap();
    server.ctl(&["set_permissions", "-p", vhost, &user, "^$", "^$", ".*"]);
    let trusting = RabbitMqTransport::builder(&of_user).topology(Topology::Trusted).build().unwrap();
    let outcomes = publish(&trusting, &messages(&topic("orders"), &["a", "b"]), PATIENCE).await;
    for outcome in outcomes {
        let Some(Outcome::Unavailable(Unavailable::Route, failure)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(failure.class, "not-authorized", "{failure}");
    }
    trusting.subscribe(subscription()).await.unwrap();
    let checking = RabbitMqTransport::builder(&of_user).build().unwrap();
    let error = checking.subscribe(subscription()).await.err().unwrap();
    assert_says(&error, Kind::NotPermitted, "needs the `configure` permission");
}

#[tokio::test]
async fn tls_is_used_with_an_authority_that_is_given_and_refused_without() {
    let Some(server) = RabbitMq::newest().tls().shared().or_skip() else { return };
    let url = server.tls_url();
    let error = refused(declared(&url).build().unwrap()).await;
    assert_says(&error, Kind::NotPermitted, "certificate");

    let authorities = std::fs::read_to_string(server.authorities()).unwrap();
    let transport = declared(&url).authorities(authorities.as_str()).build().unwrap();
    transport.check().await.unwrap();
    deliver(&transport, &messages(&topic("orders"), &["a", "b"])).await;
    let plain_port =
        declared(&server.url().replace("amqp:", "amqps:")).authorities(authorities).build().unwrap();
    assert_says(&refused(plain_port).await, Kind::Unavailable, "TLS");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_connections_is_named() {
    let Some((server, url)) = vhost() else { return };
    server.ctl(&["set_vhost_limits", "-p", vhost_of(&url), r#"{"max-connections": 0}"#]);
    assert_says(&refused(declared(&url).build().unwrap()).await, Kind::Unavailable, "limit");
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_unavailable() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let transport = declared(&format!("amqp://shop:s3cret@127.0.0.1:{port}/%2f")).build().unwrap();
    assert_says(&refused(transport).await, Kind::Unavailable, "connection refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_says_nothing_is_given_up_with_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let peer = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        // The greeting, and then the end: nothing of the attempt stays behind.
        let mut greeting = Vec::new();
        connection.read_to_end(&mut greeting)
    });
    let url = format!("amqp://shop:s3cret@127.0.0.1:{port}/%2f");
    let transport = declared(&url).timeout(Duration::from_secs(1)).build().unwrap();
    let error = transport.check().await.unwrap_err();
    assert_says(&error, Kind::Unavailable, "did not answer within 1s");
    let ended = tokio::task::spawn_blocking(move || peer.join().unwrap()).await.unwrap();
    let timed_out =
        ended.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    assert!(!timed_out, "the connection is closed");
}
