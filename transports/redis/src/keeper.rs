//! Keeps a member's leases: says that it is alive, prolongs what it has, gives up what is beyond its share, takes what is free.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::subscription::Unit;
use outbox_contract::{Clock, Topic};
use redis::{Pipeline, Value};
use tokio::time::timeout;

use crate::config::Start;
use crate::connection::{Connection, list, number, text};
use crate::deliveries::Member;
use crate::error::{Reach, Trouble};
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
    /// One heartbeat, for all topics.
    async fn beat(&self) -> Result<(), Trouble> {
        for (topic, units) in &self.topics {
            let mut connection = self.control.connection().await?;
            let members = self.prolong(&mut connection, topic).await?;
            if self.state().is_draining() {
                continue;
            }
            let share = fair_share(*units, &members, &self.name);
            let mine: BTreeSet<u32> = self.state().held_of(topic).into_keys().collect();
            let beyond: Vec<Unit> = surplus(&mine, share).into_iter().map(|it| unit(topic, it)).collect();
            self.give_up(&mut connection, &beyond).await?;
            if mine.len() < usize::try_from(share).unwrap_or(usize::MAX) {
                self.acquire(&mut connection, topic, *units, &mine, share).await?;
            }
        }
        Ok(())
    }

    /// Counts as a member for one more lease, and so do its units. Answers who else is there.
    async fn prolong(&self, connection: &mut Connection, topic: &Topic) -> Result<Vec<String>, Trouble> {
        let held = self.state().held_of(topic);
        let lasts = if self.state().is_draining() { 0 } else { self.lease_millis() };
        let scripts = Arc::clone(&connection.scripts);
        let mut pipeline = Pipeline::new();
        let members = self.routing.members(topic, &self.consumer);
        scripts.call(Script::Beat, &[&members], &mut pipeline).arg(&self.name).arg(lasts);
        for (number, epoch) in &held {
            self.own(connection, &unit(topic, *number), epoch, &mut pipeline);
        }
        // Counted from before the request: the server can't begin earlier.
        let until = self.clock.elapsed() + self.config.lease;
        let answers = self.ask(connection, &pipeline).await?;
        let [members, owned @ ..] = answers.as_slice() else {
            return Err(Trouble::unexpected("a heartbeat"));
        };
        for ((number, epoch), answer) in held.iter().zip(owned) {
            let unit = unit(topic, *number);
            match answer {
                Value::Nil => self.lose(&unit),
                answer => {
                    list(answer)?;
                    self.state().prolong(&unit, epoch, until);
                }
            }
        }
        // With leases that last again there may be something to read.
        self.read.notify_one();
        list(members)?.iter().map(text).collect()
    }

    /// Gives units back. This member stops using them before anybody else can have them.
    pub(crate) async fn give_up(&self, connection: &mut Connection, units: &[Unit]) -> Result<(), Trouble> {
        if units.is_empty() {
            return Ok(());
        }
        let mut pipeline = Pipeline::new();
        for unit in units {
            self.lose(unit);
            let lease = self.routing.lease(unit, &self.consumer);
            connection.scripts.call(Script::GiveBack, &[&lease], &mut pipeline).arg(&self.name);
        }
        for answer in self.ask(connection, &pipeline).await? {
            number(&answer)?;
        }
        Ok(())
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
            look.cmd("EXISTS").arg(self.routing.lease(&unit(topic, *number), &self.consumer));
        }
        let mut free = Vec::new();
        for (unit, answer) in others.iter().zip(self.ask(connection, &look).await?) {
            if number(&answer)? == 0 {
                free.push(*unit);
            }
        }
        let wanted: Vec<Unit> = wanted(mine, &free, share).into_iter().map(|it| unit(topic, it)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let mut take = Pipeline::new();
        for unit in &wanted {
            self.own(connection, unit, "", &mut take);
        }
        let until = self.clock.elapsed() + self.config.lease;
        for (unit, answer) in wanted.into_iter().zip(self.ask(connection, &take).await?) {
            // Nothing: another member was quicker.
            if let [epoch, seen] = list(&answer)? {
                let seen: StreamId = text(seen)?.parse().map_err(|_| Trouble::unexpected("a script"))?;
                self.state().gain(unit, text(epoch)?, until, seen);
            }
        }
        self.read.notify_one();
        Ok(())
    }

    /// Leaves: gives everything back at once. What does not go through is free when the leases are over.
    pub(crate) async fn leave(&self) -> Result<(), Trouble> {
        let mut connection = self.control.connection().await?;
        // All of them, also one that was just taken, and that nobody here has heard of yet.
        let units =
            self.topics.iter().flat_map(|(topic, units)| (0..*units).map(|number| unit(topic, number)));
        let units: Vec<Unit> = units.collect();
        self.give_up(&mut connection, &units).await?;
        let mut pipeline = Pipeline::new();
        for topic in self.topics.keys() {
            let members = self.routing.members(topic, &self.consumer);
            connection.scripts.call(Script::Beat, &[&members], &mut pipeline).arg(&self.name).arg(0);
        }
        for answer in self.ask(&mut connection, &pipeline).await? {
            list(&answer)?;
        }
        Ok(())
    }

    fn own(&self, connection: &Connection, unit: &Unit, epoch: &str, pipeline: &mut Pipeline) {
        let stream = self.routing.stream(unit);
        let owner = self.routing.owner(unit, &self.consumer);
        let lease = self.routing.lease(unit, &self.consumer);
        let start = match self.config.start {
            Start::Oldest => "0",
            Start::Newest => "$",
        };
        let call = connection.scripts.call(Script::Own, &[&stream, &owner, &lease], pipeline);
        call.arg(&self.name).arg(epoch).arg(self.lease_millis()).arg(self.consumer.as_str()).arg(start);
    }

    async fn ask(&self, connection: &mut Connection, pipeline: &Pipeline) -> Result<Vec<Value>, Trouble> {
        self.control.within(connection, pipeline, self.config.request_timeout).await
    }

    fn lease_millis(&self) -> u64 {
        u64::try_from(self.config.lease.as_millis()).unwrap_or(u64::MAX)
    }
}

fn unit(topic: &Topic, number: u32) -> Unit {
    Unit { topic: topic.clone(), number }
}
