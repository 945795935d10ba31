//! `relay-process`: a relay as a process of its own, for tests that kill and pause it.
//!
//! It is told of its database and broker by the environment (see `Pair`), says `relaying` when it has started, and stops in order when its
//! standard input ends: so it ends with the test program, too.

use std::error::Error;
use std::io::Read as _;
use std::time::Duration;

use outbox_engine::RelayHandle;
use outbox_tests::pair::Pair;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let pair = Pair::from_environment()?;
    let relay = start(&pair).await;
    println!("relaying");
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    ended.await??;
    relay.stop(Duration::from_secs(30)).await;
    Ok(())
}

/// Starts the relay as soon as its database is there: it may just be away.
async fn start(pair: &Pair) -> RelayHandle {
    loop {
        let error: Box<dyn Error> = match pair.relay().await {
            Ok(relay) => match relay.start().await {
                Ok(relay) => return relay,
                Err(error) => error.into(),
            },
            Err(error) => error,
        };
        eprintln!("relay-process: {error}; trying again");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
