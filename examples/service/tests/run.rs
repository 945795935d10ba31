//! `service`: an accepted order is sent, health and metrics are readable, and a stop drains the
//! relay.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use examples_shared::program::end;

const PROGRAM: &str = env!("CARGO_BIN_EXE_service");

/// Maximum time that a test waits.
const PATIENCE: Duration = Duration::from_secs(120);

struct Service {
    child: Child,
    said: Receiver<String>,
    address: String,
}

impl Service {
    fn start(database: &Path) -> Self {
        Self::start_with(&["--store", &format!("sqlite:{}?mode=rwc", database.display())])
    }

    fn start_with(arguments: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(["--listen", "127.0.0.1:0", "--stop-within", "20"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        // Read on a thread, because a blocking read of a pipe can't be interrupted.
        let (say, said) = channel();
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| say.send(line)));
        let mut service = Self { child, said, address: String::new() };
        let first = service.line();
        let address = first.strip_prefix("listening on http://").unwrap_or_else(|| panic!("{first}"));
        address.clone_into(&mut service.address);
        service
    }

    /// Returns the next line of output.
    fn line(&self) -> String {
        self.said.recv_timeout(PATIENCE).expect("the service says something")
    }

    /// Returns the status and the body of an answer.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (host, length) = (&self.address, body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        (status.unwrap_or_else(|| panic!("{answer}")), body.unwrap_or_default())
    }

    /// Asks the service to stop as an operator does; returns its output from then on.
    fn stop(mut self) -> String {
        let told = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
        let mut rest = String::new();
        loop {
            match self.said.recv_timeout(PATIENCE) {
                Ok(line) => rest = rest + &line + "\n",
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("the service does not stop: {rest}"),
            }
        }
        assert!(end(&mut self.child).success(), "{rest}");
        rest
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Still running only after a failed test.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn an_order_is_answered_and_told_and_the_service_shows_how_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(&folder.path().join("orders.db"));
    let answer = service.ask("POST", "/orders", r#"{"customer":"ann","cents":4200}"#);
    assert_eq!(answer, (201, r#"{"order_id":1}"#.to_owned()));
    assert_eq!(service.line(), "mail to ann: order 1, 4200 cents");

    assert_eq!(service.ask("GET", "/live", "").0, 200);
    assert_eq!(service.ask("GET", "/ready", ""), (200, "ready\n".to_owned()));
    assert_eq!(service.ask("GET", "/health", "").0, 200);
    assert_eq!(service.ask("POST", "/orders", r#"{"customer":"ann"}"#).0, 422);
    // Counted a moment after the delivery.
    let patience = Instant::now() + PATIENCE;
    loop {
        let (status, metrics) = service.ask("GET", "/metrics", "");
        assert_eq!(status, 200);
        if metrics.contains("outbox_") {
            break;
        }
        assert!(Instant::now() < patience, "{metrics}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(service.stop(), "drained\n");
}

#[test]
fn what_was_answered_is_told_before_the_service_stops_or_after_it_has_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("orders.db");
    let service = Service::start(&database);
    for customer in ["ann", "bob", "eve"] {
        let order = format!(r#"{{"customer":"{customer}","cents":1}}"#);
        assert_eq!(service.ask("POST", "/orders", &order).0, 201);
    }
    let mut told = service.stop();
    assert!(told.ends_with("drained\n"), "{told}");
    // Messages in flight have been delivered by now; unread ones are in the database.
    let again = Service::start(&database);
    while !["ann", "bob", "eve"].iter().all(|customer| told.contains(customer)) {
        told += &again.line();
    }
    assert!(again.stop().ends_with("drained\n"));
}

#[test]
fn a_client_that_does_not_read_on_does_not_keep_the_service_from_stopping() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(&folder.path().join("orders.db"));
    let mut slow = TcpStream::connect(&service.address).unwrap();
    // A request that never ends: its announced length exceeds its body.
    slow.write_all(
        b"POST /orders HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{",
    )
    .unwrap();
    assert_eq!(service.ask("GET", "/live", "").0, 200);
    assert_eq!(service.stop(), "drained\n");
}

#[test]
fn what_a_database_says_is_not_for_clients() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("orders.db");
    let service = Service::start(&database);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&database);
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        sqlx::query("drop table orders").execute(&pool).await.unwrap();
        pool.close().await;
    });
    let answer = service.ask("POST", "/orders", r#"{"customer":"ann","cents":4200}"#);
    assert_eq!(answer, (500, "the order was not taken\n".to_owned()));
    assert_eq!(service.stop(), "drained\n");
}

#[test]
fn settings_come_from_a_file_and_a_wrong_name_is_refused_with_the_right_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (database, config) = (folder.path().join("orders.db"), folder.path().join("service.json"));
    let store = format!("sqlite:{}?mode=rwc", database.display());
    let arguments = ["--store", &store, "--config", config.to_str().unwrap()];
    let with = |text: &str| std::fs::write(&config, text).unwrap();

    with(r#"{"relay": {"leese": "30s"}}"#);
    let run = examples_shared::program::run(PROGRAM, &arguments, "");
    assert_eq!(run.code, Some(1), "{run:#?}");
    assert!(run.stderr.contains("unknown field `leese`") && run.stderr.contains("`lease`"), "{run:#?}");

    with(r#"{"relay": {"lease": "4s"}, "inbox": {"prefetch": 0}}"#);
    let run = examples_shared::program::run(PROGRAM, &arguments, "");
    assert!(run.stderr.contains("relay: lease (4s)"), "{run:#?}");
    assert!(run.stderr.contains("inbox mail: prefetch is 0"), "{run:#?}");

    with(r#"{"relay": {"lease": "30s"}, "inbox": {"concurrency": 4}}"#);
    let service = Service::start_with(&arguments);
    assert_eq!(service.ask("GET", "/live", "").0, 200);
    assert_eq!(service.stop(), "drained\n");
}

#[cfg(all(feature = "kafka", feature = "postgres"))]
#[test]
fn postgresql_and_kafka_take_the_place_of_what_is_embedded() {
    use outbox_servers::{Kafka, OrSkip, Postgres};

    let Some(postgres) = Postgres::newest().shared().or_skip() else { return };
    // A broker of its own: the topic is `orders` for every run.
    let Some(kafka) = Kafka::newest().start().or_skip() else { return };
    let create =
        ["--bootstrap-server", &kafka.internal_url(), "--create", "--topic", "orders", "--partitions", "8"];
    kafka.tool("org.apache.kafka.tools.TopicCommand", &create).unwrap();
    let transport = format!("kafka://{}", kafka.url());
    let service = Service::start_with(&["--store", &postgres.fresh_database(), "--transport", &transport]);
    let answer = service.ask("POST", "/orders", r#"{"customer":"ann","cents":4200}"#);
    assert_eq!(answer, (201, r#"{"order_id":1}"#.to_owned()));
    assert_eq!(service.line(), "mail to ann: order 1, 4200 cents");
    assert_eq!(service.stop(), "drained\n");
}
