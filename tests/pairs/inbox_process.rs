//! `inbox-process`: an inbox as a process of its own, for tests that end it behind a step.
//!
//! The environment passes its database, its broker and the point of its death (see `Pair` and
//! `Life`). It stops in order when its standard input ends, if it still lives then: so it ends with
//! the test program, too.

use std::io::Read as _;
use std::time::Duration;

use outbox_tests::ledger::{self, Failed};
use outbox_tests::life::{Knows, Life};
use outbox_tests::pair::Pair;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let (pair, life) = (Pair::from_environment()?, Life::from_environment()?);
    // The next life takes the place of this one, as it does in the store; unless there are several
    // at once.
    let name = (life.knows == Knows::Everything).then_some("inbox");
    let transport = pair.transport_to(&pair.broker, name)?;
    let inbox = ledger::open(&pair.database).await?.inbox(life, &pair, transport).await?;
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    ended.await??;
    if inbox.stop(Duration::from_secs(120)).await {
        Ok(())
    } else {
        Err("the inbox did not stop in time".into())
    }
}
