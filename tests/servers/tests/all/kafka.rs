//! Apache Kafka for tests. Its own tools show its behavior, each of which is a Java process of its
//! own.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use outbox_servers::{Kafka, KafkaServer, OrSkip as _};

const PATIENCE: Duration = Duration::from_secs(300);

fn create(server: &KafkaServer, topic: &str) {
    let args =
        ["--bootstrap-server", &server.internal_url(), "--create", "--topic", topic, "--partitions", "1"];
    server.tool("org.apache.kafka.tools.TopicCommand", &args).unwrap();
}

/// State of a topic: its leader, its replicas, those in sync.
fn describe(server: &KafkaServer, topic: &str) -> String {
    let args = ["--bootstrap-server", &server.internal_url(), "--describe", "--topic", topic];
    server.tool("org.apache.kafka.tools.TopicCommand", &args).unwrap()
}

/// Sends records with acknowledgements of all, and returns the error.
fn send(server: &KafkaServer, to: &str, topic: &str, more: &[&str]) -> Result<String, String> {
    let to = format!("bootstrap.servers={to}");
    let mut args = vec!["--topic", topic, "--num-records", "10", "--record-size", "10", "--throughput", "-1"];
    args.extend(["--producer-props", "acks=all", &to]);
    args.extend(more);
    let said = server.tool("org.apache.kafka.tools.ProducerPerformance", &args)?;
    // It exits with 0 whatever happens.
    if said.contains("Exception") { Err(said) } else { Ok(said) }
}

/// Number of records of a topic of one partition.
fn count(server: &KafkaServer, topic: &str) -> u64 {
    let args = ["--bootstrap-server", &server.internal_url(), "--topic", topic];
    let said = server.tool("org.apache.kafka.tools.GetOffsetShell", &args).unwrap();
    said.lines().find_map(|line| line.strip_prefix(&format!("{topic}:0:"))).unwrap().parse().unwrap()
}

#[test]
fn a_broker_keeps_what_it_has_over_a_kill() {
    let Some(server) = Kafka::newest().start().or_skip() else { return };
    create(&server, "t");
    send(&server, &server.url(), "t", &[]).unwrap();
    server.kill();
    server.start_again();
    // It may have been repeated.
    assert!(count(&server, "t") >= 10);
    server.restart();
}

#[test]
fn two_of_three_brokers_take_writes_and_one_does_not() {
    let Some(cluster) = Kafka::newest().start_cluster().or_skip() else { return };
    assert_eq!(cluster.url().split(',').count(), cluster.size());
    let left = cluster.broker(2);
    create(left, "t");
    assert!(describe(left, "t").contains("ReplicationFactor: 3"), "{}", describe(left, "t"));
    cluster.broker(0).kill();
    until(|| in_step(left) == 2);
    send(left, &cluster.url(), "t", &[]).unwrap();
    cluster.broker(1).kill();
    until(|| in_step(left) == 1);
    let error =
        send(left, &left.url(), "t", &["delivery.timeout.ms=10000", "request.timeout.ms=5000"]).unwrap_err();
    assert!(error.contains("NotEnoughReplicasException") || error.contains("TimeoutException"), "{error}");
    cluster.broker(0).start_again();
    cluster.broker(1).start_again();
    until(|| in_step(left) == 3);
    send(left, &cluster.url(), "t", &[]).unwrap();
    assert!(count(left, "t") >= 20);
}

/// Number of replicas of the topic `t` in sync.
fn in_step(server: &KafkaServer) -> usize {
    let said = describe(server, "t");
    let isr = said.split("Isr: ").nth(1).unwrap().split_whitespace().next().unwrap();
    isr.split(',').count()
}

#[track_caller]
fn until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE);
    }
}

#[test]
fn users_do_what_they_have_a_right_to_with_and_without_tls() {
    let Some(server) = Kafka::newest().authorized().tls().start().or_skip() else { return };
    create(&server, "t");
    let authorities = server.authorities();
    let properties = authorities.with_file_name("client.properties");
    let (trusted, properties_inside) = (server.inside(&authorities), server.inside(&properties));
    let send_as = |(name, password): (&str, &str), to: &str, protocol: &str, more: &str| {
        let login = "org.apache.kafka.common.security.plain.PlainLoginModule";
        let lines = format!(
            "sasl.jaas.config={login} required username=\"{name}\" password=\"{password}\";\n\
             sasl.mechanism=PLAIN\nsecurity.protocol={protocol}\n{more}\n"
        );
        std::fs::write(&properties, lines).unwrap();
        send(&server, to, "t", &["--command-config", &properties_inside])
    };
    let (plain, tls) = (server.url(), server.tls_url());
    send_as(Kafka::ADMIN, &plain, "SASL_PLAINTEXT", "").unwrap();
    // An idempotent producer would fail earlier, and without the reason.
    let error = send_as(Kafka::NOBODY, &plain, "SASL_PLAINTEXT", "enable.idempotence=false").unwrap_err();
    assert!(error.contains("TopicAuthorizationException"), "{error}");
    let error = send_as(("admin", "wrong"), &plain, "SASL_PLAINTEXT", "").unwrap_err();
    assert!(error.contains("SaslAuthenticationException"), "{error}");

    let trust = format!("ssl.truststore.type=PEM\nssl.truststore.location={trusted}");
    send_as(Kafka::ADMIN, &tls, "SASL_SSL", &trust).unwrap();
    let error = send_as(Kafka::ADMIN, &tls, "SASL_SSL", "").unwrap_err();
    assert!(error.contains("SslAuthenticationException"), "its authority is unknown: {error}");
    assert!(count(&server, "t") >= 20);
}

#[test]
fn clients_are_led_through_the_proxy() {
    let Some(server) = Kafka::newest().proxied().start().or_skip() else { return };
    create(&server, "t");
    let proxy = server.proxy();
    assert_eq!(proxy.came(), 0, "tools and brokers do not come this way");
    send(&server, &server.url(), "t", &[]).unwrap();
    assert!(proxy.came() >= 2, "the first connection and the one that the broker told: {}", proxy.came());
    proxy.swallow_answers();
    let lost = ["delivery.timeout.ms=10000", "request.timeout.ms=5000", "max.block.ms=5000"];
    let error = send(&server, &server.url(), "t", &lost).unwrap_err();
    assert!(error.contains("TimeoutException"), "{error}");
    proxy.pass();
    proxy.cut();
    server.restart();
    assert_eq!(server.proxy().addr(), proxy.addr());
    send(&server, &server.url(), "t", &[]).unwrap();
}
