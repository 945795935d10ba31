//! TLS with a real broker: with a certificate of the client, with passwords, and everything that
//! can be wrong with it.

#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

#[path = "all/support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outbox_contract::TransportErrorKind;
use outbox_contract::backend::{Outcome, Received, Subscription, Transport, Unavailable};
use outbox_servers::{Kafka, KafkaServer, OrSkip};
use outbox_transport_kafka::{KafkaTransport, KafkaTransportBuilder, Mechanism};
use pkcs8::LineEnding;
use pkcs8::pkcs5::pbes2;
use pkcs8::{PrivateKeyInfo, SecretDocument};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use support::{PATIENCE, deliver, first_of_key, fresh_topic, log, numbered, publish, stored};

/// Lets this program end only when no client does anything any more. Those that were dropped end in
/// the background, and OpenSSL takes down what they use when the program ends: it crashed, with all
/// tests passed.
struct Quiet;

static RUNNING: AtomicUsize = AtomicUsize::new(0);

impl Quiet {
    /// To be dropped last.
    fn at_the_end() -> Self {
        RUNNING.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let is_last = RUNNING.fetch_sub(1, Ordering::SeqCst) == 1;
        let start = Instant::now();
        while is_last && has_clients() && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Returns true if there is a thread of a client. Linux tells.
fn has_clients() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let mut names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.any(|name| name.starts_with("rdk:"))
}

/// For batches that must go through.
const LONG: Duration = Duration::from_secs(60);
/// For batches that can't, and whose reason must not need all of it to be found. What asks the
/// broker about them goes on for as long in the background.
const VERY_LONG: Duration = Duration::from_secs(60);

/// A broker with TLS that asks clients for a certificate.
fn asking() -> Option<KafkaServer> {
    Kafka::newest().asks_for_certificates().shared().or_skip()
}

fn authorities(server: &KafkaServer) -> String {
    std::fs::read_to_string(server.authorities()).unwrap()
}

fn identity(server: &KafkaServer) -> (String, String) {
    let (certificate, key) = server.identity();
    (std::fs::read_to_string(certificate).unwrap(), std::fs::read_to_string(key).unwrap())
}

/// A certificate of an unknown authority, its key, and the authority itself.
fn stranger() -> (String, String, String) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let (key, client_key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let pem = authority.self_signed(&key).unwrap().pem();
    let client = CertificateParams::new(vec!["client".to_owned()]).unwrap();
    let signed = client.signed_by(&client_key, &Issuer::new(authority, key)).unwrap();
    (signed.pem(), client_key.serialize_pem(), pem)
}

/// The same key (PEM), locked with a password.
fn locked(key: &str, password: &str) -> String {
    let (_, key) = SecretDocument::from_pem(key).unwrap();
    let parameters = pbes2::Parameters::pbkdf2_sha256_aes256cbc(2048, b"any salt", &[7; 16]).unwrap();
    let key = PrivateKeyInfo::try_from(key.as_bytes()).unwrap();
    let locked = key.encrypt_with_params(parameters, password).unwrap();
    locked.to_pem("ENCRYPTED PRIVATE KEY", LineEnding::LF).unwrap().to_string()
}

/// A builder that is right in everything.
fn right(server: &KafkaServer) -> KafkaTransportBuilder {
    let (certificate, key) = identity(server);
    KafkaTransport::builder(server.tls_url()).authorities(authorities(server)).identity(certificate, key)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_go_and_come_with_certificates_on_both_sides() {
    let _quiet = Quiet::at_the_end();
    let Some(server) = asking() else { return };
    let topic = fresh_topic(&server.internal_url(), 2, &[]).await;
    let transport = right(&server).build().unwrap();
    transport.check().await.unwrap();
    let messages = stored((0..30).map(|at| numbered(&topic, &format!("key-{}", at % 3), at)));
    deliver(&transport, &messages, LONG).await;
    let there = log(&server.internal_url(), &topic).await;
    for of in 0..3 {
        assert_eq!(first_of_key(&there, &format!("key-{of}")), (of..30).step_by(3).collect::<Vec<_>>());
    }

    let subscription = Subscription::new("reader", [topic]).unwrap();
    let deliveries = transport.subscribe(subscription).await.unwrap();
    let mut received = Vec::new();
    let receiving = async {
        while received.len() < 30 {
            if let Received::Deliveries(some) = deliveries.next().await.unwrap() {
                received.extend(some);
            }
        }
    };
    tokio::time::timeout(PATIENCE, receiving).await.unwrap();
    let tags: Vec<_> = received.into_iter().map(|delivery| delivery.tag).collect();
    deliveries.acknowledge(&tags).await.unwrap();
    deliveries.close().await.unwrap();
}

/// Checks, publishes and subscribes, which all end with the same reason, and long before their time
/// is over.
async fn is_refused(
    builder: KafkaTransportBuilder,
    server: &KafkaServer,
    kind: TransportErrorKind,
    class: &str,
    remedy: &str,
) {
    let topic = fresh_topic(&server.internal_url(), 1, &[]).await;
    let transport = builder.build().unwrap();
    let error = transport.check().await.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(remedy), "{error}");

    let messages = stored([numbered(&topic, "a", 0)]);
    let published = publish(&transport, &messages, VERY_LONG);
    let outcomes = tokio::time::timeout(VERY_LONG * 3 / 4, published).await.unwrap();
    let Some(Outcome::Unavailable(Unavailable::Route, failure)) = &outcomes[0] else {
        panic!("{outcomes:?}")
    };
    assert_eq!(failure.class, class, "{failure:?}");
    assert!(failure.message.contains(remedy), "{failure:?}");

    let subscription = Subscription::new("reader", [topic]).unwrap();
    let error = transport.subscribe(subscription).await.err().unwrap();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(remedy), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_of_an_authority_that_is_not_trusted_is_refused() {
    let _quiet = Quiet::at_the_end();
    let Some(server) = asking() else { return };
    let (_, _, other) = stranger();
    let kind = TransportErrorKind::NotPermitted;
    is_refused(right(&server).authorities(other), &server, kind, "certificate", "(authorities)").await;
    // The system knows nothing of it either.
    let system = KafkaTransport::builder(server.tls_url()).tls();
    is_refused(system, &server, kind, "certificate", "(authorities)").await;
}

/// With the property that lets it pass too: so it is the name alone that is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_whose_certificate_has_another_name_is_refused_with_the_property_that_says_so() {
    let _quiet = Quiet::at_the_end();
    let other = Kafka::newest().certified_as("broker.example").shared();
    let Some(server) = other.or_skip() else { return };
    let kind = TransportErrorKind::NotPermitted;
    let property = "ssl.endpoint.identification.algorithm";
    let builder = KafkaTransport::builder(server.tls_url()).authorities(authorities(&server));
    is_refused(builder.clone(), &server, kind, "certificate", property).await;
    is_refused(builder.clone().property(property, "https"), &server, kind, "certificate", property).await;

    let topic = fresh_topic(&server.internal_url(), 1, &[]).await;
    let of_any_name = builder.property(property, "none").build().unwrap();
    of_any_name.check().await.unwrap();
    deliver(&of_any_name, &stored([numbered(&topic, "a", 0)]), LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_with_a_password_is_opened_and_a_wrong_or_missing_one_is_told() {
    let _quiet = Quiet::at_the_end();
    let Some(server) = asking() else { return };
    let (certificate, key) = identity(&server);
    let key = locked(&key, "hush-of-key");
    let builder = KafkaTransport::builder(server.tls_url())
        .authorities(authorities(&server))
        .identity(certificate, key.clone());
    for wrong in [None, Some("wrong-hush"), Some("")] {
        let builder = wrong.iter().fold(builder.clone(), |it, wrong| it.property("ssl.key.password", *wrong));
        let shown = format!("{builder:?}");
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), TransportErrorKind::Invalid, "{wrong:?}: {error}");
        assert!(error.to_string().contains("ssl.key.password"), "{wrong:?}: {error}");
        let all = format!("{shown} {error} {error:?}");
        assert!(!all.contains("hush") && !all.contains(&key[40..80]), "{wrong:?}: {all}");
    }

    let topic = fresh_topic(&server.internal_url(), 1, &[]).await;
    let builder = builder.property("ssl.key.password", "hush-of-key");
    let transport = builder.build().unwrap();
    assert!(!format!("{transport:?}").contains("hush"), "{transport:?}");
    transport.check().await.unwrap();
    deliver(&transport, &stored([numbered(&topic, "a", 0)]), LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_certificate_that_the_broker_takes_is_told_so() {
    let _quiet = Quiet::at_the_end();
    let Some(server) = asking() else { return };
    let kind = TransportErrorKind::NotPermitted;
    let nobody = KafkaTransport::builder(server.tls_url()).authorities(authorities(&server));
    is_refused(nobody.clone(), &server, kind, "certificate", "(identity)").await;
    let (certificate, key, _) = stranger();
    is_refused(nobody.identity(certificate, key), &server, kind, "certificate", "(identity)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_with_tls_that_is_taken_for_one_without_and_the_other_way_round_is_named() {
    let _quiet = Quiet::at_the_end();
    let Some(server) = asking() else { return };
    let kind = TransportErrorKind::Unavailable;
    is_refused(KafkaTransport::builder(server.tls_url()), &server, kind, "tls", "(tls)").await;
    let without = KafkaTransport::builder(server.url()).authorities(authorities(&server));
    is_refused(without, &server, kind, "tls", "that this listener uses TLS").await;
}

/// Every way to show a password, with TLS; and SCRAM without, which needs no less of librdkafka.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_shown_in_every_way_and_a_wrong_one_is_refused() {
    let _quiet = Quiet::at_the_end();
    let Some(server) = Kafka::newest().authorized().tls().shared().or_skip() else { return };
    // Of the same name as one that may do everything.
    let (name, password) = Kafka::ADMIN;
    let made = {
        let (server, brokers) = (server.clone(), server.internal_url());
        move || {
            // Both in one go are refused.
            for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
                let secret = format!("{mechanism}=[iterations=4096,password={password}]");
                let of_user = [
                    "--bootstrap-server",
                    &brokers,
                    "--alter",
                    "--entity-type",
                    "users",
                    "--entity-name",
                    name,
                ];
                server
                    .tool("kafka.admin.ConfigCommand", &[&of_user[..], &["--add-config", &secret]].concat())
                    .unwrap();
            }
        }
    };
    tokio::task::spawn_blocking(made).await.unwrap();
    let topic = fresh_topic(&server.internal_url(), 1, &[]).await;
    let with_tls = KafkaTransport::builder(server.tls_url()).authorities(authorities(&server));
    let without = KafkaTransport::builder(server.url());
    let ways = [
        (with_tls.clone(), Mechanism::Plain),
        (with_tls.clone(), Mechanism::ScramSha256),
        (with_tls.clone(), Mechanism::ScramSha512),
        (without, Mechanism::ScramSha256),
    ];
    for (at, (builder, mechanism)) in ways.into_iter().enumerate() {
        let transport = builder.credentials(mechanism, name, password).build().unwrap();
        transport.check().await.unwrap();
        deliver(&transport, &stored([numbered(&topic, "a", at)]), LONG).await;
    }
    assert_eq!(first_of_key(&log(&server.internal_url(), &topic).await, "a"), [0, 1, 2, 3]);

    for mechanism in [Mechanism::Plain, Mechanism::ScramSha512] {
        let wrong = with_tls.clone().credentials(mechanism, name, "not-the-secret");
        let kind = TransportErrorKind::NotPermitted;
        is_refused(wrong.clone(), &server, kind, "not-authorized", "refuses these credentials").await;
        let error = wrong.build().unwrap().check().await.unwrap_err();
        assert!(!error.to_string().contains("not-the-secret"), "{error}");
    }
}

#[tokio::test]
async fn what_is_no_certificate_and_no_key_is_refused_and_not_shown() {
    let _quiet = Quiet::at_the_end();
    let (certificate, _, _) = stranger();
    let builder = || KafkaTransport::builder("127.0.0.1:1");
    let wrong = [
        (builder().authorities("hush"), "ssl.ca.pem"),
        (builder().identity("hush", "hush"), "ssl.certificate.pem"),
        (builder().identity(certificate, "hush"), "ssl.key.pem"),
    ];
    for (builder, what) in wrong {
        let shown = format!("{builder:?}");
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), TransportErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(what), "{error}");
        assert!(!format!("{shown} {error} {error:?}").contains("hush"), "{shown} {error:?}");
    }
}
