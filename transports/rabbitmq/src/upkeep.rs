//! Times at which declarations of a transport are repeated: at once when it was found missing, and
//! now and then by itself, as not everything that is missing is noticed. Pure.

use std::time::Duration;

use crate::config::{Config, Topology};

/// Interval at which everything is declared again. Declaring what is there changes nothing.
const EVERY: Duration = Duration::from_secs(5);

/// With many queues it is done less often: so much time for each.
const EVERY_FOR_EACH: Duration = Duration::from_millis(50);

/// Minimum interval of attempts for what was found missing again so soon after it was made.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Returns the interval at which the topology of so many queues is declared again. None: somebody
/// else makes it.
pub(crate) fn every(config: &Config, queues: usize) -> Option<Duration> {
    let queues = u32::try_from(queues).unwrap_or(u32::MAX);
    (config.topology == Topology::Declared).then(|| EVERY.max(EVERY_FOR_EACH.saturating_mul(queues)))
}

/// State of the topology that publishing needs.
#[derive(Debug)]
pub(crate) struct Upkeep {
    every: Option<Duration>,
    /// Time of the last declaration, or of an attempt, on the clock of the transport.
    declared_at: Duration,
    is_missing: bool,
    is_running: bool,
}

/// Step before a batch goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// Declare everything, while batches go out.
    Beside,
    /// Declare everything first: something was missing.
    First,
}

impl Upkeep {
    pub(crate) fn new(config: &Config) -> Self {
        let queues = config.consumers.values().map(|consumers| consumers.len()).sum::<usize>()
            * usize::try_from(config.partitions.0).unwrap_or(usize::MAX);
        let every = every(config, queues);
        Self { every, declared_at: Duration::ZERO, is_missing: false, is_running: false }
    }

    /// A message came back, or there is no exchange.
    pub(crate) const fn found_missing(&mut self) {
        self.is_missing = self.every.is_some();
    }

    /// Returns what is to be done now. Who is told to do something says [`over`](Self::over) when
    /// it is done.
    pub(crate) fn begin(&mut self, now: Duration) -> Due {
        let since = now.saturating_sub(self.declared_at);
        let Some(every) = self.every.filter(|_| !self.is_running) else { return Due::Nothing };
        let due = match self.is_missing {
            true if since >= AGAIN_AFTER => Due::First,
            _ if since >= every => Due::Beside,
            _ => Due::Nothing,
        };
        self.is_running = due != Due::Nothing;
        due
    }

    /// Everything was declared, or could not be.
    pub(crate) const fn over(&mut self, went_well: bool, now: Duration) {
        self.declared_at = now;
        self.is_running = false;
        self.is_missing &= !went_well;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RabbitMqTransport;

    const S: Duration = Duration::from_secs(1);

    fn upkeep(topology: Topology) -> Upkeep {
        Upkeep::new(&RabbitMqTransport::builder("amqp://broker").topology(topology).config().unwrap())
    }

    #[test]
    fn what_is_missing_is_made_first_and_the_rest_now_and_then() {
        let mut upkeep = upkeep(Topology::Declared);
        assert_eq!(upkeep.begin(S), Due::Nothing);
        assert_eq!(upkeep.begin(EVERY), Due::Beside);
        assert_eq!(upkeep.begin(EVERY), Due::Nothing, "it is being done");
        upkeep.found_missing();
        upkeep.over(true, EVERY);
        assert_eq!(upkeep.begin(EVERY + S / 2), Due::Nothing, "all of it was there half a second ago");
        upkeep.found_missing();
        assert_eq!(upkeep.begin(EVERY + S), Due::First);
        upkeep.over(false, EVERY + S);
        assert_eq!(upkeep.begin(EVERY + S * 2), Due::First, "it could not be made");
        upkeep.over(true, EVERY + S * 2);
        assert_eq!(upkeep.begin(EVERY + S * 3), Due::Nothing);
    }

    #[test]
    fn what_somebody_else_makes_is_not_looked_after() {
        let mut upkeep = upkeep(Topology::Checked);
        upkeep.found_missing();
        assert_eq!(upkeep.begin(EVERY * 100), Due::Nothing);
    }

    #[test]
    fn many_queues_are_looked_after_less_often() {
        let builder = RabbitMqTransport::builder("amqp://broker").topology(Topology::Declared);
        assert_eq!(every(&builder.clone().config().unwrap(), 4), Some(EVERY));
        assert_eq!(every(&builder.config().unwrap(), 1_000), Some(S * 50));
    }
}
