//! `other-driver`: an order that tokio-postgres writes has one invoice, which tokio-postgres writes.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::process::{Command, Stdio};

use examples_shared::program::end;
use outbox_servers::{OrSkip, Postgres};

/// Runs the program until it has billed an order; returns its output.
fn run(database: &str, order_id: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_other-driver"));
    command.arg(order_id).env("DATABASE_URL", database).stdout(Stdio::piped());
    let mut program = command.spawn().unwrap();
    assert!(end(&mut program).success());
    std::io::read_to_string(program.stdout.take().unwrap()).unwrap()
}

/// The event comes a second time, and the inbox knows nothing of it: as if the program had been
/// killed between the handler's commit and its own.
#[test]
fn an_order_of_another_driver_has_one_invoice_though_its_event_is_repeated() {
    let Some(postgres) = Postgres::newest().shared().or_skip() else { return };
    let url = postgres.fresh_database();
    let query = |statement: &str| postgres.query(&url, statement).trim().to_owned();
    assert_eq!(run(&url, "1"), "billed order 1\n");
    let repeat = r#"delete from outbox_handled;
        insert into outbox_message (id, topic, key, event_type, payload)
        select id::uuid, 'orders', '2', 'order.placed', convert_to('{"order_id":1,"cents":4200}', 'UTF8') from billed_events"#;
    query(repeat);
    assert_eq!(run(&url, "2"), "billed order 1\n", "the repeat stands before order 2, in its key");
    assert_eq!(query("select count(*) from orders"), "2");
    assert_eq!(query("select count(*) from invoices where order_id = 1"), "1");
}
