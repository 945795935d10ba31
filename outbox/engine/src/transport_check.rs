//! Check of a transport while it is in use: a broker that was set up well at the start may not be
//! any more.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outbox_contract::{Transport, TransportErrorKind, metric};

use crate::answer::answer;

/// Interval of the checks.
pub(crate) const EVERY: Duration = Duration::from_secs(60);

/// Result of the last check that had one. Shared by who checks and who is asked for health.
#[derive(Debug, Default)]
pub(crate) struct TransportCheck {
    // Held for a few instructions, as the other one.
    wrong: Mutex<Option<String>>,
    /// Why the last check had no answer.
    unanswered: Mutex<Option<String>>,
}

impl TransportCheck {
    /// Checks the transport. An outage says nothing about its settings.
    pub(crate) async fn look(&self, transport: &dyn Transport, limit: Duration) {
        let found = match answer(limit, transport.check()).await {
            Err(why) => return self.is_unanswered(why),
            Ok(Ok(())) => None,
            Ok(Err(error)) if error.is_retryable() => return self.is_unanswered(error.to_string()),
            Ok(Err(error)) if error.kind() == TransportErrorKind::Closed => return,
            Ok(Err(error)) => Some(error.to_string()),
        };
        *self.unanswered.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let unsafe_settings = metrics::gauge!(metric::UNSAFE_SETTINGS, "transport" => transport.name());
        unsafe_settings.set(f64::from(u8::from(found.is_some())));
        let before =
            std::mem::replace(&mut *self.wrong.lock().unwrap_or_else(PoisonError::into_inner), found.clone());
        match (&before, &found) {
            (before, Some(error)) if before.as_ref() != Some(error) => {
                tracing::warn!(
                    transport = transport.name(),
                    error,
                    "the transport would be refused if this program started now"
                );
            }
            (Some(_), None) => tracing::info!(
                transport = transport.name(),
                "the transport's check finds nothing wrong any more"
            ),
            _ => {}
        }
    }

    /// Records why a check had no answer.
    pub(crate) fn is_unanswered(&self, why: String) {
        *self.unanswered.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    /// Returns why the last check had no answer, if it had none.
    pub(crate) fn unanswered(&self) -> Option<String> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns what is wrong, for a health check.
    pub(crate) fn reason(&self) -> Option<String> {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong
            .as_ref()
            .map(|error| format!("the transport would be refused if this program started now: {error}"))
    }
}
