//! Keeps a member's leases: says that it is alive, prolongs what it has, gives up what is beyond
//! its share, takes what is free.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Clock, Loss, LossCause, OffsetReset, Unit};
use outbox_contract::{Topic, TransportErrorKind};
use redis::{Pipeline, Value};
use tokio::time::timeout;

use crate::connection::{Connection, list, number, refusal, text};
use crate::consumption::KnownUnit;
use crate::deliveries::Member;
use crate::error::{Error, Reach};
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
            Err(error) => {
                let closed = error.reach == Reach::Closed;
                member.fail(error);
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
    /// Beats once, for all topics, and acknowledges what is unconfirmed.
    async fn beat(&self) -> Result<(), Error> {
        // Looked at once: a topic that is added meanwhile has its first heartbeat next.
        let topics: Vec<(Topic, u32)> = self.topics().into_iter().collect();
        let mut prolonged = self.clock.elapsed();
        let mut members = self.prolong(&topics).await?;
        let mut result = Ok(());
        for (at, (topic, units)) in topics.iter().enumerate() {
            // Leases go on while it takes long to see to many topics.
            if self.clock.elapsed() > prolonged + self.config.heartbeat {
                prolonged = self.clock.elapsed();
                members = self.prolong(&topics).await?;
            }
            let mut connection = self.control.connection().await?;
            let beaten = match &members[at] {
                Ok(members) => self.share_out(&mut connection, topic, *units, members).await,
                Err(error) => Err(error.clone()),
            };
            match beaten {
                Err(error) if matches!(error.reach, Reach::Unknown | Reach::Closed) => {
                    return Err(error);
                }
                // The others are not to wait for it.
                Err(error) if error.reach == Reach::Topic => _ = self.is_refused(topic, None, &error),
                Ok(()) => self.is_well(topic, None),
                Err(error) => result = result.and(Err(error)),
            }
        }
        match self.acknowledge_all(&mut self.control.connection().await?).await {
            // A problem of its unit, which holds up no other.
            Err(error) if error.reach == Reach::Topic => result,
            acknowledged => acknowledged.and(result),
        }
    }

    /// Gives up what is beyond the share of this member, takes what is free up to that.
    async fn share_out(
        &self,
        connection: &mut Connection,
        topic: &Topic,
        units: u32,
        members: &[String],
    ) -> Result<(), Error> {
        if self.state().is_draining() {
            return Ok(());
        }
        let share = fair_share(units, members, &self.name);
        let mine: BTreeSet<u32> = self.state().held_of(topic).into_keys().collect();
        let beyond: Vec<Unit> = surplus(&mine, share).into_iter().map(|it| unit(topic, it)).collect();
        self.give_up(connection, topic, &beyond).await?;
        if mine.len() < usize::try_from(share).unwrap_or(usize::MAX) {
            self.acquire(connection, topic, units, &mine, share).await?;
        }
        Ok(())
    }

    /// Counts as a member of each topic for one more lease, and so do its units: of all topics in
    /// one request. Returns for each topic who else is there, or what was refused of it.
    async fn prolong(&self, topics: &[(Topic, u32)]) -> Result<Vec<Result<Vec<String>, Error>>, Error> {
        let mut connection = self.control.connection().await?;
        let lasts = if self.state().is_draining() { 0 } else { self.lease_millis() };
        let mut pipeline = Pipeline::new();
        let mut held = Vec::new();
        for (topic, _) in topics {
            let members = self.routing.members(topic, &self.consumer);
            connection.scripts.call(Script::Beat, &[&members], &mut pipeline).arg(&self.name).arg(lasts);
            let of_topic = self.state().held_of(topic);
            for (number, held) in &of_topic {
                self.own(&connection, &unit(topic, *number), &held.epoch, &mut pipeline);
            }
            held.push((topic, of_topic));
        }
        // Counted from before the request: the server can't begin earlier.
        let until = self.clock.elapsed() + self.config.lease;
        let mut answers = self.ask(&mut connection, &pipeline).await?.into_iter();
        let mut members = Vec::with_capacity(topics.len());
        for (topic, held) in held {
            let mut next = || answers.next().ok_or_else(|| Error::unexpected("a heartbeat"));
            let mut of_topic = list(&next()?).and_then(|members| members.iter().map(text).collect());
            for (number, held) in held {
                let prolonged = self.prolonged(&unit(topic, number), &held, until, &next()?);
                of_topic = prolonged.and(of_topic);
            }
            members.push(of_topic);
        }
        // With leases that last again there may be something to read.
        self.read.notify_one();
        Ok(members)
    }

    /// Reads what a heartbeat was answered of a unit.
    fn prolonged(&self, unit: &Unit, held: &KnownUnit, until: Duration, answer: &Value) -> Result<(), Error> {
        match Ownership::read(answer) {
            Ok(None) => self.lose(unit),
            Ok(Some(Ownership { seen, oldest, missing, .. })) => {
                if missing > 0 {
                    self.tell_of_loss(unit, false, missing);
                }
                self.is_well(&unit.topic, Some(unit.number));
                if self.state().prolong(unit, held, until, seen, oldest) {
                    tracing::warn!(%unit, "the server lost the position of the consumer group; messages since then are delivered again");
                    self.lose(unit);
                }
            }
            Err(error) => self.tell_of(unit, error)?,
        }
        Ok(())
    }

    /// Gives units back, and acknowledges first what is finished of them. This member stops using
    /// them before anybody else can have them. What does not go through is given back with the next
    /// heartbeat.
    async fn give_up(
        &self,
        connection: &mut Connection,
        topic: &Topic,
        beyond: &[Unit],
    ) -> Result<(), Error> {
        let mut pipeline = Pipeline::new();
        let mut unconfirmed = self.state().unconfirmed();
        unconfirmed.retain(|finished| beyond.contains(&finished.unit));
        self.acknowledging(&unconfirmed, &mut pipeline);
        beyond.iter().for_each(|unit| self.lose(unit));
        let leaving = self.state().leave(topic, beyond);
        if leaving.is_empty() {
            return Ok(());
        }
        self.giving_back(connection, &leaving, &mut pipeline);
        let answers = self.ask(connection, &pipeline).await?;
        let (acknowledged, given_back) = answers.split_at(answers.len().saturating_sub(leaving.len()));
        let mut result = acknowledged.iter().find_map(refusal).map_or(Ok(()), Err);
        for (unit, answer) in leaving.iter().zip(given_back) {
            match refusal(answer) {
                Some(error) => result = result.and(self.tell_of(unit, error)),
                None => self.state().left(std::slice::from_ref(unit)),
            }
        }
        result
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
    ) -> Result<(), Error> {
        let others: Vec<u32> = (0..units).filter(|number| !mine.contains(number)).collect();
        let mut look = Pipeline::new();
        for number in &others {
            let lease = self.routing.lease(&unit(topic, *number), &self.consumer);
            look.cmd("GET").arg(&lease);
            look.cmd("PTTL").arg(&lease);
        }
        let mut free = Vec::new();
        for (number, answers) in others.iter().zip(self.ask(connection, &look).await?.chunks(2)) {
            match self.seems_free(answers) {
                Ok(true) => free.push(*number),
                Ok(false) => {}
                Err(error) => self.tell_of(&unit(topic, *number), error)?,
            }
        }
        // Units that were refused last come last: they must not delay the others.
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
                // Another member was quicker, or its lease lasts all the same.
                Ok(None) => {
                    self.is_well(&unit.topic, Some(unit.number));
                    self.state().refuse(&unit);
                }
                Ok(Some(Ownership { epoch, was_lost, missing, .. })) if epoch.is_empty() => {
                    self.state().refuse(&unit);
                    self.tell_of_refusal(&unit, was_lost, missing);
                }
                Ok(Some(Ownership { epoch, seen, was_lost, missing, .. })) => {
                    if was_lost || missing > 0 {
                        self.tell_of_loss(&unit, was_lost, missing);
                    }
                    self.is_well(&unit.topic, Some(unit.number));
                    self.state().gain(unit, epoch, until, seen);
                }
                Err(error) => {
                    self.state().refuse(&unit);
                    result = result.and(self.tell_of(&unit, error));
                }
            }
        }
        self.read.notify_one();
        result
    }

    /// Returns true if a unit seems free, by its lease and its remaining time. The lock itself
    /// decides.
    fn seems_free(&self, answers: &[Value]) -> Result<bool, Error> {
        let [lease, left] = answers else { return Err(Error::unexpected("a question for a lease")) };
        if *lease == Value::Nil {
            return Ok(true);
        }
        let (member, left) = (text(lease)?, text(left)?);
        let left: i64 = left.parse().map_err(|_| Error::unexpected("a question for a lease"))?;
        // A longer rest than any lease of that member means that the server's clock went back. How
        // long its leases last stands in its name: while the setting is changed, a longer lease is
        // no remnant of a clock.
        let lasts = member.rsplit_once(':').and_then(|(_, millis)| millis.parse().ok());
        let most = lasts.unwrap_or(self.lease_millis()).saturating_mul(2);
        // Its own name stands there when it took a unit and did not hear of it.
        Ok(member == self.name || u64::try_from(left).is_ok_and(|left| left > most) || left < 0)
    }

    /// The group of a unit was not there any more, or entries that it was to be given.
    fn tell_of_loss(&self, unit: &Unit, was_lost: bool, missing: u64) {
        let mut loss = self.loss(unit, was_lost, missing);
        if was_lost {
            let begins = match self.past.reset() {
                OffsetReset::Latest if self.past.has_handled(&unit.topic) => "with what comes from now on",
                OffsetReset::LastHandled if self.past.has_handled(&unit.topic) => {
                    "in the hour in which the topic was last handled"
                }
                _ => "with what is there",
            };
            loss.words = format!("{}; the group was created again, and begins {begins}", loss.words);
            self.fail(Error::topic("group-lost", TransportErrorKind::Unavailable, loss.words.clone()));
        }
        self.lost(loss);
    }

    /// The same, and nothing is to be read of the unit.
    fn tell_of_refusal(&self, unit: &Unit, was_lost: bool, missing: u64) {
        let mut loss = self.loss(unit, was_lost, missing);
        let stream = self.routing.stream(unit);
        let words = format!(
            "{}; nothing is read of it. Decide with XGROUP CREATE (or SETID) {stream} {} and an entry, or configure offset_reset (earliest, latest, \
             last_handled) and start the consumer again",
            loss.words, self.consumer
        );
        let error = Error::topic("position-lost", TransportErrorKind::Invalid, words.clone());
        if self.is_refused(&unit.topic, Some(unit.number), &error) {
            loss.words = words;
            self.lost(loss);
        }
    }

    fn loss(&self, unit: &Unit, was_lost: bool, missing: u64) -> Loss {
        if was_lost {
            let words = format!(
                "the group {} of {unit} was lost: see whether redis lost data, or who deleted it",
                self.consumer
            );
            return Loss::new(unit.clone(), LossCause::Position, words);
        }
        let words = format!(
            "entries were removed (MAXLEN, MINID, XDEL) before the group {} received them",
            self.consumer
        );
        Loss::new(unit.clone(), LossCause::Trimmed, words).with_messages(missing)
    }

    /// Keeps a refusal of one unit as a problem of the member: it holds up no other, and is tried
    /// again with the next heartbeat.
    pub(crate) fn tell_of(&self, unit: &Unit, error: Error) -> Result<(), Error> {
        if error.reach != Reach::Topic {
            return Err(error);
        }
        _ = self.is_refused(&unit.topic, Some(unit.number), &error);
        Ok(())
    }

    /// Leaves: acknowledges what is finished and gives everything back at once. What does not go
    /// through is free when the leases are over.
    pub(crate) async fn leave(&self) -> Result<(), Error> {
        let mut connection = self.control.connection().await?;
        // All of them, also one that was just taken, and that is not known here yet.
        let topics = self.topics();
        let units = topics.iter().flat_map(|(topic, units)| (0..*units).map(|number| unit(topic, number)));
        let units: Vec<Unit> = units.collect();
        let mut pipeline = Pipeline::new();
        self.acknowledging(&self.state().unconfirmed(), &mut pipeline);
        self.giving_back(&connection, &units, &mut pipeline);
        for topic in topics.keys() {
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
        call.arg(self.past.start(&unit.topic).unwrap_or_default());
    }

    async fn ask(&self, connection: &mut Connection, pipeline: &Pipeline) -> Result<Vec<Value>, Error> {
        self.control.within(connection, pipeline, self.config.request_timeout).await
    }

    fn lease_millis(&self) -> u64 {
        self.config.lease_millis()
    }
}

/// That a unit is this member's, as the script says it.
struct Ownership {
    epoch: String,
    /// The last entry that the group was given.
    seen: StreamId,
    /// The first one that is pending, of all.
    oldest: Option<StreamId>,
    /// The group was not there.
    was_lost: bool,
    /// Number of entries that were removed before the group was given them.
    missing: u64,
}

impl Ownership {
    /// None if it is another's.
    fn read(answer: &Value) -> Result<Option<Self>, Error> {
        let id = |value: &Value| text(value)?.parse().map_err(|_| Error::unexpected("a script"));
        match list(answer)? {
            [] => Ok(None),
            [epoch, seen, oldest, was_lost, missing] => {
                let oldest = (*oldest != Value::Nil).then(|| id(oldest)).transpose()?;
                let was_lost = *was_lost == Value::Int(1);
                let missing = number(missing)?;
                Ok(Some(Self { epoch: text(epoch)?, seen: id(seen)?, oldest, was_lost, missing }))
            }
            _ => Err(Error::unexpected("a script")),
        }
    }
}

fn unit(topic: &Topic, number: u32) -> Unit {
    Unit { topic: topic.clone(), number }
}
