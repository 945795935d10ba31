//! Faults that tests inject: the next commands of some names fail.

use std::sync::{Mutex, PoisonError};

/// Effect of a fault on a command.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Happens {
    /// The command is not run, and answered with this error.
    Error {
        /// MongoDB's number of the error, such as 112 or 11600.
        code: i32,
        /// Its labels, such as `TransientTransactionError`.
        labels: Vec<String>,
    },
    /// The command is not run, and the connection ends.
    CloseBefore,
    /// The command is run, and the connection ends without an answer: the client can't know.
    CloseAfter,
}

/// A fault of the next commands: their names, its count, and its effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    pub(crate) commands: Vec<String>,
    pub(crate) times: u32,
    pub(crate) happens: Happens,
}

impl Fault {
    /// A fault of the next command of one of these names, such as `insert` and `commitTransaction`;
    /// no name at all means every command but the handshake.
    #[must_use]
    pub fn of(commands: &[&str], happens: Happens) -> Self {
        Self { commands: commands.iter().map(|name| (*name).to_owned()).collect(), times: 1, happens }
    }

    /// Sets the number of commands with this fault.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}

/// The faults that are still to happen, in the order of their injection.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    pub(crate) fn add(&self, fault: Fault) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns the fault of this command: the first fault that names it is used up once.
    pub(crate) fn next(&self, command: &str) -> Option<Happens> {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        faults.retain(|fault| fault.times > 0);
        let meant = |fault: &&mut Fault| {
            fault.commands.is_empty() || fault.commands.iter().any(|name| name == command)
        };
        let fault = faults.iter_mut().find(meant)?;
        fault.times -= 1;
        Some(fault.happens.clone())
    }
}
