//! The locks that transactions hold until they end: who holds which, who waits, and who would wait
//! for ever.
//!
//! First come, first served; a lock goes from its holder straight to whoever waited longest. A
//! transaction waits for one lock at a time, so a deadlock is a circle of waiting transactions, and
//! it is found by walking from the lock to its holder to the lock that *that* one waits for. Found
//! when the circle would close, it costs no timer and is the same in every replay.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use outbox_contract::backend::{Ordering, StripeId};
use outbox_contract::{Consumer, KeyId, Message, MessageId, Route};
use tokio::sync::Notify;

/// Identifies a transaction for the life of its store. Grows, and is never reused.
pub(crate) type TxId = u64;

/// Something that can be locked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum LockName {
    /// The right to write at all, where one transaction writes at a time.
    Writer,
    /// The end of a key: whoever holds it appends next.
    Key(KeyId),
    /// The end of a stripe: whoever holds it takes the next number.
    Stripe(Route, StripeId),
    /// The handling of a message by a consumer.
    Dedup(Consumer, MessageId),
}

impl LockName {
    /// Returns the lock that an append of this message must hold.
    pub(crate) fn to_append(ordering: Ordering, route: &Route, message: &Message) -> Self {
        match ordering {
            Ordering::Single => Self::Writer,
            Ordering::Stripes => {
                let stripe = StripeId::of(message.topic.as_str(), message.order_key().as_str());
                Self::Stripe(route.clone(), stripe)
            }
            _ => Self::Key(message.key_id()),
        }
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writer => f.write_str("the store"),
            Self::Key(key) => write!(f, "key {key}"),
            Self::Stripe(route, stripe) => write!(f, "stripe {} of route {route}", stripe.0),
            Self::Dedup(consumer, id) => write!(f, "message {id} for consumer {consumer}"),
        }
    }
}

/// The answer to a request for a lock.
#[derive(Debug)]
pub(crate) enum Requested {
    /// It is held now (or was already).
    Held,
    /// It will be held once this is notified.
    Wait(Arc<Notify>),
    /// Its holder waits, through others or at once, for the one who asks.
    Deadlock,
}

/// All locks of a store. Maps are only looked up, never walked, so that their order can't be seen.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    locks: HashMap<LockName, Lock>,
    held: HashMap<TxId, Vec<LockName>>,
    waits: HashMap<TxId, LockName>,
}

#[derive(Debug)]
struct Lock {
    holder: TxId,
    queue: VecDeque<(TxId, Arc<Notify>)>,
}

impl Locks {
    /// Asks for a lock, in the name of a transaction.
    pub(crate) fn request(&mut self, tx: TxId, name: LockName) -> Requested {
        match self.locks.get(&name).map(|lock| lock.holder) {
            None => {
                self.locks.insert(name.clone(), Lock { holder: tx, queue: VecDeque::new() });
                self.held.entry(tx).or_default().push(name);
                Requested::Held
            }
            Some(holder) if holder == tx => Requested::Held,
            Some(holder) if self.waits_for(holder, tx) => Requested::Deadlock,
            Some(_) => {
                let granted = Arc::new(Notify::new());
                if let Some(lock) = self.locks.get_mut(&name) {
                    lock.queue.push_back((tx, Arc::clone(&granted)));
                }
                self.waits.insert(tx, name);
                Requested::Wait(granted)
            }
        }
    }

    /// Takes a request back. If it was granted meanwhile the transaction holds the lock, and lets
    /// go of it at its end.
    pub(crate) fn cancel(&mut self, tx: TxId) {
        if let Some(name) = self.waits.remove(&tx)
            && let Some(lock) = self.locks.get_mut(&name)
        {
            lock.queue.retain(|(waiting, _)| *waiting != tx);
        }
    }

    /// Lets go of everything that a transaction holds, and wakes those who hold it now.
    pub(crate) fn release_all(&mut self, tx: TxId) {
        for name in self.held.remove(&tx).unwrap_or_default() {
            let next = self.locks.get_mut(&name).and_then(|lock| {
                let (next, granted) = lock.queue.pop_front()?;
                lock.holder = next;
                Some((next, granted))
            });
            match next {
                Some((next, granted)) => {
                    self.waits.remove(&next);
                    self.held.entry(next).or_default().push(name);
                    granted.notify_one();
                }
                None => drop(self.locks.remove(&name)),
            }
        }
    }

    fn waits_for(&self, waiting: TxId, tx: TxId) -> bool {
        let next = |waiting: &TxId| {
            self.waits.get(waiting).and_then(|name| self.locks.get(name)).map(|lock| lock.holder)
        };
        std::iter::successors(Some(waiting), next).any(|holder| holder == tx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> LockName {
        LockName::Key(KeyId::new("t", name).unwrap())
    }

    #[test]
    fn a_lock_goes_to_whoever_waited_longest() {
        let mut locks = Locks::default();
        assert!(matches!(locks.request(1, key("a")), Requested::Held));
        assert!(matches!(locks.request(2, key("a")), Requested::Wait(_)));
        assert!(matches!(locks.request(3, key("a")), Requested::Wait(_)));
        locks.release_all(1);
        assert!(matches!(locks.request(2, key("a")), Requested::Held));
        assert!(matches!(locks.request(4, key("a")), Requested::Wait(_)));
        locks.release_all(2);
        assert!(matches!(locks.request(3, key("a")), Requested::Held));
    }

    #[test]
    fn a_circle_of_three_is_found_where_it_would_close() {
        let mut locks = Locks::default();
        for (tx, name) in [(1, "a"), (2, "b"), (3, "c")] {
            assert!(matches!(locks.request(tx, key(name)), Requested::Held));
        }
        assert!(matches!(locks.request(1, key("b")), Requested::Wait(_)));
        assert!(matches!(locks.request(2, key("c")), Requested::Wait(_)));
        assert!(matches!(locks.request(3, key("a")), Requested::Deadlock));
        locks.release_all(3);
        assert!(matches!(locks.request(2, key("c")), Requested::Held));
    }

    #[test]
    fn a_request_taken_back_is_passed_over() {
        let mut locks = Locks::default();
        assert!(matches!(locks.request(1, key("a")), Requested::Held));
        assert!(matches!(locks.request(2, key("a")), Requested::Wait(_)));
        assert!(matches!(locks.request(3, key("a")), Requested::Wait(_)));
        locks.cancel(2);
        locks.release_all(1);
        assert!(matches!(locks.request(3, key("a")), Requested::Held));
        locks.release_all(3);
        assert!(locks.locks.is_empty() && locks.held.is_empty() && locks.waits.is_empty());
    }
}
