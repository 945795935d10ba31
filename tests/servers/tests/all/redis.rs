//! Redis for tests.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use outbox_servers::{OrSkip as _, Redis};

#[test]
fn every_version_serves_and_comes_back_with_what_it_keeps_on_disk() {
    for wish in [Redis::newest(), Redis::oldest(), Redis::valkey()] {
        let Some(server) = wish.config("appendonly yes").config("appendfsync always").start().or_skip()
        else {
            return;
        };
        assert_eq!(server.cli(&["SET", "a", "1"]), "OK");
        assert!(server.try_cli(&["XADD", "a", "*", "f", "v"]).unwrap_err().contains("WRONGTYPE"));
        server.kill();
        assert!(server.try_cli(&["GET", "a"]).is_err());
        server.start_again();
        assert_eq!(server.cli(&["GET", "a"]), "1", "{}", server.name());
        assert_ne!(server.fresh_prefix(), server.fresh_prefix());
    }
}

#[test]
fn a_replica_has_what_its_primary_has_and_takes_no_writes() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    server.cli(&["SET", "a", "1"]);
    let Some(replica) = server.replica().or_skip() else { return };
    assert_eq!(replica.cli(&["GET", "a"]), "1");
    assert!(replica.try_cli(&["SET", "a", "2"]).unwrap_err().contains("READONLY"));
}
