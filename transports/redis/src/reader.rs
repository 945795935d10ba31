//! Reads a member's units, over a connection of its own.
//!
//! Whoever reads takes: an entry that a member was given is pending, and the next owner of the
//! unit, who has read what was pending, would never see it. So a member that lost a unit must not
//! read from it, however late it hears of that. Reading stands in a transaction that Redis drops
//! when the unit's owner has changed since this member saw that it was itself (`WATCH`): with one
//! round trip for each read, and without a script, which would make reading cost nearly three times
//! as much. A server without memory queues nothing for a transaction: then a script reads, for only
//! readers make room.
//!
//! All owners read under the same name of a group's consumer. So what one left is pending for the
//! next, in order, without claiming it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use outbox_contract::backend::{Clock, Loss, LossCause, Unit};
use redis::{Pipeline, Value};
use tokio::time::{Instant, sleep, timeout};

use crate::connection::{Connection, list, refusal, text};
use crate::consumption::Plan;
use crate::deliveries::Member;
use crate::error::{Error, Reach};
use crate::lease::{Cursor, Entry};
use crate::reader_by_script::Resting;
use crate::record;

/// The name under which every owner of a unit reads.
pub(crate) const READER: &str = "outbox";
/// Time limit of a wait for something new. What changes meanwhile (units taken or resumed) counts
/// from the next one on.
const WAIT: Duration = Duration::from_millis(250);
/// The pause before a connection that broke is made again.
const AGAIN: Duration = Duration::from_millis(200);

/// Epochs that this member has seen to be its own, unit by unit, on a connection that watches them.
type Watched = BTreeMap<Unit, String>;

/// Reads until the transport is closed or the task is aborted.
pub(crate) async fn read(member: Arc<Member>) {
    loop {
        let Err(error) = member.session().await;
        member.state().rewind();
        let closed = error.reach == Reach::Closed;
        member.fail(error);
        if closed {
            return;
        }
        sleep(AGAIN).await;
    }
}

impl Member {
    /// Reads over one connection, until it breaks or something is refused.
    async fn session(&self) -> Result<Infallible, Error> {
        // Nothing to read from yet: a connection can wait.
        self.until_there_is_room().await;
        let mut connection = self.control.server().connect().await?;
        if connection.is_of_cluster() {
            return self.read_by_script(connection).await;
        }
        let mut watched = Watched::new();
        // Of how many units nothing came, since something did.
        let mut silent = 0_usize;
        loop {
            self.control.server().check_open()?;
            let plan = self.until_there_is_room().await;
            if !self.covers(&watched, &plan) {
                let mut pipeline = Pipeline::new();
                pipeline.cmd("UNWATCH");
                watched = self.watch(&mut connection, pipeline, 1).await?.1;
                continue;
            }
            let (read, of) = (plan.units.len(), plan.of);
            let came;
            (came, watched) = self.round(&mut connection, plan).await?;
            silent = if came { 0 } else { silent.saturating_add(read) };
            // A wait brings an entry of each unit that has one: it is for those that have none.
            if silent >= of && self.wait(&mut connection).await? {
                silent = 0;
            }
        }
    }

    pub(crate) async fn until_there_is_room(&self) -> Plan {
        loop {
            let plan = self.state().plan(self.clock.elapsed());
            match plan {
                Some(plan) => return plan,
                None => self.read.notified().await,
            }
        }
    }

    /// Returns true if all that is to be read is held, and watched under the epoch under which it
    /// is.
    fn covers(&self, watched: &Watched, plan: &Plan) -> bool {
        let held: BTreeMap<Unit, String> = self.state().held().into_iter().collect();
        plan.units
            .iter()
            .all(|(unit, ..)| held.get(unit).is_some_and(|epoch| watched.get(unit) == Some(epoch)))
    }

