//! Marks of topics in the store: see [`consumed`](crate::inbox::consumed).

use std::time::Duration;

use outbox_contract::backend::Dedup;
use outbox_contract::{Codec, Message, Timestamp, Topic, Transactional};
use tokio::time::timeout;

use super::Processor;
use crate::inbox::consumed::{Asked, days, hours_of, last_hours, marks, of_day, of_hour};
use crate::inbox::process::{Errand, Origin};
use crate::inbox::verdict::TransactionError;

/// Time limit of a turn: the next look is soon.
const TURN: Duration = Duration::from_secs(5);

impl<S: Transactional, C: Codec> Processor<S, C> {
    /// Returns the hour in which a topic was last handled, if it ever was.
    pub(super) async fn find_mark(
        &self,
        topic: &Topic,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, TransactionError> {
        for day in days(now) {
            if !self.has_mark(of_day(topic, day)).await? {
                continue;
            }
            for hour in hours_of(day) {
                if self.has_mark(of_hour(topic, hour)).await? {
                    return Ok(Some(hour));
                }
            }
            return Ok(Some(day));
        }
        for hour in last_hours(now) {
            if self.has_mark(of_hour(topic, hour)).await? {
                return Ok(Some(hour));
            }
        }
        Ok(None)
    }

    async fn has_mark(&self, asked: Asked<'_>) -> Result<bool, TransactionError> {
        self.pool.call("is_handled", self.store.is_handled(&self.consumer, asked.id())).await
    }

    /// Notes that topics are handled now, in a transaction of its own.
    pub(super) async fn note_marks(&self, topics: &[Topic], now: Timestamp) -> Result<(), TransactionError> {
        let errand = Errand { origin: Origin::Broker, is_suspect: false, is_wanted: &|| true };
        let Ok(Some(turn)) = timeout(TURN, self.pool.turn(&errand)).await else {
            return Err(TransactionError::NoTurn);
        };
        let marks = marks(topics, now);
        let marks: Vec<&Message> = marks.iter().collect();
        let mut open = self.pool.begin(&turn).await?;
        let noted =
            self.pool.call("deduplicate", self.store.deduplicate(&mut open.tx, &self.consumer, &marks)).await;
        match noted {
            Ok(noted) if noted.contains(&Dedup::New) => self.pool.commit(open, None).await,
            noted => {
                self.pool.roll_back(open).await;
                noted.map(drop)
            }
        }
    }
}
