//! The commands that append the messages of a batch to one stream, and their answers.
//!
//! The script `append.lua` compares the epoch of each bucket, and appends. It makes a message cost
//! Redis nearly twice as much as a plain `XADD`, since every field becomes a string of Lua first. So
//! a large batch whose epochs the stream is known to accept is a transaction of plain `XADD`s, which
//! Redis discards if the epochs have changed (`WATCH`). In front of it, in the same round trip,
//! `verify.lua` makes such a change if the epochs have another version than the expected one. What
//! was discarded is appended by the script.

use std::collections::BTreeMap;

use outbox_contract::backend::{Bucket, Epoch, PublishBatch};
use redis::{Cmd, Pipeline, Value};

use crate::connection::refusal;
use crate::error::Error;
use crate::publication::{Appended, StreamAppend};
use crate::record;
use crate::scripts::{Script, Scripts, VERIFY};

/// With fewer messages than this the script is cheaper.
const FEWEST: usize = 8;
/// With a payload of more bytes the script appends: it stops at the first message that Redis can't
/// store, where a transaction would go on.
const LARGEST: usize = 1 << 20;
/// Number of strings of a message: the usual ones.
const STRINGS: usize = 24;
/// Bytes of a message beside its payload, about.
const BYTES: usize = 384;

/// An append of a batch to one stream, with the keys that it touches.
#[derive(Debug)]
pub(crate) struct Append<'b> {
    pub(crate) to: StreamAppend,
    pub(crate) stream: String,
    /// Key of the epochs.
    pub(crate) key: String,
    /// Epochs of its buckets, as far as they are known.
    pub(crate) epochs: BTreeMap<Bucket, Epoch>,
    pub(crate) batch: &'b PublishBatch,
    /// For how long an epoch counts, in milliseconds.
    pub(crate) keep: u64,
}

/// Way to append the messages of a stream.
#[derive(Debug)]
pub(crate) enum Way {
    Script,
    /// With the version that the epochs must have, if there are any.
    Transaction(Option<String>),
}

/// Answer to an append.
#[derive(Debug)]
pub(crate) enum Answer {
    Appended(Appended),
    /// The epochs are not those that were expected. Nothing was appended.
    Changed,
}

impl Append<'_> {
    /// Returns how to append, when its epochs are accepted under a version, and whether the server
    /// takes transactions.
    pub(crate) fn way(&self, version: Option<String>, transactions: bool) -> Way {
        let messages = &self.to.messages;
        let pays = transactions
            && messages.len() >= FEWEST
            && messages.iter().all(|(_, stored)| stored.message.payload.len() <= LARGEST);
        match (version, self.epochs.len()) {
            (_, 0) if pays => Way::Transaction(None),
            (Some(version), epochs) if pays && epochs == self.to.buckets().len() => {
                Way::Transaction(Some(version))
            }
            _ => Way::Script,
        }
    }

    /// Adds the commands; returns their number.
    pub(crate) fn ask(&self, way: &Way, scripts: &Scripts, pipeline: &mut Pipeline) -> usize {
        let before = pipeline.len();
        match way {
            Way::Script => self.by_script(scripts, pipeline),
            Way::Transaction(version) => self.by_transaction(version.as_deref(), pipeline),
        }
        pipeline.len() - before
    }

    fn by_script(&self, scripts: &Scripts, pipeline: &mut Pipeline) {
        let call = scripts.call(Script::Append, &[&self.stream, &self.key], pipeline);
        let buckets = self.to.buckets();
        call.arg(self.keep).arg(buckets.len());
        for bucket in &buckets {
            let epoch = self.epochs.get(bucket).map(|epoch| epoch.0.to_string()).unwrap_or_default();
            call.arg(bucket.0).arg(epoch);
        }
        // The strings of a message, one behind the other, and where each ends: their number goes in
        // front of them.
        let (mut strings, mut ends) = (Vec::new(), Vec::with_capacity(STRINGS));
        for (_, stored) in &self.to.messages {
            strings.clear();
            ends.clear();
            record::encode(stored, &self.batch.source, |string| {
                strings.extend_from_slice(string);
                ends.push(strings.len());
            });
            let Bucket(bucket) = stored.bucket;
            call.arg(bucket).arg(ends.len());
            let mut begin = 0;
            for end in &ends {
                call.arg(&strings[begin..*end]);
                begin = *end;
            }
        }
    }

    fn by_transaction(&self, version: Option<&str>, pipeline: &mut Pipeline) {
        pipeline.cmd("WATCH").arg(&self.key);
        if let Some(version) = version {
            // By its text: a server that has lost its scripts refuses a name, and would go on behind
            // that.
            pipeline.cmd("EVAL").arg(VERIFY).arg(1).arg(&self.key).arg(version).arg(self.keep);
        }
        pipeline.cmd("MULTI");
        for (_, stored) in &self.to.messages {
            let mut command = Cmd::with_capacity(STRINGS, BYTES + stored.message.payload.len());
            command.arg("XADD").arg(&self.stream).arg("*");
            record::encode(stored, &self.batch.source, |string| {
                command.arg(string);
            });
            pipeline.add_command(command);
        }
        pipeline.cmd("EXEC");
    }
}

