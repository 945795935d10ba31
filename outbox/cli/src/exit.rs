//! Ends of the program: what a command returns, and the exit code that scripts see.

use std::fmt;
use std::io;
use std::process::ExitCode;

use outbox::error::{AppendError, NameError, TransportError, TransportErrorKind};
use outbox::relay::StartError;
use outbox::{StoreError, StoreErrorKind};

/// Where to begin, and exit codes, as the help shows them.
pub(crate) const HELP: &str = "\
When messages wait, begin with:
  outbox status              the backlog of each route, and what needs attention, with a remedy
  outbox doctor              settings, database, broker and topics, with a remedy for each finding
  outbox explain TOPIC KEY   why a key waits, and what to do

Exit codes:
  0    done, and nothing found
  1    failed: the database, the broker or a file did not do what was asked
  2    wrong usage: arguments, configuration, or a confirmation that is missing
  3    done, with findings: something is not healthy, waits for an operator, or was not there
  130  interrupted";

/// Beginning of the line with the remedy of an error.
const REMEDY: &str = "\nremedy: ";

/// Success of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done, and nothing found.
    Done,
    /// Done, and something needs attention.
    Findings,
}

impl Exit {
    /// Returns `Findings` if there are any.
    pub(crate) fn of_findings(any: bool) -> Self {
        if any { Self::Findings } else { Self::Done }
    }
}

/// Failure of a command.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Arguments or configuration are wrong.
    Usage(String),
    /// Something outside of the program failed.
    Error(String),
    /// The user interrupted the command, or declined to confirm it.
    Interrupted,
    /// The reader of the output has gone: nothing is left to say.
    ReaderGone,
}

/// End of a command.
pub(crate) type Outcome = Result<Exit, Failed>;

impl Failed {
    /// Creates a usage error.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// Returns the text without its remedy, and the remedy if there is one.
    pub(crate) fn parts(&self) -> (String, Option<String>) {
        let text = self.to_string();
        match text.split_once(REMEDY) {
            Some((text, remedy)) => (text.to_owned(), Some(remedy.to_owned())),
            None => (text, None),
        }
    }

    /// Creates an error of the outside.
    pub(crate) fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }
}

/// Returns the exit code of a command's end.
pub(crate) fn code(outcome: &Outcome) -> ExitCode {
    ExitCode::from(match outcome {
        Ok(Exit::Done) | Err(Failed::ReaderGone) => 0,
        Err(Failed::Error(_)) => 1,
        Err(Failed::Usage(_)) => 2,
        Ok(Exit::Findings) => 3,
        Err(Failed::Interrupted) => 130,
    })
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Error(text) => f.write_str(text),
            Self::Interrupted => f.write_str("interrupted"),
            Self::ReaderGone => f.write_str("the reader of the output has closed it"),
        }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::ReaderGone;
        }
        Self::Error(error.to_string())
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        let remedy = match error.kind() {
            StoreErrorKind::NotMigrated => "create or upgrade the tables with `outbox migrate`",
            StoreErrorKind::SchemaTooNew => "use the version of `outbox` that created the tables",
            StoreErrorKind::NotPermitted => {
                "correct user, password or database of --store, or have the missing right granted"
            }
            StoreErrorKind::Unavailable => "check address, network and state of the database",
            _ => return Self::Error(error.to_string()),
        };
        Self::Error(format!("{error}{REMEDY}{remedy}"))
    }
}

impl From<TransportError> for Failed {
    fn from(error: TransportError) -> Self {
        match error.kind() {
            TransportErrorKind::Invalid => Self::Usage(error.to_string()),
            _ => Self::Error(error.to_string()),
        }
    }
}

impl From<AppendError> for Failed {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Message(error) => Self::Usage(format!("not appended: {error}")),
            AppendError::Conflict(error) | AppendError::Store(error) => Self::from(error),
            error => Self::Error(error.to_string()),
        }
    }
}

impl From<StartError> for Failed {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Config(_) => Self::Usage(error.to_string()),
            StartError::Store(error) => Self::from(error),
            error => Self::Error(error.to_string()),
        }
    }
}

impl From<NameError> for Failed {
    fn from(error: NameError) -> Self {
        Self::Usage(error.to_string())
    }
}
