//! The confirmations that are outstanding on one channel.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;

/// Futures of which every one that is ready is taken at once.
///
/// Which confirmation carries a returned message is the library's to choose (see [`crate::publication`]). A message is decided rightly
/// only if all confirmations that were handled before its own are looked at together with it. They are ready by then; but one
/// look at a set of futures may end before it has seen all that are.
pub(crate) struct Confirms<F> {
    under_way: FuturesUnordered<F>,
}

impl<F: Future> Confirms<F> {
    pub(crate) fn new() -> Self {
        Self { under_way: FuturesUnordered::new() }
    }

    pub(crate) fn push(&mut self, confirm: F) {
        self.under_way.push(confirm);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Waits until at least one is ready, and takes all that are. Empty when nothing is outstanding.
    ///
    /// Cancellation: safe; what was taken is returned in the same step.
    pub(crate) async fn ready(&mut self) -> Vec<F::Output> {
        poll_fn(|context| self.poll_ready(context)).await
    }

    /// Takes all that are ready, without waiting.
    pub(crate) fn ready_now(&mut self) -> Vec<F::Output> {
        match self.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(taken) => taken,
            Poll::Pending => Vec::new(),
        }
    }

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Vec<F::Output>> {
        let woken = Arc::new(Woken { since: AtomicBool::new(false), by: context.waker().clone() });
        let waker = Waker::from(Arc::clone(&woken));
        let mut watched = Context::from_waker(&waker);
        let mut taken = Vec::new();
        loop {
            woken.since.store(false, Ordering::SeqCst);
            match Pin::new(&mut self.under_way).poll_next(&mut watched) {
                Poll::Ready(Some(output)) => taken.push(output),
                Poll::Ready(None) => return Poll::Ready(taken),
                // It may have stopped to let others run, not because nothing is ready: then it has woken itself.
                Poll::Pending if woken.since.load(Ordering::SeqCst) => {}
                Poll::Pending if taken.is_empty() => return Poll::Pending,
                Poll::Pending => return Poll::Ready(taken),
            }
        }
    }
}

/// Notes that it was woken, and passes that on.
struct Woken {
    since: AtomicBool,
    by: Waker,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.since.store(true, Ordering::SeqCst);
        self.by.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ready after it was looked at so many times; wakes itself each time.
    struct After(usize);

    impl Future for After {
        type Output = usize;

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<usize> {
            if self.0 == 0 {
                return Poll::Ready(0);
            }
            self.0 -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }
    }

    #[test]
    fn everything_that_is_ready_is_taken_at_once() {
        let mut confirms = Confirms::new();
        (0..300).for_each(|at| confirms.push(After(at % 5)));
        assert_eq!(confirms.ready_now().len(), 300);
        assert!(confirms.is_empty());
    }

    #[test]
    fn what_is_not_ready_stays() {
        let mut confirms = Confirms::new();
        confirms.push(Box::pin(std::future::pending::<()>()) as Pin<Box<dyn Future<Output = ()>>>);
        confirms.push(Box::pin(std::future::ready(())));
        assert_eq!(confirms.ready_now().len(), 1);
        assert!(confirms.ready_now().is_empty() && !confirms.is_empty());
    }
}
