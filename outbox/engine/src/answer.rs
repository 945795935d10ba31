//! Answers of what is not the engine's: of stores, transports and drivers.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

/// Waits for the answer of a call, at most for `limit`.
///
/// # Errors
///
/// The reason why there is none, which may be a panic of the call.
pub(crate) async fn answer<T>(limit: Duration, call: impl Future<Output = T>) -> Result<T, String> {
    // The call shares no state with the engine, so a panic can't leave any half changed.
    match tokio::time::timeout(limit, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err("panicked; the panic message is on standard error".to_owned()),
        Err(_) => Err(format!("no answer within {limit:?}")),
    }
}
