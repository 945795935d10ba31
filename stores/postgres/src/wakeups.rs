//! Being woken: by the bell of this process, and by what other programs say on the channel.

use std::time::Duration;

use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use outbox_contract::hints::{HintListener, Wakeup};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};

use crate::notifier::SOON;

/// The pause after a connection could not be had, or was lost.
const PAUSE: Duration = Duration::from_secs(1);

/// Yields what the bell rings.
pub(crate) fn of_this_process(bell: HintListener) -> BoxStream<'static, Wakeup> {
    stream::unfold(bell, |mut bell| async {
        let wakeup = bell.next().await;
        Some((wakeup, bell))
    })
    .boxed()
}

/// Yields what others say on the channel, and once after each time that nobody could be heard: something may have been said then.
pub(crate) fn of_other_programs(
    options: PgConnectOptions,
    channel: String,
    own: String,
) -> BoxStream<'static, Wakeup> {
    let pool = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None);
    let ear = Ear { pool: pool.connect_lazy_with(options), channel, own, listener: None };
    stream::unfold(ear, |mut ear| async {
        let wakeup = ear.next().await;
        Some((wakeup, ear))
    })
    .boxed()
}

struct Ear {
    pool: PgPool,
    channel: String,
    /// What this store itself says ends so: its bell was heard already.
    own: String,
    listener: Option<PgListener>,
}

impl Ear {
    async fn next(&mut self) -> Wakeup {
        loop {
            let Some(listener) = &mut self.listener else {
                match self.open().await {
                    Ok(()) => return Wakeup::Now,
                    Err(error) => {
                        tracing::debug!(%error, "can't listen for wake-ups; polling serves until then");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                continue;
            };
            match listener.try_recv().await {
                Ok(Some(said)) if said.payload().ends_with(&self.own) => {}
                // Anything else, from whatever program: a wake-up too many is a fetch too many.
                Ok(Some(said)) if said.payload().starts_with(SOON) => return Wakeup::Soon,
                Ok(Some(_)) => return Wakeup::Now,
                lost => {
                    if let Err(error) = lost {
                        tracing::debug!(%error, "listening for wake-ups broke off");
                    }
                    self.listener = None;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn open(&mut self) -> Result<(), sqlx::Error> {
        let mut listener = PgListener::connect_with(&self.pool).await?;
        listener.eager_reconnect(false);
        listener.listen(&self.channel).await?;
        self.listener = Some(listener);
        Ok(())
    }
}