/// Answers to a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers<'v> {
    watch: &'v Value,
    /// Answer of `verify.lua`; None if it was not asked.
    verify: Option<&'v Value>,
    multi: &'v Value,
    messages: &'v [Value],
    exec: &'v Value,
}

impl<'v> Answers<'v> {
    /// Divides the answers. None: some are missing.
    pub(crate) fn of(answers: &'v [Value], verifies: bool) -> Option<Self> {
        let (watch, rest) = answers.split_first()?;
        let (verify, rest) = match verifies {
            true => rest.split_first().map(|(verify, rest)| (Some(verify), rest))?,
            false => (None, rest),
        };
        let (multi, rest) = rest.split_first()?;
        let (exec, messages) = rest.split_last()?;
        Some(Self { watch, verify, multi, messages, exec })
    }

    /// Reads what became of the messages.
    pub(crate) fn read(self) -> Result<Answer, Error> {
        match self.exec {
            Value::Nil => Ok(Answer::Changed),
            Value::Array(ids) => Ok(Answer::Appended(appended(ids))),
            // Without MULTI, each command runs for itself.
            _ if refusal(self.multi).is_some() && self.messages.iter().any(|id| refusal(id).is_none()) => {
                Err(Error::unknown(
                    "unexpected-answer",
                    "redis refused MULTI and appended messages without it",
                ))
            }
            // What was refused first says why nothing was done.
            _ => Err(self.all().find_map(refusal).unwrap_or_else(|| Error::unexpected("a transaction"))),
        }
    }

    /// Returns true if the epochs have the expected version, and are watched.
    pub(crate) fn is_verified(self) -> bool {
        matches!((self.watch, self.verify), (Value::Okay, None | Some(Value::Int(1))))
    }

    /// Returns true if the server refused a command of the transaction itself, and not a message in
    /// it. A new connection finds out whether it takes transactions.
    pub(crate) fn is_broken(self) -> bool {
        let refused = |value: &Value| refusal(value).is_some();
        let by_a_message = self.messages.iter().any(refused);
        let at_its_begin = refused(self.watch) || self.verify.is_some_and(refused) || refused(self.multi);
        at_its_begin || (refused(self.exec) && !by_a_message)
    }

    fn all(self) -> impl Iterator<Item = &'v Value> {
        let begin = [Some(self.watch), self.verify, Some(self.multi)].into_iter().flatten();
        begin.chain(self.messages).chain([self.exec])
    }
}

/// Reads how far a transaction got. What Redis refuses within one, it refuses from there on: a
/// wrong type of key, a stream at its last possible id. If it were otherwise, the rest is unknown.
fn appended(ids: &[Value]) -> Appended {
    let through = ids.iter().take_while(|id| refusal(id).is_none()).count();
    let mut rest = ids.iter().skip(through).map(refusal);
    let failed = rest.next().flatten();
    let failed = if rest.all(|refused| refused.is_some()) {
        failed
    } else {
        Some(Error::unknown("unexpected-answer", "redis appended messages behind one that it refused"))
    };
    Appended::of(through, failed)
}
