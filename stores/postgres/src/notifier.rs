//! Wake-ups of relays in other programs.
//!
//! Never inside the user's transaction: a commit that notifies holds a lock of the whole server
//! while it waits for its disk, and all such commits queue up. So the notification follows the
//! commit, on a connection of its own, and many commits share one.

use std::io::ErrorKind;
use std::time::Duration;

use outbox_contract::backend::{Wakeup, WakeupSignal};
use tokio::task::JoinHandle;

use crate::channel::channel;
use crate::line::Line;
use crate::lines::Door;
use crate::migrate::run;

/// Pause after a failed connection.
const PAUSE: Duration = Duration::from_secs(1);

/// Payload: messages were appended and will be committed, if at all, soon.
pub(crate) const SOON: &str = "soon";
/// Payload: messages were committed.
pub(crate) const NOW: &str = "now";

/// The task that forwards this program's wake-ups to other programs. Ends with the store.
pub(crate) struct Notifier(JoinHandle<()>);

/// Connection of the notifications, and the outbox that they are of.
pub(crate) struct Way {
    pub(crate) door: Door,
    pub(crate) schema: Option<String>,
    /// Sender id, so that the store's own listeners, who already had the wake-up, skip it.
    pub(crate) sender: String,
    pub(crate) interval: Duration,
}

impl Way {
    /// A lost wake-up loses no message, so its commit waits for no disk. One step: it works behind a
    /// pooler.
    fn statement(&self, channel: &str, word: &str) -> String {
        let (sender, channel) = (&self.sender, channel.replace('\'', "''"));
        format!(
            "select set_config('synchronous_commit', 'off', true), pg_notify('{channel}', '{word} {sender}')"
        )
    }
}

impl Notifier {
    /// Starts to forward wake-ups from now on. Needs a runtime.
    pub(crate) fn start(way: Way, wakeup_signal: &WakeupSignal) -> Self {
        let mut listener = wakeup_signal.listen();
        Self(tokio::spawn(async move {
            let line = Line::new(way.door.clone(), None);
            let mut known: Option<String> = None;
            loop {
                let mut wakeup = listener.next().await;
                // Most commits follow their append at once: then one notification suffices, and it
                // is exact.
                if wakeup == Wakeup::Soon
                    && let Ok(next) = tokio::time::timeout(way.interval, listener.next()).await
                {
                    wakeup = next;
                }
                let word = match wakeup {
                    Wakeup::Soon => SOON,
                    Wakeup::Now => NOW,
                };
                let told = async {
                    let mut held = line.hold().await?;
                    let done = async {
                        let channel = match known.take() {
                            Some(channel) => channel,
                            None => channel(&mut held.connection, way.schema.as_deref()).await?,
                        };
                        let told = run(&mut held.connection, way.statement(&channel, word)).await;
                        known = Some(channel);
                        told
                    };
                    let done = done.await;
                    held.finish(done).await
                };
                // Without a limit it would wait for a connection that the network has forgotten.
                let most = way.door.connect_timeout().saturating_mul(2);
                let told = tokio::time::timeout(most, told).await;
                match told.unwrap_or_else(|_| Err(sqlx::Error::Io(ErrorKind::TimedOut.into()))) {
                    Ok(()) => tokio::time::sleep(way.interval).await,
                    Err(error) => {
                        tracing::debug!(%error, "could not wake other programs; they find new messages by polling");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }))
    }

    /// Returns true if it still works: its runtime may be gone while the store lives on in another.
    pub(crate) fn is_running(&self) -> bool {
        !self.0.is_finished()
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.0.abort();
    }
}
