//! One life of an inbox between the database and the broker of a pair.

use std::error::Error;
use std::process::abort;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use outbox_contract::{Message, RelayId, RetryPolicy};
use outbox_engine::{
    HandlerContext, HandlerError, HandlerFailure, Inbox, InboxHandle, Mode, Step, handler_fn,
};
use outbox_store_postgres::PostgresStore;
use sqlx::{Postgres, Transaction};

use crate::pair::Pair;

/// How an inbox lives and dies. It goes to the process through the environment.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// Whether messages go through the store ([`Mode::Stored`]).
    pub stored: bool,
    /// The most messages of one transaction.
    pub batch: usize,
    /// Behind which step it aborts, and at which time, from 1; none: it lives until it is stopped.
    pub crash: Option<(Step, u32)>,
}

const STORED: &str = "OUTBOX_LIFE_STORED";
const BATCH: &str = "OUTBOX_LIFE_BATCH";
const CRASH: &str = "OUTBOX_LIFE_CRASH";

impl Life {
    /// The key whose handler fails at first in each life, so that its messages go through the store.
    pub const FAILING: &str = "failing";

    /// The tables that the handler writes to: how many messages of each key were handled, and which was which.
    ///
    /// No id is forced to be there once: an effect that is there twice must be seen, not hindered.
    pub const TABLES: &str = "create table counters (key text primary key, handled bigint not null);
         create table effects (key text not null, number bigint not null, id text not null)";

    /// The variables of the environment that tell a program of this life.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let place = |step| Step::ALL.iter().position(|other| *other == step).unwrap_or_default();
        let crash = self.crash.map(|(step, time)| format!("{} {time}", place(step)));
        vec![
            (STORED, self.stored.to_string()),
            (BATCH, self.batch.to_string()),
            (CRASH, crash.unwrap_or_default()),
        ]
    }

    /// The life that the environment tells of.
    ///
    /// # Errors
    ///
    /// A variable that is not there or says nothing that is understood.
    pub fn from_environment() -> Result<Self, Box<dyn Error>> {
        let crash = match std::env::var(CRASH)?.split_once(' ') {
            Some((place, time)) => {
                let step = Step::ALL.get(place.parse::<usize>()?).ok_or("there is no such step")?;
                Some((*step, time.parse()?))
            }
            None => None,
        };
        Ok(Self { stored: std::env::var(STORED)?.parse()?, batch: std::env::var(BATCH)?.parse()?, crash })
    }

    /// Starts the inbox. Its handler writes each message with its number within the key.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or the configuration is wrong.
    pub async fn start(self, pair: &Pair) -> Result<InboxHandle, Box<dyn Error>> {
        let store = PostgresStore::connect(&pair.database).await?;
        let times = AtomicU32::new(0);
        let failures = AtomicU32::new(0);
        let handler = handler_fn(
            move |tx: &mut Transaction<'static, Postgres>, message: Message, _: HandlerContext<'_>| {
                let fails = message.order_key().as_str() == Self::FAILING
                    && failures.fetch_add(1, Ordering::SeqCst) < 4;
                async move {
                    write(tx, &message).await?;
                    if fails {
                        return Err(HandlerError::from(HandlerFailure::failed("tested", "not yet")));
                    }
                    Ok(())
                }
                .boxed()
            },
        );
        let retry = RetryPolicy {
            // Each life fails anew: no number of them may make a dead letter.
            most_attempts: 10_000,
            first_delay: Duration::from_millis(5),
            most_delay: Duration::from_millis(50),
            ..RetryPolicy::default()
        };
        let inbox = Inbox::builder(store, pair.transport(&pair.broker)?)
            .consumer(Pair::consumer()?.as_str())
            .topic(Pair::topic()?.as_str())
            .on_any(handler)
            .mode(if self.stored { Mode::Stored } else { Mode::Direct })
            .batch(self.batch)
            .tries(2)
            .first_delay(Duration::from_millis(5))
            .due_poll(Duration::from_millis(200))
            .retry(retry)
            // The next life is the same one to the store, so that it need not wait until the leases of this one are over.
            .id(RelayId::from_uuid(uuid::Uuid::from_u128(7)))
            .on_step(move |step| {
                if let Some((last, time)) = self.crash
                    && last == step
                    && times.fetch_add(1, Ordering::SeqCst) + 1 == time
                {
                    abort();
                }
            });
        Ok(inbox.start().await?)
    }
}

async fn write(tx: &mut Transaction<'static, Postgres>, message: &Message) -> Result<(), sqlx::Error> {
    let key = message.order_key();
    let number: i64 = sqlx::query_scalar(
        "insert into counters values ($1, 1) on conflict (key) do update set handled = counters.handled + 1
         returning handled",
    )
    .bind(key.as_str())
    .fetch_one(&mut **tx)
    .await?;
    sqlx::query("insert into effects values ($1, $2, $3)")
        .bind(key.as_str())
        .bind(number)
        .bind(message.id.to_string())
        .execute(&mut **tx)
        .await?;
    Ok(())
}