    /// Sends commands, and behind them begins to watch the owners of all units; what is not this
    /// member's any more is lost. Answers what the `before` commands gave, and what is watched now.
    async fn watch(
        &self,
        connection: &mut Connection,
        mut pipeline: Pipeline,
        before: usize,
    ) -> Result<(Vec<Value>, Watched), Error> {
        let held = self.state().held();
        let owners: Vec<String> =
            held.iter().map(|(unit, _)| self.routing.owner(unit, &self.consumer)).collect();
        if !owners.is_empty() {
            pipeline.cmd("WATCH").arg(&owners);
        }
        for owner in &owners {
            pipeline.cmd("HMGET").arg(owner).arg("member").arg("epoch");
        }
        let mut answers = send(connection, &pipeline, self.config.request_timeout).await?;
        let seen = answers.split_off(answers.len().min(before));
        let mut watched = Watched::new();
        let mut lost = false;
        for ((unit, epoch), answer) in held.into_iter().zip(seen.iter().skip(1)) {
            let mine = match list(answer) {
                Ok([Value::Nil, _] | [_, Value::Nil]) => false,
                Ok([member, of]) => text(member)? == self.name && text(of)? == epoch,
                Ok(_) => false,
                // The keeper finds out, when it takes the unit again.
                Err(refused) if is_of_one_unit(&refused) => false,
                Err(error) => return Err(error),
            };
            if mine {
                watched.insert(unit, epoch);
            } else {
                lost = true;
                self.lose(&unit);
            }
        }
        if lost {
            self.hurry.notify_one();
        }
        Ok((answers, watched))
    }

    /// One read of what the plan says, unless a unit has another owner since. Says whether anything
    /// came, or may come at once.
    async fn round(&self, connection: &mut Connection, plan: Plan) -> Result<(bool, Watched), Error> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("MULTI");
        pipeline.cmd("XREADGROUP").arg("GROUP").arg(self.consumer.as_str()).arg(READER);
        pipeline.arg("COUNT").arg(plan.count).arg("STREAMS");
        let streams: Vec<String> = plan.units.iter().map(|(unit, ..)| self.routing.stream(unit)).collect();
        pipeline.arg(&streams);
        for (_, _, cursor) in &plan.units {
            match cursor {
                Cursor::Pending(after) => pipeline.arg(after.to_string()),
                Cursor::New => pipeline.arg(">"),
            };
        }
        pipeline.cmd("EXEC");
        let began = Instant::now();
        let (answers, watched) = self.watch(connection, pipeline, 3).await?;
        let answer = match answers.as_slice() {
            // An owner has changed: nothing was read, and the new watch has told which.
            [_, _, Value::Nil] => return Ok((true, watched)),
            [_, _, Value::Array(answers)] => answers.first().unwrap_or(&Value::Nil),
            answers => {
                let refused = answers.iter().find_map(refusal);
                let refused = refused.unwrap_or_else(|| Error::unexpected("a read"));
                if is_of_one_unit(&refused) {
                    return Ok((self.lose_all(&plan), watched));
                }
                if refused.class != "out-of-memory" {
                    return Err(refused);
                }
                let came = self.round_by_script(connection, plan, &mut Resting::new()).await?;
                return Ok((came, watched));
            }
        };
        if let Some(refused) = refusal(answer) {
            if !is_of_one_unit(&refused) {
                return Err(refused);
            }
            return Ok((self.lose_all(&plan), watched));
        }
        let took = began.elapsed();
        let came = self.take_in(&plan, &streams, answer, took)?;
        Ok((came, watched))
    }

    /// Something is wrong with a unit, and which one is not said. Taken again, all but that get on;
    /// it gets a new stream, or is refused by itself. Says that something may come at once.
    fn lose_all(&self, plan: &Plan) -> bool {
        plan.units.iter().for_each(|(unit, ..)| self.lose(unit));
        self.hurry.notify_one();
        true
    }

    /// Takes in what a read brought, and how long that took. Says whether anything came.
    pub(crate) fn take_in(
        &self,
        plan: &Plan,
        streams: &[String],
        answer: &Value,
        took: Duration,
    ) -> Result<bool, Error> {
        let mut read: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        for of_stream in list(answer)? {
            let [name, entries] = list(of_stream)? else { return Err(Error::unexpected("a read")) };
            let name = text(name)?;
            let Some(at) = streams.iter().position(|stream| *stream == name) else { continue };
            let unit = &plan.units[at].0;
            let entries = list(entries)?.iter().map(|entry| read_entry(entry, unit));
            read.insert(name, entries.collect::<Result<_, _>>()?);
        }
        let came = read.values().any(|entries| !entries.is_empty());
        let mut any_gone = false;
        for ((unit, incarnation, from), stream) in plan.units.iter().zip(streams) {
            let entries = read.remove(stream).unwrap_or_default();
            let gone = self.state().read(unit, *incarnation, *from, plan.count, entries);
            if gone > 0 {
                tracing::debug!(%unit, entries = gone, "entries were removed from the stream before they were acknowledged");
                let words = "entries that were given to the consumer were removed from the stream before they were acknowledged: \
                             trimmed (MAXLEN, MINID), or deleted";
                let gone = u64::try_from(gone).unwrap_or(u64::MAX);
                self.lost(Loss::new(unit.clone(), LossCause::Trimmed, words).with_messages(gone));
                any_gone = true;
            }
        }
        self.state().has_read(took, self.config.request_timeout);
        self.wake.notify_one();
        if any_gone {
            // The keeper acknowledges them.
            self.hurry.notify_one();
        }
        Ok(came)
    }

    /// Waits until there is something new in a unit, or for a while. Takes nothing. Says whether
    /// there may be something.
    async fn wait(&self, connection: &mut Connection) -> Result<bool, Error> {
        let Some(units) = self.state().watchable(self.clock.elapsed()) else { return Ok(true) };
        let streams: Vec<String> = units.iter().map(|(unit, _)| self.routing.stream(unit)).collect();
        let mut pipeline = Pipeline::new();
        pipeline
            .cmd("XREAD")
            .arg("COUNT")
            .arg(1)
            .arg("BLOCK")
            .arg(u64::try_from(WAIT.as_millis()).unwrap_or(1));
        pipeline.arg("STREAMS").arg(&streams);
        for (_, seen) in &units {
            pipeline.arg(seen.to_string());
        }
        let answers = send(connection, &pipeline, WAIT + self.config.request_timeout).await?;
        let answer = answers.first().unwrap_or(&Value::Nil);
        if refusal(answer).is_some_and(|refused| is_of_one_unit(&refused)) {
            // Who reads from it finds out.
            return Ok(true);
        }
        let mut hinted = Vec::new();
        for of_stream in list(answer)? {
            let name = text(list(of_stream)?.first().unwrap_or(&Value::Nil))?;
            hinted.extend(streams.iter().position(|stream| *stream == name).map(|at| units[at].0.clone()));
        }
        let is_new = !hinted.is_empty();
        self.state().hint(hinted);
        Ok(is_new)
    }
}

