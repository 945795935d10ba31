//! Calls that run to completion after their caller has gone.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Remainder of a call whose caller has gone.
pub type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A call that runs to completion even after its caller has dropped it.
///
/// For authors of stores whose driver loses its state when a call is dropped halfway: for example,
/// a `BEGIN` that was sent and whose answer was never read. If this future is dropped before
/// completion, it passes the remainder to a function of the store, which spawns it where possible.
/// The result of the call is dropped. A call that was never polled has not begun, and is simply
/// dropped.
///
/// sqlx 0.9 counts a transaction only once its `BEGIN` is answered. If the call is dropped before,
/// the connection returns to the pool with an open transaction, and MySQL rejects every later
/// `begin` on it. A call that waits for a connection of the pool still takes its turn.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// # extern crate outbox_contract as outbox;
/// use outbox::backend::{Finished, Rest};
/// use tokio::{runtime::Handle, sync::oneshot, time::timeout};
///
/// fn spawn(rest: Rest) {
///     if let Ok(runtime) = Handle::try_current() {
///         runtime.spawn(rest);
///     }
/// }
///
/// let (answer, answered) = oneshot::channel();
/// let (done, is_done) = oneshot::channel();
/// let call = async move { done.send(answered.await) };
/// timeout(Duration::ZERO, Finished::new(call, spawn)).await.expect_err("no answer yet");
/// answer.send("begun").unwrap();
/// assert_eq!(is_done.await.unwrap(), Ok("begun"));
/// # });
/// ```
#[must_use = "a call does nothing until it is awaited"]
pub struct Finished<T: Send + 'static> {
    // `None` once complete.
    call: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    begun: bool,
    spawn: fn(Rest),
}

impl<T: Send + 'static> Finished<T> {
    /// Wraps a call, which begins at the first poll, and takes the function that spawns its
    /// remainder.
    pub fn new(call: impl Future<Output = T> + Send + 'static, spawn: fn(Rest)) -> Self {
        Self { call: Some(Box::pin(call)), begun: false, spawn }
    }
}

impl<T: Send + 'static> Future for Finished<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        // After completion it behaves like any other future: it must not be polled again, and never
        // answers.
        let Some(call) = &mut self.call else { return Poll::Pending };
        let polled = call.as_mut().poll(context);
        if polled.is_ready() {
            self.call = None;
        }
        polled
    }
}

impl<T: Send + 'static> fmt::Debug for Finished<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finished").field("begun", &self.begun).field("done", &self.call.is_none()).finish()
    }
}

impl<T: Send + 'static> Drop for Finished<T> {
    fn drop(&mut self) {
        if let (true, Some(call)) = (self.begun, self.call.take()) {
            (self.spawn)(Box::pin(async move { drop(call.await) }));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::time::{Duration, timeout};

    use super::*;

    fn spawn(rest: Rest) {
        tokio::spawn(rest);
    }

    #[tokio::test]
    async fn what_was_not_begun_never_runs() {
        let (done, is_done) = oneshot::channel();
        drop(Finished::new(async move { done.send(()) }, spawn));
        is_done.await.unwrap_err();
    }

    #[tokio::test]
    async fn what_was_begun_runs_to_its_end_and_what_comes_of_it_is_dropped() {
        struct Noticed(Option<oneshot::Sender<()>>);
        impl Drop for Noticed {
            fn drop(&mut self) {
                self.0.take().map(|sender| sender.send(()));
            }
        }
        let (answer, answered) = oneshot::channel();
        let (dropped, is_dropped) = oneshot::channel();
        let call = async move {
            answered.await.unwrap();
            Noticed(Some(dropped))
        };
        assert!(timeout(Duration::ZERO, Finished::new(call, spawn)).await.is_err());
        answer.send(()).unwrap();
        is_dropped.await.unwrap();
    }

    #[tokio::test]
    async fn what_is_done_is_not_finished_again() {
        let call = Finished::new(async { 7 }, |_| panic!("nothing is left of it"));
        assert_eq!(call.await, 7);
    }
}
