//! The web page, served by the program.

use outbox::Exhausted;
use outbox_servers::{OrSkip, Redis};

use crate::outbox::{DONE, Daemon, Outbox, USAGE, until};
use crate::world;

#[test]
fn the_dashboard_shows_a_database_and_ends_at_sigterm() {
    let outbox = Outbox::sqlite();
    outbox.publish(&["orders", "--key", "bad", "--type", "poison"]);
    world::relay(&outbox, Exhausted::DeadLetter, |backlog| backlog.dead == 1);
    let daemon = Daemon::of(outbox.command(&["dashboard", "--http", "0"]));
    let (status, page) = daemon.ask("/");
    assert!(status == 200 && page.contains("1 dead letter"), "{status} {page}");
    let (_, page) = daemon.ask("/causes");
    assert!(page.contains("no such column"), "{page}");
    let (_, page) = daemon.ask("/settings");
    assert!(page.contains("relay.lease") && page.contains(&outbox.store), "{page}");
    for path in ["/keys", "/dead", "/messages", "/scheduled", "/relays", "/topics", "/audit"] {
        assert_eq!(daemon.ask(path).0, 200, "{path}");
    }
    assert_eq!(daemon.ask_with("/", "x-forwarded-for: 1.2.3.4\r\n").0, 403);
    // Health and metrics are those of a relay.
    assert_eq!((daemon.ask("/health").0, daemon.ask("/metrics").0), (404, 404));
    daemon.signal("-TERM");
    assert_eq!(daemon.end(), DONE);
}

#[test]
fn a_dashboard_with_users_wants_a_token_and_never_shows_it() {
    let outbox = Outbox::sqlite();
    let mut command =
        outbox.command(&["dashboard", "--http", "0", "--set", "dashboard.readers.bob=reader-secret-22"]);
    command.env("OUTBOX_DASHBOARD_TOKEN", "operator-secret-1");
    let daemon = Daemon::of(command);
    assert_eq!(daemon.ask("/").0, 401);
    let ask = |token: &str| daemon.ask_with("/settings", &format!("authorization: Bearer {token}\r\n"));
    assert_eq!(ask("operator-secret-2").0, 401);
    let (status, page) = ask("operator-secret-1");
    assert!(status == 200 && page.contains("operator") && !page.contains("secret-"), "{page}");
    assert!(ask("reader-secret-22").1.contains("read-only"));
    let wrong = ["dashboard", "--set", "dashboard.readers.bob=short"];
    outbox.run(&wrong).ends(USAGE).says("take at least 12");
    outbox.run(&["dashboard", "--set", "dashboard.colour=red"]).ends(USAGE).says("colour");
}

#[test]
fn a_relay_serves_its_dashboard_if_it_is_asked_to() {
    let Some(redis) = Redis::newest().start().or_skip() else { return };
    let outbox = Outbox { transport: Some(redis.url()), ..Outbox::sqlite() };
    let bare = Daemon::start(&outbox, &["--http", "0"]);
    until("the relay is healthy", || bare.ask("/health").0 == 200);
    assert_eq!(bare.ask("/").0, 404);
    let daemon = Daemon::start(&outbox, &["--http", "0", "--dashboard", "--label", "shop-relay"]);
    until("the relay is healthy", || daemon.ask("/health").0 == 200);
    until("the relay is listed", || daemon.ask("/relays").1.contains("shop-relay"));
    let (status, page) = daemon.ask("/");
    assert!(status == 200 && page.contains("Delivered by this relay"), "{page}");
    daemon.signal("-TERM");
    let last = daemon.line();
    assert_eq!((daemon.end(), &last["drained"]), (DONE, &true.into()));
}
