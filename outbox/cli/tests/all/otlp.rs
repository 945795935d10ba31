//! The export to OpenTelemetry, as a collector on this machine receives it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::outbox::{DONE, Daemon, FAILED, Outbox, USAGE, end, until};

/// Requests: their paths, headers and bodies.
type Requests = Vec<(String, String, Vec<u8>)>;

/// A collector: takes all requests, and keeps them.
struct Collector {
    url: String,
    taken: Arc<Mutex<Requests>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let taken = Arc::default();
        let collector = Self { url, taken: Arc::clone(&taken) };
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let taken = Arc::clone(&taken);
                thread::spawn(move || while take(&stream, &taken).is_some() {});
            }
        });
        collector
    }

    /// Returns true if an export to this path has all of these texts.
    fn has(&self, path: &str, texts: &[&str]) -> bool {
        let taken = self.taken.lock().unwrap();
        let contains = |body: &[u8], text: &str| body.windows(text.len()).any(|part| part == text.as_bytes());
        taken.iter().any(|(of, _, body)| of == path && texts.iter().all(|text| contains(body, text)))
    }

    fn headers(&self) -> String {
        self.taken.lock().unwrap().iter().map(|(_, headers, _)| headers.to_lowercase()).collect()
    }
}

/// Takes one request and answers it. `None`: the connection has ended.
fn take(mut stream: &TcpStream, taken: &Mutex<Requests>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut headers, mut length) = (String::new(), String::new(), 0);
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        if line == "\r\n" {
            break;
        }
        headers.push_str(&line);
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    taken.lock().unwrap().push((path, headers, body));
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()
}

/// A broker that is away is enough: attempts to publish have spans, too.
fn outbox() -> Outbox {
    Outbox { transport: Some("redis://127.0.0.1:1".to_owned()), ..Outbox::sqlite() }
}

const METRICS: [&str; 3] = ["outbox_oldest_age_seconds", "outbox_delivered_total", "outbox-relay"];
const SPANS: [&str; 3] = ["publish", "messaging.batch.message_count", "outbox-relay"];

#[test]
fn a_relay_exports_metrics_and_spans_to_a_collector() {
    let (outbox, collector) = (outbox(), Collector::start());
    let mut command = outbox.command(&["relay", "--otlp", &collector.url, "--label", "shop-1"]);
    command.env("OTEL_METRIC_EXPORT_INTERVAL", "100").env("OTEL_BSP_SCHEDULE_DELAY", "100");
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=shop");
    let daemon = Daemon::of(command);
    outbox.publish(&["orders", "--key", "a"]);
    until("metrics are exported", || collector.has("/v1/metrics", &METRICS));
    until("spans are exported", || collector.has("/v1/traces", &SPANS));
    assert!(collector.has("/v1/metrics", &["shop-1", "Age of the oldest waiting message"]));
    assert!(collector.headers().contains("x-tenant: shop"), "{}", collector.headers());
    assert!(!collector.has("/v1/traces", &["ractor"]), "spans of other crates stay here");
    daemon.signal("-TERM");
    assert_eq!(daemon.end(), DONE);
}

/// The intervals are of a minute, and the program ends before: what is left is exported at its end.
#[test]
fn the_environment_turns_the_export_on_and_the_end_of_the_program_exports_the_rest() {
    let (outbox, collector) = (outbox(), Collector::start());
    let mut command = outbox.command(&["relay", "--http", "0"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url).env("OTEL_SERVICE_NAME", "shop-relay");
    command.env("OTEL_METRIC_EXPORT_INTERVAL", "3600000").env("OTEL_BSP_SCHEDULE_DELAY", "3600000");
    let daemon = Daemon::of(command);
    outbox.publish(&["orders", "--key", "a"]);
    let waits = "outbox_breaker_open{route=\"default\"} 1";
    until("it has tried to publish", || daemon.ask("/metrics").1.contains(waits));
    assert!(!collector.has("/v1/metrics", &[]));
    daemon.signal("-TERM");
    assert_eq!(daemon.end(), DONE);
    assert!(collector.has("/v1/metrics", &["outbox_breaker_open", "shop-relay"]));
    assert!(collector.has("/v1/traces", &["publish", "shop-relay"]));
}

/// A collector that is away is no reason to stop, nor to wait long at the end.
#[test]
fn a_relay_runs_without_its_collector_and_wrong_settings_are_refused() {
    let outbox = outbox();
    let daemon = Daemon::of(outbox.command(&["relay", "--otlp", "http://127.0.0.1:1"]));
    daemon.signal("-TERM");
    assert_eq!(daemon.end(), DONE);
    for (wrong, words) in [("127.0.0.1:4318", "write the URL of a collector"), ("http://a:b@c", "has a user")]
    {
        outbox.run(&["relay", "--otlp", wrong]).ends(USAGE).says(words);
    }
    let mut command = outbox.command(&["relay", "--otlp", "http://127.0.0.1:1"]);
    command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    end(command, "").ends(USAGE).says("http/protobuf");
    let missing = Outbox { transport: outbox.transport.clone(), ..Outbox::missing() };
    missing.run(&["relay", "--otlp", "http://127.0.0.1:1"]).ends(FAILED);
}
