//! The proxy in front of an echo server.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use outbox_servers::Proxy;

const PATIENCE: Duration = Duration::from_secs(60);

/// An echo server, which forwards its input to the test too.
fn echo() -> (String, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (heard, hears) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, heard) = (stream.unwrap(), heard.clone());
            thread::spawn(move || {
                let mut buffer = [0; 1024];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    let _ = heard.send(buffer[..length].to_vec());
                    let _ = stream.write_all(&buffer[..length]);
                }
            });
        }
    });
    (address, hears)
}

fn client(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[track_caller]
fn says(mut client: &TcpStream, word: &str) {
    let mut heard = vec![0; word.len()];
    client.read_exact(&mut heard).unwrap();
    assert_eq!(String::from_utf8(heard).unwrap(), word);
}

/// Returns true if the connection is over.
fn is_cut(mut client: &TcpStream) -> bool {
    match client.read(&mut [0; 16]) {
        Ok(length) => length == 0,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

#[test]
fn bytes_go_both_ways_and_a_cut_ends_every_connection_but_not_the_proxy() {
    let (server, _hears) = echo();
    let proxy = Proxy::to(&server);
    let clients = [client(&proxy), client(&proxy)];
    for mut client in &clients {
        client.write_all(b"hello").unwrap();
        says(client, "hello");
    }
    assert_eq!((proxy.connections(), proxy.came()), (2, 2));
    proxy.cut();
    assert!(clients.iter().all(is_cut));
    assert_eq!(proxy.connections(), 0);
    let mut again = client(&proxy);
    again.write_all(b"again").unwrap();
    says(&again, "again");
}

#[test]
fn new_connections_go_to_the_server_that_it_was_led_to() {
    let ((server, hears), (other, other_hears)) = (echo(), echo());
    let proxy = Proxy::to(&server);
    let mut before = client(&proxy);
    before.write_all(b"before").unwrap();
    says(&before, "before");
    proxy.lead_to(&other);
    let mut after = client(&proxy);
    after.write_all(b"after").unwrap();
    says(&after, "after");
    before.write_all(b"still").unwrap();
    says(&before, "still");
    assert_eq!(hears.try_iter().collect::<Vec<_>>().concat(), b"beforestill");
    assert_eq!(other_hears.try_iter().collect::<Vec<_>>().concat(), b"after");
}

#[test]
fn a_request_is_held_in_the_middle() {
    let (server, hears) = echo();
    let proxy = Proxy::to(&server);
    let mut client = client(&proxy);
    proxy.hold_behind(b"half");
    client.write_all(b"one half, and the rest").unwrap();
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), b"one half");
    assert!(proxy.is_holding());
    proxy.pass();
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), b", and the rest");
    says(&client, "one half, and the rest");
}

#[test]
fn what_is_held_arrives_later_in_order() {
    let (server, hears) = echo();
    let proxy = Proxy::to(&server);
    let mut client = client(&proxy);
    client.write_all(b"before").unwrap();
    says(&client, "before");
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), b"before");
    proxy.hold();
    client.write_all(b"one").unwrap();
    client.write_all(b"two").unwrap();
    // A new one is accepted, and waits as well.
    let mut second = self::client(&proxy);
    second.write_all(b"three").unwrap();
    let start = Instant::now();
    while proxy.connections() < 2 {
        assert!(start.elapsed() < PATIENCE);
        thread::yield_now();
    }
    assert!(hears.try_recv().is_err(), "nothing may get through");
    proxy.pass();
    says(&client, "onetwo");
    says(&second, "three");
}

#[test]
fn what_is_swallowed_never_arrives_and_new_connections_work_afterwards() {
    let (server, hears) = echo();
    let proxy = Proxy::to(&server);
    let mut lost = client(&proxy);
    proxy.swallow();
    lost.write_all(b"lost").unwrap();
    // The end arrives after the dropped data: when it is seen here, that is over.
    lost.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(is_cut(&lost), "nothing came back");
    proxy.refuse(true);
    let refused = client(&proxy);
    assert!(is_cut(&refused), "it is closed at once");
    proxy.refuse(false);
    proxy.pass();
    let mut client = client(&proxy);
    client.write_all(b"kept").unwrap();
    says(&client, "kept");
    // It would have arrived first.
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), b"kept");
}

#[test]
fn when_answers_are_swallowed_the_server_still_hears() {
    let (server, hears) = echo();
    let proxy = Proxy::to(&server);
    let mut client = client(&proxy);
    proxy.swallow_answers();
    client.write_all(b"commit").unwrap();
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), b"commit");
    proxy.cut();
    assert!(is_cut(&client), "the answer is lost");
}

#[test]
fn a_delay_delays_each_way() {
    let (server, _hears) = echo();
    let proxy = Proxy::to(&server);
    let mut client = client(&proxy);
    proxy.delay(Duration::from_millis(100));
    let start = Instant::now();
    client.write_all(b"slow").unwrap();
    says(&client, "slow");
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
}

#[test]
fn a_dropped_proxy_cuts_and_listens_no_more() {
    let (server, _hears) = echo();
    let proxy = Proxy::to(&server);
    let client = client(&proxy);
    let address = proxy.addr();
    drop(proxy);
    assert!(is_cut(&client));
    let start = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(start.elapsed() < PATIENCE);
    }
}

#[test]
fn a_server_that_is_away_closes_the_connection() {
    // A port that no program is given, and on which no program listens.
    let address = "127.0.0.1:1";
    let proxy = Proxy::to(&format!("amqp://user@{address}/%2f"));
    assert_eq!(proxy.url("amqp://user@example.com/%2f"), format!("amqp://user@{}/%2f", proxy.addr()));
    assert!(is_cut(&client(&proxy)));
}
