//! MySQL and MariaDB for tests.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use outbox_servers::{Galera, MariaDb, MySql, OrSkip as _};

fn all() -> [MySql; 3] {
    [MySql::newest(), MariaDb::newest(), MariaDb::oldest()]
}

#[test]
fn every_test_gets_an_empty_database_of_the_shared_server() {
    for request in all() {
        let Some(server) = request.clone().shared().or_skip() else { return };
        let (one, other) = (server.fresh_database(), server.fresh_database());
        server.query(&one, "create table t (n int, s text); insert into t values (1, 'a'), (2, null)");
        assert_eq!(server.query(&one, "select n, s from t order by n"), "1\ta\n2\tNULL");
        assert_eq!(server.query(&other, "show tables"), "");
        assert_eq!(request.shared().unwrap().url(), server.url(), "one server for all");
    }
}

#[test]
fn the_versions_and_settings_are_those_that_were_asked_for() {
    let settings = "select substring_index(version(), '.', 1), @@max_connections, @@log_bin, @@innodb_flush_log_at_trx_commit";
    for (request, number) in all().into_iter().zip(["9", "11", "10"]) {
        let Some(server) = request.clone().start().or_skip() else { return };
        assert_eq!(server.query(&server.url(), settings), format!("{number}\t200\t0\t2"));
        let server = request.config("max_connections = 123").binlog().durable().start().unwrap();
        assert_eq!(server.query(&server.url(), settings), format!("{number}\t123\t1\t1"));
    }
}

#[test]
fn what_was_committed_survives_a_kill_and_a_stop() {
    for request in all() {
        let Some(server) = request.start().or_skip() else { return };
        let url = server.fresh_database();
        server.query(&url, "create table t (n int)");
        for (count, end) in [("1", "stop"), ("2", "kill")] {
            server.query(&url, "insert into t values (1)");
            assert!(!server.pids().is_empty() && server.usage().memory > 10 << 20, "{:?}", server.usage());
            match end {
                "stop" => server.stop(),
                _ => server.kill(),
            }
            assert_eq!(server.pids(), [0; 0]);
            assert!(server.try_query(&url, "select 1").is_err(), "it still answers after {end}");
            server.start_again();
            assert_eq!(server.query(&url, "select count(*) from t"), count);
        }
    }
}

#[test]
fn a_user_with_a_password_is_let_in_with_it_alone() {
    for request in all() {
        let Some(server) = request.tls().start().or_skip() else { return };
        server.query(&server.url(), "create user u@'127.0.0.1' identified by 'a@b:c'");
        let with = |password: &str| {
            server.tls_url().replace("root@", &format!("u:{password}@")).replace("/mysql", "/")
        };
        assert_eq!(server.query(&with("a%40b%3Ac"), "select current_user()"), "u@127.0.0.1");
        let error = server.try_query(&with("a"), "select 1").unwrap_err();
        assert!(error.contains("Access denied") && !error.contains("a@b"), "{error}");
    }
}

#[test]
fn a_client_that_checks_certificates_accepts_the_one_of_the_server() {
    for request in all() {
        let Some(server) = request.clone().tls().start().or_skip() else { return };
        let used = "show status like 'Ssl_cipher'";
        let cipher = |said: String| said.split('\t').nth(1).unwrap_or_default().to_owned();
        assert_ne!(cipher(server.query(&server.tls_url(), used)), "");
        let plain = format!("{}?ssl-mode=DISABLED", server.url());
        assert_eq!(cipher(server.query(&plain, used)), "");
        let other = request.clone().tls().start().unwrap();
        // Read by the server at its start, and by clients each time.
        std::fs::write(server.authorities(), std::fs::read(other.authorities()).unwrap()).unwrap();
        let error = server.try_query(&server.tls_url(), used).unwrap_err();
        assert!(error.contains("certificate verify failed") || error.contains("self-signed"), "{error}");
        let without = request.start().unwrap();
        let asked = format!("{}?ssl-mode=REQUIRED", without.url());
        // The client of MariaDB 10.11 asks for it and continues without.
        let used = without.try_query(&asked, used).map(cipher).unwrap_or_default();
        assert_eq!(used, "", "it has no TLS");
    }
}

#[test]
fn every_node_of_a_cluster_takes_writes_and_a_node_that_was_away_catches_up() {
    let Some(cluster) = Galera::newest().start().or_skip() else { return };
    let urls = cluster.fresh_database();
    let read = |at: usize| {
        cluster.node(at).query(&urls[at], "set wsrep_sync_wait = 1; select group_concat(n order by n) from t")
    };
    cluster.node(0).query(&urls[0], "create table t (n int primary key)");
    for (at, url) in urls.iter().enumerate() {
        cluster.node(at).query(url, &format!("set wsrep_sync_wait = 15; insert into t values ({at})"));
    }
    assert_eq!((read(0), read(1), read(2)), ("0,1,2".into(), "0,1,2".into(), "0,1,2".into()));

    cluster.node(1).kill();
    cluster.until_in_step(&[0, 2]);
    cluster.node(2).query(&urls[2], "insert into t values (3)");
    cluster.node(1).start_again();
    cluster.until_in_step(&[0, 1, 2]);
    assert_eq!(read(1), "0,1,2,3");

    cluster.isolate(2);
    let refused = cluster.node(2).try_query(&urls[2], "insert into t values (9)").unwrap_err();
    assert!(refused.contains("1047"), "{refused}");
    cluster.node(0).query(&urls[0], "insert into t values (4)");
    cluster.rejoin(2);
    assert_eq!((read(2), read(1)), ("0,1,2,3,4".into(), "0,1,2,3,4".into()));
}
