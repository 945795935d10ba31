//! `shop` and `billing`: an order becomes an invoice, once, also when either program is killed.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use examples_shared::program::end;
use outbox_servers::{Kafka, OrSkip, Postgres};

/// Maximum time that a test waits.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running program.
struct Program {
    child: Child,
    said: Receiver<String>,
}

impl Program {
    fn start(program: &str, database: &str, kafka: &str) -> Self {
        let mut command = Command::new(program);
        command.env("DATABASE_URL", database).env("KAFKA", kafka).env("LISTEN", "127.0.0.1:0");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (say, said) = channel();
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| say.send(line)));
        Self { child, said }
    }

    /// Returns the next line of output.
    fn line(&self) -> String {
        self.said.recv_timeout(PATIENCE).expect("the program says something")
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        end(&mut self.child);
    }

    /// Asks the program to stop, as Ctrl-C does; returns the rest of its output.
    fn stop(mut self) -> Vec<String> {
        assert!(
            Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap().success()
        );
        assert!(end(&mut self.child).success());
        self.said.iter().collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Places an order at the shop; returns the answer's body.
fn place_order(shop: &Program, address: &str, customer: &str) -> String {
    let address = address.strip_prefix("listening on http://").unwrap_or_else(|| panic!("{address}"));
    let body = format!(r#"{{"customer":"{customer}","cents":4200}}"#);
    let mut stream = TcpStream::connect(address).unwrap_or_else(|_| panic!("{}", shop.child.id()));
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let head = format!(
        "POST /orders HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json"
    );
    write!(stream, "{head}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}")).1.to_owned()
}

#[test]
fn every_order_has_one_invoice_though_shop_and_billing_are_killed() {
    let Some(postgres) = Postgres::newest().shared().or_skip() else { return };
    // A broker of its own: the topic is `orders` for every run.
    let Some(kafka) = Kafka::newest().start().or_skip() else { return };
    let create =
        ["--bootstrap-server", &kafka.internal_url(), "--create", "--topic", "orders", "--partitions", "8"];
    kafka.tool("org.apache.kafka.tools.TopicCommand", &create).unwrap();
    let (orders, invoices) = (postgres.fresh_database(), postgres.fresh_database());
    let shop = || Program::start(env!("CARGO_BIN_EXE_shop"), &orders, &kafka.url());
    let billing = || Program::start(env!("CARGO_BIN_EXE_billing"), &invoices, &kafka.url());

    let (first_shop, first_billing) = (shop(), billing());
    let address = first_shop.line();
    assert_eq!(place_order(&first_shop, &address, "ann"), "order 1\n");
    assert_eq!(first_billing.line(), "invoice to ann: order 1, 4200 cents");
    first_billing.kill();
    assert_eq!(place_order(&first_shop, &address, "bob"), "order 2\n");
    first_shop.kill();

    let (second_shop, second_billing) = (shop(), billing());
    // The first one may have been killed between its line and its commit.
    let next = || {
        let line = second_billing.line();
        if line.contains("order 1,") { second_billing.line() } else { line }
    };
    assert_eq!(next(), "invoice to bob: order 2, 4200 cents");
    let address = second_shop.line();
    assert_eq!(place_order(&second_shop, &address, "cid"), "order 3\n");
    assert_eq!(next(), "invoice to cid: order 3, 4200 cents");
    assert_eq!(second_shop.stop(), Vec::<String>::new());
    assert_eq!(second_billing.stop(), Vec::<String>::new());
}
