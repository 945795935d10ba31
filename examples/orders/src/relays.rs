//! The relays: two, and with `--kill-relay` a task that repeatedly kills one of them.

use std::sync::Arc;
use std::time::Duration;

use outbox::prelude::*;
use outbox::relay::RelayStats;
use outbox::{StartError, Transport};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Results of the relays.
#[derive(Debug, Default)]
pub(crate) struct Relayed {
    /// Number of confirmed messages, repeats included.
    pub(crate) published: u64,
    /// Number of relays killed without a drain.
    pub(crate) killed: u64,
    /// True if the last relays stopped in order.
    pub(crate) drained: bool,
}

/// Two relays over one store.
pub(crate) struct Relays {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Relayed>,
}

impl Relays {
    /// Starts the relays.
    pub(crate) async fn start(
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
        kill: bool,
        seed: u64,
    ) -> Result<Self, StartError> {
        let pair = vec![start(&store, &transport, kill).await?, start(&store, &transport, kill).await?];
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut keeper = Keeper { store, transport, pair, relayed: Relayed::default() };
            if kill {
                keeper.kill_until(stopped, seed).await;
            } else {
                // The sender is only dropped together with everything else.
                let _ = stopped.await;
            }
            keeper.stop().await
        });
        Ok(Self { stop, task })
    }

    /// Stops the relays in order.
    pub(crate) async fn stop(self) -> Relayed {
        // A task that has ended has nothing to stop.
        let _ = self.stop.send(());
        self.task.await.unwrap_or_default()
    }
}

struct Keeper {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    pair: Vec<RelayHandle>,
    relayed: Relayed,
}

impl Keeper {
    async fn kill_until(&mut self, mut stopped: oneshot::Receiver<()>, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        loop {
            // The bundled orders take about a second: the first relay is killed before they are done.
            let longest = if self.relayed.killed == 0 { 300 } else { 2_000 };
            let pause = Duration::from_millis(random.u64(100..longest));
            if tokio::time::timeout(pause, &mut stopped).await.is_ok() {
                return;
            }
            let victim = self.pair.swap_remove(random.usize(0..self.pair.len()));
            self.relayed.published += victim.stats().delivered;
            self.relayed.killed += 1;
            // No drain: another relay resends what it has in flight.
            drop(victim);
            match start(&self.store, &self.transport, true).await {
                Ok(relay) => self.pair.push(relay),
                Err(error) => eprintln!("could not start another relay: {error}"),
            }
            if self.pair.is_empty() {
                return;
            }
        }
    }

    async fn stop(self) -> Relayed {
        let mut relayed = self.relayed;
        relayed.drained = true;
        for relay in self.pair {
            let stats: RelayStats = relay.stats();
            relayed.drained &= relay.stop(Duration::from_secs(10)).await;
            relayed.published += stats.delivered;
        }
        relayed
    }
}

/// Starts a relay. If relays are killed, leases are short, so that the others take over soon.
/// Otherwise they have their default, so that a relay on a busy machine keeps its own.
async fn start(
    store: &Arc<dyn Store>,
    transport: &Arc<dyn Transport>,
    killed: bool,
) -> Result<RelayHandle, StartError> {
    let mut relay = Relay::builder(Arc::clone(store), Arc::clone(transport)).label("orders");
    if killed {
        relay = relay
            .lease(Duration::from_millis(1_500))
            .heartbeat(Duration::from_millis(300))
            .publish_timeout(Duration::from_millis(800));
    }
    relay.start().await
}
