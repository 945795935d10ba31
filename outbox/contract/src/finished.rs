//! Calls that are finished though nobody waits for them any more.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// What is left of a call that nobody waits for any more.
pub type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A call that runs to its end even when the one who waits for it is gone.
///
/// For authors of stores whose driver does not know what it has when a call is dropped half way: a `BEGIN` that was sent, say, and whose
/// answer nobody read. Dropped before it is done, the rest goes to a function of the store, which spawns it where it can; what comes of the call
/// is dropped with it. One that was never polled has begun nothing, and is just dropped.
///
/// sqlx 0.9 counts a transaction when its `BEGIN` is answered. Dropped before, the connection goes back to the pool with a transaction open, and on MySQL
/// every later `begin` there is refused. A call that waits for a connection of the pool still takes its turn.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use outbox_contract::finished::{Finished, Rest};
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
    // None when it is done.
    call: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    begun: bool,
    spawn: fn(Rest),
}

impl<T: Send + 'static> Finished<T> {
    /// Wraps a call, which begins when it is first polled, and names who finishes it.
    pub fn new(call: impl Future<Output = T> + Send + 'static, spawn: fn(Rest)) -> Self {
        Self { call: Some(Box::pin(call)), begun: false, spawn }
    }
}

impl<T: Send + 'static> Future for Finished<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        // Behind its end it is as any other future: it is not to be polled again, and never answers.
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
