//! Acknowledgements. What is finished is owed to Redis from then on until Redis has said that it knows: whoever acknowledges does so once, and
//! nothing comes again while its unit stays. So what did not go through goes with the next acknowledgement, behind the next heartbeat, and
//! at the latest when the unit is given back.

use outbox_contract::TransportErrorKind;
use outbox_contract::backend::Tag;
use redis::{Pipeline, Value};

use crate::connection::{Connection, number};
use crate::deliveries::Member;
use crate::error::Trouble;
use crate::state::Owed;

impl Member {
    /// These deliveries are finished. Dropped half-way, they are owed.
    pub(crate) async fn acknowledge(&self, tags: &[Tag]) -> Result<(), Trouble> {
        if !self.state().finish(tags) {
            return Ok(());
        }
        let mut unpaid = Unpaid { member: self, armed: true };
        let mut connection = self.control.connection().await?;
        self.pay(&mut connection).await?;
        unpaid.armed = false;
        Ok(())
    }

    /// Tells Redis of all that is owed, over the connection of heartbeats.
    pub(crate) async fn pay(&self, connection: &mut Connection) -> Result<(), Trouble> {
        let owed = self.state().owed();
        if owed.is_empty() {
            return Ok(());
        }
        let mut pipeline = Pipeline::new();
        self.payment(&owed, &mut pipeline);
        let answers = self.control.within(connection, &pipeline, self.config.request_timeout).await?;
        self.settle(&owed, &answers)
    }

    /// Adds what tells Redis: a command for each unit.
    pub(crate) fn payment(&self, owed: &Owed, pipeline: &mut Pipeline) {
        for (unit, (_, entries)) in owed {
            pipeline.cmd("XACK").arg(self.routing.stream(unit)).arg(self.consumer.as_str());
            for (_, id) in entries {
                pipeline.arg(id.to_string());
            }
        }
    }

    /// Reads the answers to a payment.
    ///
    /// # Errors
    ///
    /// The first refusal: whatever it is, it is tried again. What was not refused is paid.
    pub(crate) fn settle(&self, owed: &Owed, answers: &[Value]) -> Result<(), Trouble> {
        let mut result = Ok(());
        for ((unit, (incarnation, entries)), answer) in owed.iter().zip(answers) {
            match number(answer) {
                Ok(_) => self.state().paid(unit, *incarnation, entries),
                Err(trouble) => {
                    result = result.and(Err(Trouble { kind: TransportErrorKind::Unavailable, ..trouble }));
                }
            }
        }
        // There is room again: for what was read, and for more.
        self.wake.notify_one();
        self.read.notify_one();
        result
    }
}

/// An acknowledgement that did not go through, so far. Dropped like that, the next heartbeat comes soon.
struct Unpaid<'m> {
    member: &'m Member,
    armed: bool,
}

impl Drop for Unpaid<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.member.hurry.notify_one();
        }
    }
}
