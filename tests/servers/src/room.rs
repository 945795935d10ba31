//! A container in which programs run as they do in the prepared folder.
//!
//! It has the network of this machine, and the server's folder under the same path. So a server in
//! it is found by its folder, signaled and measured like any other, on 127.0.0.1; and it needs an
//! engine on this machine, and Linux.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use testcontainers::core::{ExecCommand, Mount, SyncExecResult};
use testcontainers::runners::SyncRunner as _;
use testcontainers::{Container, GenericImage, ImageExt as _};

use crate::program::said;

/// Default socket of an engine.
const SOCKET: &str = "/var/run/docker.sock";

/// Keeps the container running for as long as the server's folder exists: when the test program is
/// killed, the server's watchdog deletes that folder. The script looks for a file, as the container
/// itself keeps the folder.
const STAY: &str = r#"trap exit TERM INT; while [ -e "$0/passwd" ]; do sleep 1; done"#;
/// A program's folder can be chosen only from within. Engines differ in their reports of a
/// program's end, and in their timing; so the shell around it reports the end: as the last line on
/// standard error, or as a file.
const RUN: &str = r#"(cd "$0" && exec "$@"); printf '\n%s' $? >&2"#;
const SERVE: &str = r#"log=$0 end=$1 && shift && (cd "$1" && shift && exec "$@") >>"$log" 2>&1 </dev/null; echo "exit code $?" >"$end""#;

/// A container. It is removed with this value.
pub(crate) struct Room {
    container: Option<Container<GenericImage>>,
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").finish_non_exhaustive()
    }
}

/// A program that was started in a container.
pub(crate) struct Running {
    end: PathBuf,
    /// Its connection to the engine.
    _exec: Mutex<SyncExecResult>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("end", &self.end).finish_non_exhaustive()
    }
}

impl Running {
    /// Returns its exit, if it has ended.
    pub(crate) fn ended(&self) -> Option<String> {
        let end = std::fs::read_to_string(&self.end).ok()?;
        // Only a whole line: the file may be half written.
        end.strip_suffix('\n').map(str::to_owned)
    }
}

/// Checks that an engine answers on this machine.
///
/// # Errors
///
/// If none does.
pub(crate) fn engine() -> Result<(), String> {
    let named = std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty());
    let host = named.unwrap_or_else(|| format!("unix://{SOCKET}"));
    let answers = match host.split_once("://") {
        Some(("unix", path)) => UnixStream::connect(path).map(drop),
        Some(("tcp" | "http", address))
            if address.starts_with("127.") || address.starts_with("localhost") =>
        {
            TcpStream::connect(address.trim_end_matches('/')).map(drop)
        }
        _ => return Err(format!("the container engine {host} is not on this machine")),
    };
    answers.map_err(|error| format!("no container engine at {host}: {error}"))
}

impl Room {
    /// Starts a container of an image, such as `redis:8`, for the server whose folder this is. A
    /// missing image is pulled.
    ///
    /// # Errors
    ///
    /// The engine's error.
    pub(crate) fn open(image: &str, folder: &Path, user: (u32, u32)) -> Result<Self, String> {
        // A colon may be that of a port, too.
        let (name, tag) =
            image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).unwrap_or((image, "latest"));
        let path = folder.display().to_string();
        let users = folder.join("passwd").display().to_string();
        let request = GenericImage::new(name, tag)
            .with_entrypoint("sh")
            .with_cmd(["-c", STAY, &path])
            .with_user(format!("{}:{}", user.0, user.1))
            // Programs that look up the name of their user find one.
            .with_mount(Mount::bind_mount(users, "/etc/passwd"))
            .with_mount(Mount::bind_mount(&path, &path))
            .with_startup_timeout(Duration::from_secs(600))
            .with_host_config_modifier(|host| {
                host.network_mode = Some("host".to_owned());
                host.auto_remove = Some(true);
            });
        let container =
            aside(|| request.start()).map_err(|error| format!("a container of {image}: {error}"))?;
        Ok(Self { container: Some(container) })
    }

    /// Runs a program to its end, and returns its output.
    pub(crate) fn run(&self, folder: &str, command: &Command) -> Result<String, String> {
        aside(|| {
            let mut result = self.exec(&["sh", "-c", RUN, folder], command)?;
            let broken = |error: testcontainers::TestcontainersError| format!("its container: {error}");
            let (out, err) =
                (result.stdout_to_vec().map_err(broken)?, result.stderr_to_vec().map_err(broken)?);
            let end = err.iter().rposition(|byte| *byte == b'\n').unwrap_or_default();
            let (err, code) = err.split_at(end);
            said(code == b"\n0", &out, err)
        })
    }

    /// Starts a program, and appends its output to a file.
    pub(crate) fn serve(&self, folder: &str, command: &Command, log: &Path) -> Result<Running, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // One for each start: the shell of the last one may still be about to write its own.
        let end = log.with_file_name(format!("end-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let [log, told] = [log, &end].map(|path| path.display().to_string());
        let exec = aside(|| self.exec(&["sh", "-c", SERVE, &log, &told, folder], command))?;
        Ok(Running { end, _exec: Mutex::new(exec) })
    }

    fn exec(&self, before: &[&str], command: &Command) -> Result<SyncExecResult, String> {
        let text = |part: &std::ffi::OsStr| part.to_string_lossy().into_owned();
        // By its name alone: images keep programs in places of their own.
        let program = text(command.get_program());
        let program = program.rsplit('/').next().unwrap_or_default().to_owned();
        let words = before.iter().map(|word| (*word).to_owned());
        let words = words.chain([program]).chain(command.get_args().map(text));
        let variables = command.get_envs().filter_map(|(name, value)| Some((text(name), text(value?))));
        let command = ExecCommand::new(words).with_env_vars(variables);
        let Some(container) = &self.container else { return Err("its container is gone".to_owned()) };
        container.exec(command).map_err(|error| format!("its container: {error}"))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let container = self.container.take();
        aside(|| drop(container));
    }
}

/// Runs work on a separate thread: the engine's client blocks on a runtime of its own, which must
/// not be nested in another, and tests run in one.
fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}
