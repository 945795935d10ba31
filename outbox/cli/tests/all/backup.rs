//! Signs of a restored backup, of a copy, and of tables that are of different times.

use sqlx::{AssertSqlSafe, Connection, Executor};

use crate::outbox::{DONE, FINDINGS, Outbox};
use crate::world;

/// Runs a statement on the database.
pub(crate) fn sql(outbox: &Outbox, statement: String) {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut connection = sqlx::SqliteConnection::connect(&outbox.store).await.unwrap();
        connection.execute(sqlx::raw_sql(AssertSqlSafe(statement))).await.unwrap();
    });
}

/// Returns a backup, restored in another place an hour later.
fn restored(outbox: &Outbox) -> Outbox {
    let copy = Outbox::missing();
    sql(outbox, format!("vacuum into '{}'", &copy.store["sqlite:".len()..]));
    sql(&copy, "update outbox_relay set expires_at = expires_at - 3600000000".to_owned());
    copy
}

fn codes(outbox: &Outbox, command: &str) -> Vec<String> {
    let found = outbox.run(&[command]).ends(FINDINGS).object();
    let findings = found["findings"].as_array().unwrap().iter();
    findings.map(|finding| finding["code"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_backup_that_was_taken_while_a_relay_ran_needs_a_new_identity() {
    let outbox = Outbox::sqlite();
    outbox.publish(&["orders", "--key", "a"]);
    outbox.run(&["backup-check"]).ends(DONE);
    let (id, _) = world::lease(&outbox, "shop-1");
    let runs = outbox.run(&["backup-check"]).ends(DONE).object();
    assert_eq!((&runs["live_relays"], &runs["identity_renewed_at"]), (&1.into(), &().into()));

    let copy = restored(&outbox);
    let found = copy.run(&["backup-check"]).ends(FINDINGS).object();
    assert_eq!(found["source"], runs["source"]);
    let finding = &found["findings"][0];
    assert_eq!((&finding["code"], found["findings"].as_array().unwrap().len()), (&"left".into(), 1));
    assert!(finding["text"].as_str().unwrap().contains(&format!("relay shop-1 ({id})")), "{finding}");
    assert!(finding["remedy"].as_str().unwrap().contains("`outbox identity new`"), "{finding}");
    assert!(copy.run(&["backup-check", "--table"]).ends(FINDINGS).stdout.contains("1 finding"));

    copy.run(&["identity", "new", "--yes"]).ends(DONE);
    let renewed = copy.run(&["backup-check"]).ends(DONE).object();
    assert_ne!(renewed["source"], runs["source"]);
    assert!(renewed["identity_renewed_at"].is_string(), "{renewed}");
    assert!(copy.run(&["backup-check", "--table"]).ends(DONE).stdout.contains("while no relay ran"));
}

#[test]
fn tables_of_different_times_and_a_clock_that_went_back_are_found() {
    let outbox = Outbox::sqlite();
    world::lease(&outbox, "shop-1");
    outbox.publish(&["orders", "--key", "a"]);
    sql(&outbox, "update outbox_lease set low_water = 1000".to_owned());
    assert_eq!(codes(&outbox, "backup-check"), ["misplaced"]);
    assert!(codes(&outbox, "doctor").contains(&"misplaced".to_owned()));
    let day = 86_400_000_000_u64;
    for table in ["outbox_message set appended_at = appended_at", "outbox_relay set expires_at = expires_at"]
    {
        sql(&outbox, format!("update {table} + {day}"));
    }
    assert_eq!(codes(&outbox, "backup-check"), ["misplaced", "clock", "clock"]);
    sql(&outbox, "drop table outbox_lease".to_owned());
    assert_eq!(codes(&outbox, "backup-check"), ["schema"]);
}
