//! RabbitMQ for tests.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use outbox_servers::{OrSkip as _, RabbitMq};

/// The virtual host that a URL names.
fn vhost(url: &str) -> &str {
    url.rsplit_once('/').unwrap().1
}

#[test]
fn every_test_gets_an_empty_virtual_host_that_outlives_a_kill() {
    let Some(server) = RabbitMq::newest().start().or_skip() else { return };
    let (one, other) = (server.fresh_vhost(), server.fresh_vhost());
    assert_ne!(one, other);
    let hosts = |server: &outbox_servers::RabbitMqServer| {
        let rights = server.ctl(&["list_user_permissions", "guest", "--no-table-headers"]);
        rights.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let before = hosts(&server);
    assert!(before.iter().any(|name| name == vhost(&one)) && before.iter().any(|name| name == vhost(&other)));
    assert!(server.pids().len() > 2, "the server, its port mapper, its helpers: {:?}", server.pids());
    assert!(server.usage().memory > 10 << 20, "{:?}", server.usage());
    server.kill();
    assert_eq!(server.pids(), [0; 0]);
    assert!(std::net::TcpStream::connect(address(&one)).is_err());
    server.start_again();
    server.restart();
    assert!(std::net::TcpStream::connect(address(&one)).is_ok());
    let mut after = hosts(&server);
    let mut before = before;
    before.sort();
    after.sort();
    assert_eq!(after, before);
}

/// The host and port of a URL.
fn address(url: &str) -> &str {
    url.split('@').nth(1).unwrap().split('/').next().unwrap()
}

#[test]
fn tls_is_offered_with_a_certificate_that_a_client_can_check() {
    let Some(server) = RabbitMq::newest().tls().config("heartbeat = 11").start().or_skip() else { return };
    // Erlang's own client; it runs inside of the server and sees the file under the path there.
    let authorities = server.inside(&server.authorities());
    let port = address(&server.tls_url().replace("%2f", "")).rsplit_once(':').unwrap().1.to_owned();
    let connect = format!(
        "{{ok, S}} = ssl:connect(\"localhost\", {port}, [{{verify, verify_peer}}, {{cacertfile, \"{authorities}\"}}], 60000), ssl:close(S)."
    );
    assert_eq!(server.ctl(&["eval", &connect]), "ok");
    assert!(server.ctl(&["environment"]).contains("{heartbeat,11}"));
}