pub(crate) async fn send(
    connection: &mut Connection,
    pipeline: &Pipeline,
    within: Duration,
) -> Result<Vec<Value>, Error> {
    let answers = timeout(within, connection.send(pipeline)).await;
    answers
        .unwrap_or_else(|_| Err(Error::unknown("timeout", format!("redis did not answer within {within:?}"))))
}

/// Returns true if something is wrong with the stream of one unit: it was deleted, something else
/// stands in its place, or the user may not touch it.
pub(crate) fn is_of_one_unit(refused: &Error) -> bool {
    // A command that is not granted is refused for all units: taking them again would not help.
    let key_denied = refused.class == "not-authorized" && refused.words.contains("to access");
    key_denied || matches!(refused.class, "group-missing" | "wrong-type")
}

/// Reads one entry of an answer: its id, and its fields, name and value in turn, or nothing.
fn read_entry(entry: &Value, unit: &Unit) -> Result<Entry, Error> {
    let [id, fields] = list(entry)? else { return Err(Error::unexpected("a read")) };
    let id = text(id)?.parse().map_err(|_| Error::unexpected("a read"))?;
    if matches!(fields, Value::Nil) {
        return Ok(Entry { id, content: None });
    }
    let string = |value: &Value| match value {
        Value::BulkString(bytes) => Ok(Bytes::copy_from_slice(bytes)),
        _ => Err(Error::unexpected("a read")),
    };
    let fields: Vec<(Bytes, Bytes)> = list(fields)?
        .chunks_exact(2)
        .map(|pair| Ok((string(&pair[0])?, string(&pair[1])?)))
        .collect::<Result<_, Error>>()?;
    let content = match record::decode(&fields, &unit.topic) {
        Ok((message, origin)) => (Ok(message), origin),
        Err(undecodable) => (Err(undecodable.at(format!("{unit}@{id}"))), None),
    };
    Ok(Entry { id, content: Some(content) })
}
