#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use outbox_contract::StoreErrorKind;

use super::*;

/// Runs a future that waits for nothing.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it waits"),
    }
}

/// Performs a discard whose parts answer so. Returns the result, and the number of parts left over.
fn discard(parts: &[Option<u32>]) -> (Result<u64, (StoreErrorKind, String)>, usize) {
    let (route, key) = (Route::default(), KeyId::new("orders", "a").unwrap());
    let parts = Mutex::new(parts.iter());
    let part = || {
        let part = parts.lock().unwrap().next().expect("one part too many");
        std::future::ready(Ok(part.map(|buried| Steered::discarded(buried.into()))))
    };
    let steered = ready(in_parts((&route, &key), KeyOperation::Discard, part));
    let steered = steered.map(|steered| steered.buried).map_err(|error| (error.kind(), error.to_string()));
    (steered, parts.lock().unwrap().len())
}

#[test]
fn a_discard_ends_with_the_first_part_that_is_not_full() {
    let full = Some(MAX_DISCARDED);
    assert_eq!(discard(&[Some(3), full]), (Ok(3), 1));
    assert_eq!(discard(&[full, full, Some(0), full]), (Ok(2 * u64::from(MAX_DISCARDED)), 1));
}

#[test]
fn a_key_that_flows_after_a_part_has_nothing_left_to_discard() {
    assert_eq!(discard(&[Some(MAX_DISCARDED), None, None]), (Ok(MAX_DISCARDED.into()), 1));
}

#[test]
fn a_key_that_flows_is_an_invalid_argument() {
    let text = "the key a of orders on the route default is neither failing nor held";
    let (result, left) = discard(&[None, None]);
    let (kind, message) = result.unwrap_err();
    assert!(kind == StoreErrorKind::Invalid && message.contains(text) && left == 1, "{message}");
}
