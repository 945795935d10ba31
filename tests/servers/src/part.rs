//! A part of `tests/servers/prepare`: where the programs of a server are.

use std::process::Command;
use std::sync::Arc;

use crate::home::Home;
use crate::missing::Missing;
use crate::server::{Kind, Server};
use crate::tree::Tree;

/// A row of the table in `tests/servers/prepare`, and who runs its programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Its name there.
    pub(crate) name: &'static str,
    /// The Debian release that its packages come from.
    pub(crate) release: &'static str,
    /// The user of that system that the server runs as.
    pub(crate) user: &'static str,
}

impl Part {
    /// The system that has it.
    ///
    /// # Errors
    ///
    /// What is missing and what helps.
    pub(crate) fn tree(self) -> Result<Tree, String> {
        Tree::with(self.name, self.release)
    }

    /// Sets a server of this part up and starts it; returns when it serves.
    ///
    /// # Errors
    ///
    /// [`Missing`]: it can't be had, or did not start.
    pub(crate) fn start(self, kind: impl Kind + 'static) -> Result<Arc<Server>, Missing> {
        let tree = self.tree().map_err(|reason| Missing::absent(kind.name(), reason))?;
        let home = Home::new(tree, self.user).map_err(|reason| Missing::failed(kind.name(), reason))?;
        Ok(Arc::new(Server::start(Box::new(kind), home)?))
    }

    /// A client of this part, such as `/usr/bin/redis-cli`. Without the part it is the one of this machine, for a server that was given by URL
    /// may be asked where none can be started.
    pub(crate) fn client(self, program: &str) -> Command {
        self.tree().map_or_else(
            |_| Command::new(program.rsplit('/').next().unwrap_or(program)),
            |tree| tree.command(self.user, "/", program),
        )
    }
}

/// Runs a program to its end, and gives what it wrote.
///
/// # Errors
///
/// What it said, when it failed. Never its arguments: a password may be among them.
pub(crate) fn run(mut command: Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if output.status.success() {
        return Ok(said(&output.stdout));
    }
    let (error, text) = (said(&output.stderr), said(&output.stdout));
    Err([error, text].into_iter().filter(|said| !said.is_empty()).collect::<Vec<_>>().join("\n"))
}
