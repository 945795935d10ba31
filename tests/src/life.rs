//! One life of an inbox between the database and the broker of a pair.

use std::process::abort;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outbox_contract::backend::RelayId;
use outbox_contract::{Message, RetryPolicy, Transport};
use outbox_engine::{
    HandlerContext, HandlerError, HandlerFailure, HandlerOptions, Inbox, InboxHandle, Mode, Step,
};

use crate::ledger::{Effects, Failed};
use crate::pair::Pair;

/// Settings of an inbox's life, and the point of its death. A process receives it through the
/// environment.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// True if messages go through the store ([`Mode::Stored`]).
    pub stored: bool,
    /// Maximum number of messages in one transaction.
    pub batch: usize,
    /// Step behind which it aborts, and at which occurrence, from 1; None: it lives until it is
    /// stopped.
    pub crash: Option<(Step, u32)>,
    /// Its identity to the store. A life of the same number need not wait until the leases of the
    /// last one are over; two at once must not share one.
    pub number: u32,
    /// Messages that its program knows.
    pub knows: Knows,
}

/// Messages that an inbox's program knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Knows {
    /// Every type, in every version.
    #[default]
    Everything,
    /// [`Life::PLACED`] in version 1.
    Old,
    /// [`Life::PLACED`] in version 2 too, and [`Life::CANCELED`].
    New,
}

impl Knows {
    const ALL: [Self; 3] = [Self::Everything, Self::Old, Self::New];
}

const STORED: &str = "OUTBOX_LIFE_STORED";
const BATCH: &str = "OUTBOX_LIFE_BATCH";
const CRASH: &str = "OUTBOX_LIFE_CRASH";
const NUMBER: &str = "OUTBOX_LIFE_NUMBER";
const KNOWS: &str = "OUTBOX_LIFE_KNOWS";

impl Life {
    /// The key whose handler fails at first in each life, so that its messages go through the
    /// store.
    pub const FAILING: &str = "failing";

    /// The payload of a message that the handler always rejects.
    pub const POISON: &[u8] = b"poison";

    /// The type of a message that every program knows.
    pub const PLACED: &str = "order.placed";

    /// The type of a message that an old program does not know.
    pub const CANCELED: &str = "order.canceled";

    /// Returns the environment variables that pass this life to a program.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let place = |step| Step::ALL.iter().position(|other| *other == step).unwrap_or_default();
        let crash = self.crash.map(|(step, time)| format!("{} {time}", place(step)));
        vec![
            (STORED, self.stored.to_string()),
            (BATCH, self.batch.to_string()),
            (CRASH, crash.unwrap_or_default()),
            (NUMBER, self.number.to_string()),
            (KNOWS, (self.knows as usize).to_string()),
        ]
    }

    /// Returns the life in the environment.
    ///
    /// # Errors
    ///
    /// A variable that is missing or invalid.
    pub fn from_environment() -> Result<Self, Failed> {
        let crash = match std::env::var(CRASH)?.split_once(' ') {
            Some((place, time)) => {
                let step = Step::ALL.get(place.parse::<usize>()?).ok_or("there is no such step")?;
                Some((*step, time.parse()?))
            }
            None => None,
        };
        let (stored, batch) = (std::env::var(STORED)?.parse()?, std::env::var(BATCH)?.parse()?);
        let knows =
            *Knows::ALL.get(std::env::var(KNOWS)?.parse::<usize>()?).ok_or("there is no such program")?;
        Ok(Self { stored, batch, crash, number: std::env::var(NUMBER)?.parse()?, knows })
    }

    /// Starts the inbox. Its handler leaves an effect of each message.
    pub(crate) async fn start<E: Effects>(
        self,
        database: &E,
        pair: &Pair,
        transport: Arc<dyn Transport>,
    ) -> Result<InboxHandle, Failed> {
        let times = AtomicU32::new(0);
        let (effects, failures) = (database.clone(), Arc::new(AtomicU32::new(0)));
        let handler = async move |message: Message, context: &mut HandlerContext<'_, E::Store>| {
            if self.knows == Knows::Old && message.schema_version > 1 {
                return Err(HandlerError::from(HandlerFailure::too_new("schema", "only version 1 is known")));
            }
            let fails =
                message.order_key().as_str() == Self::FAILING && failures.fetch_add(1, Ordering::SeqCst) < 4;
            effects.note(context.tx(), message.order_key().as_str(), message.id).await?;
            if fails {
                return Err(HandlerError::from(HandlerFailure::failed("tested", "not yet")));
            }
            if message.payload == Self::POISON {
                return Err(HandlerError::from(HandlerFailure::rejected("tested", "never")));
            }
            Ok(())
        };
        let retry = RetryPolicy {
            // Each life fails anew: no number of them may make a dead letter.
            max_attempts: 10_000,
            first_delay: Duration::from_millis(5),
            max_delay: Duration::from_millis(50),
            ..RetryPolicy::default()
        };
        let (topic, options) = (pair.topic.as_str(), HandlerOptions::default());
        let inbox = Inbox::builder(database.store().clone(), transport)
            .consumer(pair.consumer()?.as_str())
            .topic(pair.topic.as_str())
            .mode(if self.stored { Mode::Stored } else { Mode::Direct })
            .batch(self.batch)
            .prefetch(200)
            .tries(2)
            .first_delay(Duration::from_millis(5))
            .due_poll(Duration::from_millis(200))
            .retry(retry)
            .id(RelayId::from_uuid(uuid::Uuid::from_u128(self.number.into())))
            .on_step(move |step| {
                if let Some((last, time)) = self.crash
                    && last == step
                    && times.fetch_add(1, Ordering::SeqCst) + 1 == time
                {
                    abort();
                }
            });
        let inbox = match self.knows {
            Knows::Everything => inbox.on_any(handler),
            Knows::Old => inbox.on_message_with(topic, Self::PLACED, options, handler),
            Knows::New => inbox
                .on_message_with(topic, Self::PLACED, options, handler.clone())
                .on_message_with(topic, Self::CANCELED, options, handler),
        };
        Ok(inbox.start().await?)
    }
}
