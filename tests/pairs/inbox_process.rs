//! `inbox-process`: an inbox as a process of its own, for tests that end it behind a step.
//!
//! It is told of its database, its broker and its end by the environment (see `Pair` and `Life`), and stops in order when its standard input
//! ends, if it still lives then: so it ends with the test program, too.

use std::error::Error;
use std::io::Read as _;
use std::time::Duration;

use outbox_tests::life::Life;
use outbox_tests::pair::Pair;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (pair, life) = (Pair::from_environment()?, Life::from_environment()?);
    let inbox = life.start(&pair).await?;
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    ended.await??;
    if inbox.stop(Duration::from_secs(120)).await {
        Ok(())
    } else {
        Err("the inbox did not stop in time".into())
    }
}
