//! Reads a member's units on a cluster, and on a server that has no memory for a transaction.
//!
//! On a cluster a transaction, and a wait, can't hold more slots than one, and each unit has its
//! own. So each unit is read by a script of its own, which looks at the owner first; all of them in
//! one round trip to each node. A member without anything to read asks again after a pause, which
//! grows.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use outbox_contract::backend::Unit;
use redis::{Pipeline, Value};
use tokio::time::{Instant, sleep};

use crate::connection::{Connection, refusal};
use crate::consumption::Plan;
use crate::deliveries::Member;
use crate::error::{Error, Reach};
use crate::lease::Cursor;
use crate::reader::{READER, is_of_one_unit, send};
use crate::scripts::Script;

/// The pause after the first read that brought nothing; each further one is twice as long.
const SHORTEST: Duration = Duration::from_millis(4);
/// The longest pause.
const LONGEST: Duration = Duration::from_millis(250);
/// Time for which a unit is left alone of which a read was refused.
const REST: Duration = Duration::from_millis(500);

/// Until when units are left alone of which the last read was refused.
pub(crate) type Resting = BTreeMap<Unit, Instant>;

impl Member {
    /// Reads over the connections to a cluster, until one breaks or something is refused.
    pub(crate) async fn read_by_script(&self, mut connection: Connection) -> Result<Infallible, Error> {
        let mut pause = SHORTEST;
        // Of how many units nothing came, since something did, or since the last pause.
        let mut silent = 0_usize;
        let mut resting = Resting::new();
        loop {
            self.control.server().check_open()?;
            let plan = self.until_there_is_room().await;
            silent = silent.saturating_add(plan.units.len());
            let of = plan.of;
            if self.round_by_script(&mut connection, plan, &mut resting).await? {
                (pause, silent) = (SHORTEST, 0);
            } else if silent >= of {
                sleep(pause).await;
                (pause, silent) = ((pause * 2).min(LONGEST), 0);
            }
        }
    }

    /// One read of what the plan says, but of units that have another owner, or rest. Says whether
    /// anything came.
    pub(crate) async fn round_by_script(
        &self,
        connection: &mut Connection,
        mut plan: Plan,
        resting: &mut Resting,
    ) -> Result<bool, Error> {
        let epochs: BTreeMap<Unit, String> = self.state().held().into_iter().collect();
        resting.retain(|unit, _| epochs.contains_key(unit));
        let began = Instant::now();
        let rests = |unit: &Unit| resting.get(unit).is_some_and(|until| *until > began);
        plan.units.retain(|(unit, ..)| epochs.contains_key(unit) && !rests(unit));
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
        let answers = send(connection, &pipeline, self.config.request_timeout).await?;
        let took = began.elapsed();
        let (mut read, mut of) = (Vec::new(), Vec::new());
        for (planned, answer) in plan.units.into_iter().zip(answers) {
            let unit = &planned.0;
            match refusal(&answer) {
                None if answer != Value::Int(0) => {
                    resting.remove(unit);
                    if let Value::Array(streams) = answer {
                        read.extend(streams);
                    }
                    of.push(planned);
                }
                Some(refused) if refused.reach != Reach::Topic => return Err(refused),
                // Nothing was read of it, and the others go on. It is told once, and by heartbeats.
                Some(refused) if !is_of_one_unit(&refused) => {
                    if resting.insert(unit.clone(), Instant::now() + REST).is_none() {
                        self.tell_of(unit, refused)?;
                    }
                }
                // Another's; or gone: taken again, it gets a new stream, or is refused.
                _ => {
                    self.lose(unit);
                    self.hurry.notify_one();
                }
            }
        }
        plan.units = of;
        let streams: Vec<String> = plan.units.iter().map(|(unit, ..)| self.routing.stream(unit)).collect();
        self.take_in(&plan, &streams, &Value::Array(read), took)
    }
}
