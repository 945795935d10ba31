//! Wake-ups: from this process, and from other programs on the channel.

use std::time::{Duration, Instant};

use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use outbox_contract::backend::Wakeup;
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Acquire, Executor};

use crate::channel::channel;
use crate::lines::Door;
use crate::notifier::SOON;

/// Pause after a failed or lost connection.
const PAUSE: Duration = Duration::from_secs(1);

/// Yields the wake-ups of other programs on the channel, and one after each interruption: a
/// notification may have been lost then.
pub(crate) fn of_other_programs(
    door: Door,
    schema: Option<String>,
    own: String,
) -> BoxStream<'static, Wakeup> {
    let ear = Ear { door, schema, own, listener: None, opened: Instant::now(), generation: 0 };
    stream::unfold(ear, |mut ear| async {
        let wakeup = ear.next().await;
        Some((wakeup, ear))
    })
    .boxed()
}

struct Ear {
    door: Door,
    schema: Option<String>,
    /// Suffix of this store's own notifications, whose wake-up was already delivered in the
    /// process.
    own: String,
    listener: Option<PgListener>,
    opened: Instant,
    generation: u64,
}

impl Ear {
    async fn next(&mut self) -> Wakeup {
        loop {
            let Some(listener) = &mut self.listener else {
                match self.open().await {
                    Ok(()) => return Wakeup::Now,
                    Err(error) => {
                        tracing::debug!(%error, "cannot listen for wake-ups; polling until then");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                continue;
            };
            let Ok(heard) = tokio::time::timeout(self.door.idle_check(), listener.try_recv()).await else {
                // A connection that the network has forgotten is as silent as one without
                // notifications.
                self.listen_again().await;
                continue;
            };
            match heard {
                Ok(Some(said)) if said.payload().ends_with(&self.own) => {}
                // Any other payload, from whatever program: a needless wake-up costs a needless
                // fetch.
                Ok(Some(said)) if said.payload().starts_with(SOON) => return Wakeup::Soon,
                Ok(Some(_)) => return Wakeup::Now,
                lost => {
                    if let Err(error) = lost {
                        tracing::debug!(%error, "the connection that listens for wake-ups was lost");
                    }
                    self.listener = None;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn open(&mut self) -> Result<(), sqlx::Error> {
        (self.opened, self.generation) = (Instant::now(), self.door.generation());
        let pool = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None);
        let pool = pool.connect_lazy_with(self.door.connect_options());
        let opening = async {
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.eager_reconnect(false);
            if let Some(settings) = self.door.settings() {
                listener.execute(sqlx::raw_sql(settings)).await?;
            }
            let channel = channel(listener.acquire().await?, self.schema.as_deref()).await?;
            listener.listen(&channel).await?;
            Ok(listener)
        };
        let opened = tokio::time::timeout(self.door.connect_timeout(), opening).await;
        self.listener = Some(opened.unwrap_or(Err(sqlx::Error::PoolTimedOut))?);
        Ok(())
    }

    /// Checks that the connection still answers. If it does not, or is too old, it is dropped: the
    /// next one is opened, and yields a wake-up.
    async fn listen_again(&mut self) {
        let Some(mut listener) = self.listener.take() else { return };
        if self.opened.elapsed() > self.door.max_age() || self.generation != self.door.generation() {
            return;
        }
        let answer = tokio::time::timeout(self.door.connect_timeout(), listener.execute("select 1")).await;
        match answer {
            Ok(Ok(_)) => self.listener = Some(listener),
            _ => tracing::debug!(
                "the connection that listens for wake-ups does not answer; opening another one"
            ),
        }
    }
}
