//! Reads a member's units on a cluster.
//!
//! There a transaction, and a wait, can't hold more slots than one, and each unit has its own. So each unit is read by a script of its
//! own, which looks at the owner first; all of them in one round trip to each node. A member without anything to read asks again after a
//! pause, which grows.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use outbox_contract::subscription::Unit;
use redis::{Pipeline, Value};
use tokio::time::{Instant, sleep};

use crate::connection::{Connection, refusal};
use crate::deliveries::Member;
use crate::error::Trouble;
use crate::reader::{READER, is_of_one_unit, send};
use crate::scripts::Script;
use crate::state::Plan;
use crate::unit::Cursor;

/// The pause after the first read that brought nothing; each further one is twice as long.
const SHORTEST: Duration = Duration::from_millis(4);
/// The longest pause.
const LONGEST: Duration = Duration::from_millis(250);

impl Member {
    /// Reads over the connections to a cluster, until one breaks or something is refused.
    pub(crate) async fn read_by_script(&self, mut connection: Connection) -> Result<Infallible, Trouble> {
        let mut pause = SHORTEST;
        // Of how many units nothing came, since something did, or since the last pause.
        let mut silent = 0_usize;
        loop {
            self.control.server().check_open()?;
            let plan = self.until_there_is_room().await;
            silent = silent.saturating_add(plan.units.len());
            let of = plan.of;
            if self.round_by_script(&mut connection, plan).await? {
                (pause, silent) = (SHORTEST, 0);
            } else if silent >= of {
                sleep(pause).await;
                (pause, silent) = ((pause * 2).min(LONGEST), 0);
            }
        }
    }

    /// One read of what the plan says, but of units that have another owner. Says whether anything came.
    async fn round_by_script(&self, connection: &mut Connection, mut plan: Plan) -> Result<bool, Trouble> {
        let epochs: BTreeMap<Unit, String> = self.state().held().into_iter().collect();
        plan.units.retain(|(unit, ..)| epochs.contains_key(unit));
        let streams: Vec<String> = plan.units.iter().map(|(unit, ..)| self.routing.stream(unit)).collect();
        let mut pipeline = Pipeline::new();
        for ((unit, _, cursor), stream) in plan.units.iter().zip(&streams) {
            let owner = self.routing.owner(unit, &self.consumer);
            let call = connection.scripts.call(Script::Read, &[stream, &owner], &mut pipeline);
            call.arg(&self.name)
                .arg(epochs.get(unit))
                .arg(self.consumer.as_str())
                .arg(READER)
                .arg(plan.count);
            match cursor {
                Cursor::Pending(after) => call.arg(after.to_string()),
                Cursor::New => call.arg(">"),
            };
        }
        if pipeline.is_empty() {
            return Ok(false);
        }
        let began = Instant::now();
        let answers = send(connection, &pipeline, self.config.request_timeout).await?;
        let took = began.elapsed();
        let mut read = Vec::new();
        for ((unit, ..), answer) in plan.units.iter().zip(answers) {
            let lost = match refusal(&answer) {
                None => answer == Value::Int(0),
                // Taken again, the unit gets a new stream, or is refused.
                Some(refused) if is_of_one_unit(&refused) => true,
                Some(refused) => return Err(refused),
            };
            if lost {
                self.lose(unit);
                self.hurry.notify_one();
            } else if let Value::Array(streams) = answer {
                read.extend(streams);
            }
        }
        self.take_in(&plan, &streams, &Value::Array(read), took)
    }
}
