//! PostgreSQL, PgBouncer and Pgpool for tests.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use outbox_servers::{OrSkip as _, PgBouncer, Pgpool, Postgres};

#[test]
fn every_test_gets_an_empty_database_of_the_shared_server() {
    for request in [Postgres::newest(), Postgres::oldest()] {
        let Some(server) = request.clone().shared().or_skip() else { return };
        let (one, other) = (server.fresh_database(), server.fresh_database());
        server.query(&one, "create table t (n int); insert into t values (1), (2)");
        assert_eq!(server.query(&one, "select n from t order by n"), "1\n2");
        assert_eq!(server.query(&other, "select to_regclass('t') is null"), "t");
        assert_eq!(request.shared().unwrap().url(), server.url(), "one server for all");
    }
}

#[test]
fn the_versions_and_settings_are_those_that_were_asked_for() {
    let Some(server) = Postgres::oldest().config("work_mem = '5MB'").durable().start().or_skip() else {
        return;
    };
    let settings = "select current_setting('server_version_num')::int / 10000, \
                    current_setting('work_mem'), current_setting('fsync')";
    assert_eq!(server.query(&server.url(), settings), "13|5MB|on");
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    assert_eq!(server.query(&server.url(), settings), "18|4MB|off");
}

#[test]
fn what_was_committed_survives_a_kill_and_a_stop() {
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let url = server.fresh_database();
    server.query(&url, "create table t (n int)");
    for (count, end) in [("1", "stop"), ("2", "kill"), ("3", "at once")] {
        server.query(&url, "insert into t values (1)");
        let pids = server.pids();
        assert!(pids.len() > 3, "a postmaster and its children: {pids:?}");
        match end {
            "stop" => server.stop(),
            "kill" => server.kill(),
            _ => server.stop_at_once(),
        }
        assert_eq!(server.pids(), [0; 0]);
        assert!(server.try_query(&url, "select 1").is_err(), "it still answers after {end}");
        server.start_again();
        assert_eq!(server.query(&url, "select count(*) from t"), count);
    }
    server.restart();
    assert_eq!(server.query(&url, "select count(*) from t"), "3");
    assert!(server.log().contains("database system is ready to accept connections"));
}

#[test]
fn a_paused_server_keeps_its_connections_and_answers_after_it_was_resumed() {
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let url = server.url();
    server.pause();
    // The state of the processes shows the pause: no wait could prove that an answer never arrives.
    for pid in server.pids() {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let state = stat.rsplit_once(')').unwrap().1.trim().chars().next();
        assert_eq!(state, Some('T'), "{stat}");
    }
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| server.query(&url, "select 'here'"));
        server.resume();
        assert_eq!(asked.join().unwrap(), "here");
    });
}

#[test]
fn what_a_server_uses_is_counted_over_all_its_processes() {
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let before = server.usage();
    assert!(before.memory > 1 << 20, "{before:?}");
    server.query(&server.url(), "select count(*) from generate_series(1, 3000000)");
    // The backend's time becomes the postmaster's when it is waited for, which is soon.
    let start = Instant::now();
    while server.usage().cpu <= before.cpu {
        assert!(start.elapsed() < Duration::from_secs(60), "{before:?}, {:?}", server.usage());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_client_that_checks_certificates_accepts_the_one_of_the_server() {
    let Some(server) = Postgres::newest().tls().start().or_skip() else { return };
    let used = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    assert_eq!(server.query(&server.tls_url(), used), "t");
    let Some(other) = Postgres::newest().tls().start().or_skip() else { return };
    // Read by the server at its start, and by clients each time.
    std::fs::write(server.authorities(), std::fs::read(other.authorities()).unwrap()).unwrap();
    let error = server.try_query(&server.tls_url(), used).unwrap_err();
    assert!(error.contains("certificate verify failed"), "{error}");
}

#[test]
fn a_standby_follows_and_becomes_a_primary() {
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let url = server.url();
    server.query(&url, "create table before (n int); insert into before values (7)");
    let standby = server.standby().unwrap();
    let there = standby.url();
    assert_eq!(standby.query(&there, "select n from before"), "7");
    assert!(standby.try_query(&there, "insert into before values (8)").is_err(), "it only reads");
    standby.promote();
    standby.query(&there, "insert into before values (8)");
    assert_eq!(server.query(&url, "select count(*) from before"), "1");
}

#[test]
fn a_pool_passes_statements_on_and_can_be_killed() {
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    for request in [PgBouncer::newest(&server), PgBouncer::oldest(&server)] {
        let Some(pool) = request.config("application_name_add_host = 1").start().or_skip() else { return };
        let url = pool.url(&server.fresh_database());
        let asked = "select current_setting('application_name')";
        assert!(server.query(&url, asked).contains("psql - 127.0.0.1"), "it came through the pool");
        pool.kill();
        assert!(server.try_query(&url, asked).is_err());
        pool.start_again();
        assert!(server.query(&url, asked).contains("psql - 127.0.0.1"));
    }
}

#[test]
fn a_pool_that_spreads_reads_sends_them_to_the_standby_and_the_rest_to_the_primary() {
    let Some(primary) = Postgres::newest().start().or_skip() else { return };
    let Some(standby) = primary.standby().or_skip() else { return };
    let Some(pool) = Pgpool::new(&primary, &standby).start().or_skip() else { return };
    let url = pool.url(&primary.url());
    let port = |server: &outbox_servers::PostgresServer| server.tcp_port().to_string();
    let asked = "-- A comment.\nselect current_setting('port')";
    assert_eq!(primary.query(&url, asked), port(&standby));
    let written = "create table t as select current_setting('port') as port; select port from t";
    assert_eq!(primary.query(&url, written), port(&primary));
    pool.kill();
    assert!(primary.try_query(&url, asked).is_err());
    pool.start_again();
    assert_eq!(primary.query(&url, asked), port(&standby));
}
