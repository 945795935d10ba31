//! Relays of other projects, as processes that the benchmark `relay` measures: it starts this
//! program with a role, and talks to it as to its own children.
//!
//! A process creates and fills its table, prints `ready`, waits for a line, relays everything,
//! prints the result as a line of JSON, and waits for the end of its input.

mod done;
mod hexeract;
mod oxide;

use std::process::ExitCode;

use serde::Deserialize;

/// Work of a relay.
#[derive(Clone, Debug, Deserialize)]
struct Peer {
    name: Name,
    store: String,
    broker: String,
    /// Number of workers in this process.
    workers: usize,
    messages: u64,
    keys: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum Name {
    Oxide,
    Hexeract,
}

/// Work that the benchmark asks for.
#[derive(Debug, Deserialize)]
enum Role {
    Peer(Peer),
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some("child"), Some(role)) = (arguments.next().as_deref(), arguments.next()) else {
        eprintln!("The benchmark `relay` starts this program: see its option --peers.");
        return ExitCode::from(2);
    };
    let Role::Peer(peer) = serde_json::from_str(&role).expect("a role is JSON");
    match peer.name {
        Name::Oxide => oxide::play(peer).await,
        Name::Hexeract => hexeract::play(peer).await,
    }
    ExitCode::SUCCESS
}

/// A message of 300 bytes, as the other relays of the benchmark have it.
#[derive(Clone, Debug, Deserialize, serde::Serialize)]
struct Body {
    n: u64,
    key: String,
    x: String,
}

/// The same message as SQL of PostgreSQL, of the number `n`.
fn body(keys: u64) -> String {
    format!("jsonb_build_object('n', n, 'key', 'key-' || n % {keys}, 'x', rpad('', 262 - length(n::text || n % {keys}), 'x'))")
}
