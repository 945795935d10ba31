//! A program that runs where the programs of a server are: in the prepared folder, in a container,
//! or on this machine.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

#[cfg(feature = "containers")]
use crate::room::{Room, Running};

/// A command, and the place where it runs. It is built as [`Command`] is.
#[derive(Debug)]
pub(crate) struct Program {
    command: Command,
    /// The container, with the folder in it that the program starts in.
    #[cfg(feature = "containers")]
    room: Option<(std::sync::Arc<Room>, String)>,
}

impl Program {
    /// A program that is a process of this machine.
    pub(crate) fn here(command: Command) -> Self {
        Self {
            command,
            #[cfg(feature = "containers")]
            room: None,
        }
    }

    /// A program in a container.
    #[cfg(feature = "containers")]
    pub(crate) fn within(room: std::sync::Arc<Room>, folder: &str, program: &str) -> Self {
        Self { command: Command::new(program), room: Some((room, folder.to_owned())) }
    }

    pub(crate) fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args(&mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> &mut Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(&mut self, name: &str, value: impl AsRef<OsStr>) -> &mut Self {
        self.command.env(name, value);
        self
    }

    /// Runs it to its end, and returns its output.
    ///
    /// # Errors
    ///
    /// Its output, if it failed. Never its arguments: a password may be among them.
    pub(crate) fn run(mut self) -> Result<String, String> {
        #[cfg(feature = "containers")]
        if let Some((room, folder)) = &self.room {
            return room.run(folder, &self.command);
        }
        let output = self.command.output();
        let output = output.map_err(|error| format!("{}: {error}", self.command.get_program().display()))?;
        said(output.status.success(), &output.stdout, &output.stderr)
    }

    /// Starts it, and appends its output to a file.
    ///
    /// # Errors
    ///
    /// The reason, if it can't be started.
    pub(crate) fn serve(mut self, log: &Path) -> Result<Started, String> {
        #[cfg(feature = "containers")]
        if let Some((room, folder)) = &self.room {
            return room.serve(folder, &self.command, log).map(Started::Contained);
        }
        let file = File::options().create(true).append(true).open(log);
        let files = file.and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = files.map_err(|error| format!("{}: {error}", log.display()))?;
        self.command.stdin(Stdio::null()).stdout(out).stderr(err);
        // Out of reach of an interrupt from the keyboard: the watchdog ends it, in order.
        std::os::unix::process::CommandExt::process_group(&mut self.command, 0);
        let child = self.command.spawn();
        child
            .map(Started::Child)
            .map_err(|error| format!("{}: {error}", self.command.get_program().display()))
    }
}

/// Output of a program that has ended.
pub(crate) fn said(good: bool, out: &[u8], err: &[u8]) -> Result<String, String> {
    let [out, err] = [out, err].map(|bytes| String::from_utf8_lossy(bytes).trim_end().to_owned());
    if good {
        return Ok(out);
    }
    Err([err, out].into_iter().filter(|said| !said.is_empty()).collect::<Vec<_>>().join("\n"))
}

/// A program that was started and not waited for.
#[derive(Debug)]
pub(crate) enum Started {
    Child(Child),
    #[cfg(feature = "containers")]
    Contained(Running),
}

impl Started {
    /// Returns its exit, if it has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<String>, String> {
        match self {
            Self::Child(child) => {
                let ended = child.try_wait().map_err(|error| format!("its process: {error}"))?;
                Ok(ended.as_ref().map(ExitStatus::to_string))
            }
            #[cfg(feature = "containers")]
            Self::Contained(running) => Ok(running.ended()),
        }
    }

    /// Returns the number of its process, if it is a child of this one.
    pub(crate) fn child(&self) -> Option<u32> {
        match self {
            Self::Child(child) => Some(child.id()),
            #[cfg(feature = "containers")]
            Self::Contained(_) => None,
        }
    }

    /// Kills it, and waits until it is gone. A program that is gone already is no error; one in a
    /// container is killed with all others of its server, by number.
    pub(crate) fn kill(&mut self) {
        match self {
            Self::Child(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            #[cfg(feature = "containers")]
            Self::Contained(_) => {}
        }
    }

    /// Waits until it is gone, after it was killed.
    pub(crate) fn wait(&mut self) {
        match self {
            Self::Child(child) => {
                let _ = child.wait();
            }
            #[cfg(feature = "containers")]
            Self::Contained(_) => {}
        }
    }
}
