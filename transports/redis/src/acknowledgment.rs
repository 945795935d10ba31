//! Acknowledgments. A finished delivery is unconfirmed until Redis has said that it knows: whoever
//! acknowledges does so once, and nothing comes again while its unit stays. So what did not go
//! through goes with the next acknowledgement, behind the next heartbeat, and at the latest when
//! the unit is given back.

use outbox_contract::TransportErrorKind;
use outbox_contract::backend::Tag;
use redis::{Pipeline, Value};

use crate::connection::{Connection, number};
use crate::consumption::Unconfirmed;
use crate::deliveries::Member;
use crate::error::{Error, Reach};

impl Member {
    /// Acknowledges finished deliveries. Dropped half-way, they are unconfirmed.
    pub(crate) async fn acknowledge(&self, tags: &[Tag]) -> Result<(), Error> {
        if !self.state().finish(tags) {
            return Ok(());
        }
        let mut until_confirmed = UntilConfirmed { member: self, armed: true };
        let mut connection = self.control.connection().await?;
        self.acknowledge_all(&mut connection).await?;
        until_confirmed.armed = false;
        Ok(())
    }

    /// Tells Redis of everything unconfirmed, over the connection of heartbeats.
    pub(crate) async fn acknowledge_all(&self, connection: &mut Connection) -> Result<(), Error> {
        let unconfirmed = self.state().unconfirmed();
        if unconfirmed.is_empty() {
            return Ok(());
        }
        let mut pipeline = Pipeline::new();
        self.acknowledging(&unconfirmed, &mut pipeline);
        let answers = self.control.within(connection, &pipeline, self.config.request_timeout).await?;
        self.acknowledged(&unconfirmed, &answers)
    }

    /// Adds the commands that tell Redis: one for each unit.
    pub(crate) fn acknowledging(&self, unconfirmed: &[Unconfirmed], pipeline: &mut Pipeline) {
        for finished in unconfirmed {
            pipeline.cmd("XACK").arg(self.routing.stream(&finished.unit)).arg(self.consumer.as_str());
            for (_, id) in &finished.deliveries {
                pipeline.arg(id.to_string());
            }
        }
    }

    /// Reads the answers to them.
    ///
    /// # Errors
    ///
    /// The first refusal: whatever it is, it is tried again. What was not refused is confirmed.
    pub(crate) fn acknowledged(&self, unconfirmed: &[Unconfirmed], answers: &[Value]) -> Result<(), Error> {
        let mut result = Ok(());
        for (finished, answer) in unconfirmed.iter().zip(answers) {
            match number(answer) {
                Ok(_) => self.state().confirmed(finished),
                Err(error) => {
                    if error.reach == Reach::Topic {
                        self.is_refused(&finished.unit.topic, Some(finished.unit.number), &error);
                    }
                    result = result.and(Err(Error { kind: TransportErrorKind::Unavailable, ..error }));
                }
            }
        }
        // There is room again: for what was read, and for more.
        self.wake.notify_one();
        self.read.notify_one();
        result
    }
}

/// An acknowledgement that did not go through, so far. Dropped like that, the next heartbeat comes
/// soon.
struct UntilConfirmed<'m> {
    member: &'m Member,
    armed: bool,
}

impl Drop for UntilConfirmed<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.member.hurry.notify_one();
        }
    }
}
