//! `relay-process`: a relay as a process of its own, for tests that kill and pause it.
//!
//! The environment passes its database, its broker and the point of its death (see `Pair` and
//! `Halt`). It prints `relaying` when it has started, and stops in order when its standard input
//! ends, if it still lives then: so it ends with the test program, too.

use std::io::Read as _;
use std::process::abort;
use std::sync::Arc;
use std::time::Duration;

use outbox_engine::RelayHandle;
use outbox_tests::halt::{Halt, Halting};
use outbox_tests::ledger::{self, Failed};
use outbox_tests::pair::Pair;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let (pair, halt) = (Pair::from_environment()?, Halt::from_environment()?);
    let (relay, halting) = start(&pair, halt).await;
    println!("relaying");
    if let Some(halting) = halting {
        tokio::spawn(async move {
            halting.reached().await;
            abort();
        });
    }
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    ended.await??;
    if relay.stop(Duration::from_secs(30)).await {
        Ok(())
    } else {
        Err("the relay did not drain in time".into())
    }
}

type Started = (RelayHandle, Option<Arc<Halting>>);

/// Starts the relay as soon as its database is reachable: it may be down at first.
async fn start(pair: &Pair, halt: Option<Halt>) -> Started {
    loop {
        match try_to_start(pair, halt).await {
            Ok(started) => return started,
            Err(error) => eprintln!("relay-process: {error}; trying again"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn try_to_start(pair: &Pair, halt: Option<Halt>) -> Result<Started, Failed> {
    let (store, transport) = (ledger::open(&pair.database).await?.store(), pair.transport()?);
    let Some(halt) = halt else {
        return Ok((Pair::relay(store, transport).start().await?, None));
    };
    let halting = Halting::new(halt, store, transport);
    let relay = Pair::relay(halting.store(), Arc::<Halting>::clone(&halting)).start().await?;
    Ok((relay, Some(halting)))
}
