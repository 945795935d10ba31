//! The scripts that Redis runs for this transport: each one step, which nothing comes between.

use redis::{Pipeline, Value};

use crate::connection::text;
use crate::error::Error;

const SOURCES: [&str; 8] = [
    include_str!("scripts/append.lua"),
    include_str!("scripts/trim.lua"),
    include_str!("scripts/group.lua"),
    include_str!("scripts/own.lua"),
    include_str!("scripts/give_back.lua"),
    include_str!("scripts/beat.lua"),
    include_str!("scripts/read.lua"),
    include_str!("scripts/lag.lua"),
];

/// The script that stands in front of a transaction: see `append.rs`.
pub(crate) const VERIFY: &str = include_str!("scripts/verify.lua");

/// One of the scripts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Script {
    Append,
    Trim,
    Group,
    Own,
    GiveBack,
    Beat,
    Read,
    Lag,
}

/// The names under which a server knows the scripts. They are given to it with each new connection:
/// a server that was started again, or another one behind the same address, has none.
#[derive(Clone, Debug)]
pub(crate) struct Scripts([String; SOURCES.len()]);

impl Scripts {
    /// Number of answers that [`load`](Self::load) waits for.
    pub(crate) const COUNT: usize = SOURCES.len();

    /// Adds what gives the scripts to a server.
    pub(crate) fn load(pipeline: &mut Pipeline) {
        for source in SOURCES {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(source);
        }
    }

    /// Reads the answers.
    pub(crate) fn loaded(answers: &[Value]) -> Result<Self, Error> {
        let mut names: [String; SOURCES.len()] = Default::default();
        for (name, answer) in names.iter_mut().zip(answers) {
            *name = text(answer)?;
        }
        Ok(Self(names))
    }

    /// Begins a call of a script.
    pub(crate) fn call<'p>(
        &self,
        script: Script,
        keys: &[&str],
        pipeline: &'p mut Pipeline,
    ) -> &'p mut Pipeline {
        pipeline.cmd("EVALSHA").arg(&self.0[script as usize]).arg(keys.len());
        for key in keys {
            pipeline.arg(*key);
        }
        pipeline
    }
}
