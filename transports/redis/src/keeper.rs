//! Keeps a member's leases: says that it is alive, prolongs what it has, gives up what is beyond its share, takes what is free.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::subscription::Unit;
use outbox_contract::{Clock, Topic, TransportErrorKind};
use redis::{Pipeline, Value};
use tokio::time::timeout;

use crate::connection::{Connection, list, refusal, text};
use crate::deliveries::Member;
use crate::error::{Reach, Trouble};
use crate::reader::READER;
use crate::scripts::Script;
use crate::share::{fair_share, surplus, wanted};
use crate::stream_id::StreamId;

/// The longest pause before a heartbeat that failed is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// Beats until the transport is closed or the task is aborted.
pub(crate) async fn keep(member: Arc<Member>) {
    loop {
        let pause = match member.beat().await {
            Ok(()) => member.config.heartbeat,
            Err(trouble) => {
                let closed = trouble.reach == Reach::Closed;
                member.fail(trouble);
                if closed {
                    return;
                }
                member.config.heartbeat.min(AGAIN)
            }
        };
        if member.state().expire(member.clock.elapsed()) {
            member.wake.notify_one();
        }
        // Early when something was lost or given up; no answer is needed.
        let _ = timeout(pause, member.hurry.notified()).await;
    }
}

impl Member {
    /// One heartbeat, for all topics; and what is owed.
    async fn beat(&self) -> Result<(), Trouble> {
        let mut result = Ok(());
        for (topic, units) in &self.topics {
            match self.beat_of(topic, *units).await {
                // The others are not to wait for it.
                Err(trouble) if trouble.reach == Reach::Topic => result = result.and(Err(trouble)),
                beaten => beaten?,
            }
        }
        self.pay(&mut self.control.connection().await?).await?;
        result
    }

    async fn beat_of(&self, topic: &Topic, units: u32) -> Result<(), Trouble> {
        let mut connection = self.control.connection().await?;
        let members = self.prolong(&mut connection, topic).await?;
        if self.state().is_draining() {
            return Ok(());
        }
        let share = fair_share(units, &members, &self.name);
        let mine: BTreeSet<u32> = self.state().held_of(topic).into_keys().collect();
        let beyond: Vec<Unit> = surplus(&mine, share).into_iter().map(|it| unit(topic, it)).collect();
        self.give_up(&mut connection, topic, &beyond).await?;
        if mine.len() < usize::try_from(share).unwrap_or(usize::MAX) {
            self.acquire(&mut connection, topic, units, &mine, share).await?;
        }
        Ok(())
    }

    /// Counts as a member for one more lease, and so do its units. Answers who else is there.
    async fn prolong(&self, connection: &mut Connection, topic: &Topic) -> Result<Vec<String>, Trouble> {
        let held = self.state().held_of(topic);
        let lasts = if self.state().is_draining() { 0 } else { self.lease_millis() };
        let mut pipeline = Pipeline::new();
        let members = self.routing.members(topic, &self.consumer);
        connection.scripts.call(Script::Beat, &[&members], &mut pipeline).arg(&self.name).arg(lasts);
        for (number, epoch) in &held {
            self.own(connection, &unit(topic, *number), epoch, &mut pipeline);
        }
        // Counted from before the request: the server can't begin earlier.
        let until = self.clock.elapsed() + self.config.lease;
        let answers = self.ask(connection, &pipeline).await?;
        let [members, owned @ ..] = answers.as_slice() else {
            return Err(Trouble::unexpected("a heartbeat"));
        };
        let mut result = Ok(());
        for ((number, epoch), answer) in held.iter().zip(owned) {
            let unit = unit(topic, *number);
            match Ownership::read(answer) {
                Ok(None) => self.lose(&unit),
                Ok(Some(ownership)) => {
                    if self.state().prolong(&unit, epoch, until, ownership.oldest) {
                        tracing::warn!(%unit, "acknowledgements were lost by the server; what they were of comes again");
                        self.lose(&unit);
                    }
                }
                Err(trouble) => result = result.and(self.tell_of(&unit, trouble)),
            }
        }
        // With leases that last again there may be something to read.
        self.read.notify_one();
        result?;
        list(members)?.iter().map(text).collect()
    }

    /// Gives units back, and pays first what is owed of them. This member stops using them before anybody else can have them. What does not go
    /// through is given back with the next heartbeat.
    async fn give_up(
        &self,
        connection: &mut Connection,
        topic: &Topic,
        beyond: &[Unit],
    ) -> Result<(), Trouble> {
        let mut pipeline = Pipeline::new();
        let mut owed = self.state().owed();
        owed.retain(|unit, _| beyond.contains(unit));
        self.payment(&owed, &mut pipeline);
        beyond.iter().for_each(|unit| self.lose(unit));
        let leaving = self.state().leave(topic, beyond);
        if leaving.is_empty() {
            return Ok(());
        }
        self.giving_back(connection, &leaving, &mut pipeline);
        let answers = self.ask(connection, &pipeline).await?;
        answers.iter().find_map(refusal).map_or(Ok(()), Err)?;
        self.state().left(&leaving);
        Ok(())
    }

    fn giving_back(&self, connection: &Connection, units: &[Unit], pipeline: &mut Pipeline) {
        for unit in units {
            let lease = self.routing.lease(unit, &self.consumer);
            connection.scripts.call(Script::GiveBack, &[&lease], pipeline).arg(&self.name);
        }
    }

