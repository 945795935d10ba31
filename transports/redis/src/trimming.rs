//! Times at which a stream is trimmed: beside publishing, as it grows by nothing else, and not each
//! time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outbox_contract::backend::Unit;
use redis::Pipeline;
use tokio::time::Instant;

use crate::config::Retention;
use crate::scripts::{Script, Scripts};

#[derive(Debug)]
pub(crate) struct Trimming {
    retention: Retention,
    every: Duration,
    // A plain mutex: held for one look or one store.
    last: Mutex<HashMap<Unit, Instant>>,
}

impl Trimming {
    pub(crate) fn new(retention: Retention, every: Duration) -> Self {
        Self { retention, every, last: Mutex::default() }
    }

    /// Adds what trims the stream of a unit, when it is time; says whether it did.
    pub(crate) fn ask(&self, unit: &Unit, stream: &str, scripts: &Scripts, pipeline: &mut Pipeline) -> bool {
        let (finished, at_most) = match &self.retention {
            Retention::Everything => return false,
            Retention::Finished(keep) => (keep.as_millis(), String::new()),
            // Redis counts to this at most.
            Retention::AtMost(entries) => (0, (*entries).min(i64::MAX as u64).to_string()),
        };
        if !self.is_due(unit, Instant::now()) {
            return false;
        }
        let finished = u64::try_from(finished).unwrap_or(u64::MAX);
        scripts.call(Script::Trim, &[stream], pipeline).arg(1).arg(finished).arg(at_most);
        true
    }

    fn is_due(&self, unit: &Unit, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.get(unit).is_some_and(|last| now.duration_since(*last) < self.every) {
            return false;
        }
        last.insert(unit.clone(), now);
        true
    }
}
