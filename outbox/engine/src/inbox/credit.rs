//! Credit: the deliveries that an inbox has in memory, in messages and in bytes.
//!
//! Each delivery owns its share ([`Hold`]) and gives it back when it is dropped: handled, revoked
//! or lost with a crashed actor. So the count needs no bookkeeping that a crash could break. The
//! bound (promise P6) is the transport's prefetch.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Messages and bytes that are out.
#[derive(Debug, Default)]
pub(crate) struct Credit {
    messages: AtomicUsize,
    bytes: AtomicUsize,
}

impl Credit {
    /// Takes a share for a message of this size.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Hold {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Hold { credit: Arc::clone(self), bytes }
    }

    /// Messages and bytes that are out.
    pub(crate) fn out(&self) -> (usize, usize) {
        (self.messages.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// A message's share of the credit; dropping it gives the share back.
#[derive(Debug)]
pub(crate) struct Hold {
    credit: Arc<Credit>,
    bytes: usize,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.credit.messages.fetch_sub(1, Ordering::Relaxed);
        self.credit.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_gives_its_credit_back() {
        let credit = Arc::new(Credit::default());
        let (first, second) = (credit.take(400), credit.take(700));
        assert_eq!(credit.out(), (2, 1_100));
        drop(first);
        assert_eq!(credit.out(), (1, 700));
        drop(second);
        assert_eq!(credit.out(), (0, 0));
    }
}
