//! Transactions that were begun together with the commit of another, and wait for the next message.
//!
//! A pool checks each connection that comes back, and BEGIN is a round trip of its own: together,
//! three of six round trips for each message.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

/// Time that a transaction waits for the next message. A worker with more to do returns within a
/// fraction of this; an unused connection is missing from the user's pool for this long.
const MAX_IDLE: Duration = Duration::from_millis(10);

/// Number of transactions that follow each other on a connection before it goes back to the pool,
/// which may be about to end it: because it is old, or because another host is behind the name now.
const MAX_IN_A_ROW: u32 = 100;

/// A transaction that is open.
pub(crate) struct Open<T> {
    pub(crate) tx: T,
    /// Number of transactions on its connection since that left the pool, this one included.
    in_a_row: u32,
}

impl<T> Open<T> {
    /// The first one on a connection of the pool.
    pub(crate) fn first(tx: T) -> Self {
        Self { tx, in_a_row: 1 }
    }

    /// Returns true if another may follow on its connection.
    pub(crate) fn has_next(&self) -> bool {
        self.in_a_row < MAX_IN_A_ROW
    }

    /// Number of transactions on its connection so far.
    pub(crate) fn in_a_row(&self) -> u32 {
        self.in_a_row
    }
}

/// Transactions that wait. What waits for too long is ended: nothing was done in it.
pub(crate) struct Spares<T> {
    // Held while one is put or taken.
    waiting: Mutex<Waiting<T>>,
    end: Box<dyn Fn(T) -> BoxFuture<'static, ()> + Send + Sync>,
}

struct Waiting<T> {
    // The youngest last.
    spares: Vec<(Instant, Open<T>)>,
    is_swept: bool,
}

impl<T: Send + 'static> Spares<T> {
    pub(crate) fn new(end: impl Fn(T) -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Arc<Self> {
        let waiting = Mutex::new(Waiting { spares: Vec::new(), is_swept: false });
        Arc::new(Self { waiting, end: Box::new(end) })
    }

    /// Returns the newest one, so that unused ones expire. Returns none that has waited too long:
    /// if the whole process was paused, the server may have ended it.
    pub(crate) fn take(&self) -> Option<Open<T>> {
        let spare = self.lock().spares.pop_if(|(since, _)| since.elapsed() < MAX_IDLE);
        spare.map(|(_, open)| open)
    }

    /// Puts what was begun behind a transaction. Called in a runtime.
    pub(crate) fn put(self: &Arc<Self>, tx: T, behind: u32) {
        let mut waiting = self.lock();
        waiting.spares.push((Instant::now(), Open { tx, in_a_row: behind + 1 }));
        if !std::mem::replace(&mut waiting.is_swept, true) {
            tokio::spawn(sweep(Arc::clone(self)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out those that have waited for too long. Whether others are still there.
    fn age(&self, now: Instant) -> (Vec<Open<T>>, bool) {
        let mut waiting = self.lock();
        let old = waiting.spares.partition_point(|(since, _)| now.duration_since(*since) >= MAX_IDLE);
        let old = waiting.spares.drain(..old).map(|(_, open)| open).collect();
        waiting.is_swept = !waiting.spares.is_empty();
        (old, waiting.is_swept)
    }
}

/// Runs as long as there are spare transactions, also when nothing else uses the pool any more.
async fn sweep<T: Send + 'static>(spares: Arc<Spares<T>>) {
    loop {
        tokio::time::sleep(MAX_IDLE).await;
        let (old, more) = spares.age(Instant::now());
        for open in old {
            // Each by itself, so that none waits for another, or ends with it. It is over within
            // the time that the store has for it.
            let spares = Arc::clone(&spares);
            tokio::spawn(async move { (spares.end)(open.tx).await });
        }
        if !more {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::mpsc;

    use super::*;

    fn spares() -> (Arc<Spares<u32>>, mpsc::UnboundedReceiver<u32>) {
        let (sender, ended) = mpsc::unbounded_channel();
        let end = move |tx| {
            sender.send(tx).unwrap();
            async {}.boxed()
        };
        (Spares::new(end), ended)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_taken_is_ended_soon() {
        let (spares, mut ended) = spares();
        let begun = Instant::now();
        spares.put(1, 1);
        tokio::time::sleep(MAX_IDLE / 2).await;
        spares.put(2, 1);
        assert_eq!((ended.recv().await, begun.elapsed()), (Some(1), MAX_IDLE));
        assert_eq!((ended.recv().await, begun.elapsed()), (Some(2), MAX_IDLE * 2));
        // And so is what comes after a time with none, though the pool is idle.
        tokio::time::sleep(MAX_IDLE).await;
        spares.put(3, 1);
        drop(spares);
        assert_eq!(ended.recv().await, Some(3));
        assert_eq!(ended.recv().await, None, "nothing is left to end");
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_waited_for_too_long_is_not_taken() {
        let (spares, mut ended) = spares();
        spares.put(1, 1);
        // Nothing else runs meanwhile, as in a process that is paused.
        tokio::time::advance(MAX_IDLE * 1_000).await;
        assert!(spares.take().is_none());
        assert_eq!(ended.recv().await, Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_youngest_is_taken_first_and_none_that_is_not_there() {
        let (spares, _ended) = spares();
        spares.put(1, 1);
        spares.put(2, 1);
        let taken: Vec<_> = std::iter::from_fn(|| spares.take()).map(|open| open.tx).collect();
        assert_eq!(taken, [2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_goes_back_to_its_pool_after_a_number_of_transactions() {
        let (spares, _ended) = spares();
        let mut open = Open::first(1);
        while open.has_next() {
            spares.put(open.tx + 1, open.in_a_row());
            open = spares.take().unwrap();
        }
        assert_eq!(open.tx, MAX_IN_A_ROW);
    }

    #[tokio::test(start_paused = true)]
    async fn one_whose_end_fails_or_lasts_keeps_none_of_the_others() {
        let (sender, mut ended) = mpsc::unbounded_channel();
        let end = move |tx: u32| {
            let sender = sender.clone();
            async move {
                match tx {
                    1 => panic!("told to"),
                    2 => std::future::pending().await,
                    _ => sender.send(tx).unwrap(),
                }
            }
            .boxed()
        };
        let spares = Spares::new(end);
        let limit = MAX_IDLE * 1_000;
        for tx in 1..4 {
            spares.put(tx, 1);
        }
        assert_eq!(tokio::time::timeout(limit, ended.recv()).await, Ok(Some(3)));
        for tx in 4..6 {
            spares.put(tx, 1);
            assert_eq!(tokio::time::timeout(limit, ended.recv()).await, Ok(Some(tx)));
        }
    }
}