    /// Takes free units, up to the share.
    async fn acquire(
        &self,
        connection: &mut Connection,
        topic: &Topic,
        units: u32,
        mine: &BTreeSet<u32>,
        share: u32,
    ) -> Result<(), Trouble> {
        let others: Vec<u32> = (0..units).filter(|number| !mine.contains(number)).collect();
        let mut look = Pipeline::new();
        for number in &others {
            look.cmd("GET").arg(self.routing.lease(&unit(topic, *number), &self.consumer));
        }
        let mut free = Vec::new();
        for (number, answer) in others.iter().zip(self.ask(connection, &look).await?) {
            // Its own name stands there when it took a unit and did not hear of it.
            let is_free = answer == Value::Nil
                || match text(&answer) {
                    Ok(member) => member == self.name,
                    Err(trouble) => self.tell_of(&unit(topic, *number), trouble).map(|()| false)?,
                };
            if is_free {
                free.push(*number);
            }
        }
        // What was refused last comes last: it is not to stand in the way of the others.
        free.sort_by_key(|number| self.state().was_refused(&unit(topic, *number)));
        let wanted: Vec<Unit> = wanted(mine, &free, share).into_iter().map(|it| unit(topic, it)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let mut take = Pipeline::new();
        for unit in &wanted {
            self.own(connection, unit, "", &mut take);
        }
        let until = self.clock.elapsed() + self.config.lease;
        let mut result = Ok(());
        for (unit, answer) in wanted.into_iter().zip(self.ask(connection, &take).await?) {
            match Ownership::read(&answer) {
                // Another member was quicker.
                Ok(None) => {}
                Ok(Some(Ownership { epoch, seen, .. })) => self.state().gain(unit, epoch, until, seen),
                Err(trouble) => {
                    self.state().refuse(&unit);
                    result = result.and(self.tell_of(&unit, trouble));
                }
            }
        }
        self.read.notify_one();
        result
    }

    /// What is refused of one unit holds up no other: whoever receives is told, and it is tried again with the next heartbeat.
    fn tell_of(&self, unit: &Unit, trouble: Trouble) -> Result<(), Trouble> {
        if trouble.reach != Reach::Topic {
            return Err(trouble);
        }
        tracing::warn!(%unit, class = trouble.class, "a unit can't be had: {}", trouble.words);
        self.fail(Trouble { kind: TransportErrorKind::Unavailable, ..trouble });
        Ok(())
    }

    /// Leaves: pays what is owed and gives everything back at once. What does not go through is free when the leases are over.
    pub(crate) async fn leave(&self) -> Result<(), Trouble> {
        let mut connection = self.control.connection().await?;
        // All of them, also one that was just taken, and that nobody here has heard of yet.
        let units =
            self.topics.iter().flat_map(|(topic, units)| (0..*units).map(|number| unit(topic, number)));
        let units: Vec<Unit> = units.collect();
        let mut pipeline = Pipeline::new();
        self.payment(&self.state().owed(), &mut pipeline);
        self.giving_back(&connection, &units, &mut pipeline);
        for topic in self.topics.keys() {
            let members = self.routing.members(topic, &self.consumer);
            connection.scripts.call(Script::Beat, &[&members], &mut pipeline).arg(&self.name).arg(0);
        }
        let answers = self.ask(&mut connection, &pipeline).await?;
        answers.iter().find_map(refusal).map_or(Ok(()), Err)
    }

    fn own(&self, connection: &Connection, unit: &Unit, epoch: &str, pipeline: &mut Pipeline) {
        let stream = self.routing.stream(unit);
        let owner = self.routing.owner(unit, &self.consumer);
        let lease = self.routing.lease(unit, &self.consumer);
        let call = connection.scripts.call(Script::Own, &[&stream, &owner, &lease], pipeline);
        call.arg(&self.name).arg(epoch).arg(self.lease_millis()).arg(self.consumer.as_str()).arg(READER);
    }

    async fn ask(&self, connection: &mut Connection, pipeline: &Pipeline) -> Result<Vec<Value>, Trouble> {
        self.control.within(connection, pipeline, self.config.request_timeout).await
    }

    fn lease_millis(&self) -> u64 {
        u64::try_from(self.config.lease.as_millis()).unwrap_or(u64::MAX).max(1)
    }
}

/// That a unit is this member's, as the script says it.
struct Ownership {
    epoch: String,
    /// The last entry that the group was given.
    seen: StreamId,
    /// The first one that is pending, of all.
    oldest: Option<StreamId>,
}

impl Ownership {
    /// None: it is another's.
    fn read(answer: &Value) -> Result<Option<Self>, Trouble> {
        let id = |value: &Value| text(value)?.parse().map_err(|_| Trouble::unexpected("a script"));
        match list(answer)? {
            [] => Ok(None),
            [epoch, seen, oldest] => {
                let oldest = (*oldest != Value::Nil).then(|| id(oldest)).transpose()?;
                Ok(Some(Self { epoch: text(epoch)?, seen: id(seen)?, oldest }))
            }
            _ => Err(Trouble::unexpected("a script")),
        }
    }
}

fn unit(topic: &Topic, number: u32) -> Unit {
    Unit { topic: topic.clone(), number }
}
