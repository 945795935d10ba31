//! All processes of one server: finding, signaling and measuring them, and a watchdog that ends
//! them with the test program.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time limit for signaled processes to react.
const PATIENCE: Duration = Duration::from_secs(300);
/// Interval of polling.
const EVERY: Duration = Duration::from_millis(10);

/// Run by `sh` with the server's folder as `$0`. A line on standard input means that the server was
/// ended properly, or names a file: the server must end when no process locks that file any more.
/// The end of the input without a line means that the test program is gone. QUIT lets PostgreSQL
/// release its shared memory.
const WATCHDOG: &str = r#"
if read -r line; then
  case $line in "until "*) flock --shared "${line#until }" true ;; *) exit ;; esac
fi
each() {
  while read -r p cwd; do case $cwd in "$folder" | "$folder"/*) kill "$1" "${p#/proc/}" && found=yes ;; esac; done <<END
$(find /proc/[0-9]*/cwd -maxdepth 0 -printf '%h %l\n')
END
}
folder=$0 signal=-QUIT
for try in 1 2 3 4 5 6 7 8 9 10; do
  found=no
  each "$signal" 2>/dev/null
  # Not at the first look: a program may just be on its way into the folder.
  [ "$found" = yes ] || [ "$try" = 1 ] || break
  sleep 0.3
  [ "$try" -lt 3 ] || signal=-KILL
done
rm -rf --one-file-system "$folder"
"#;

/// Resources that the processes of a server have used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Processor time since they started, of those that live and of the children that they have
    /// waited for.
    pub cpu: Duration,
    /// Memory in bytes; memory that processes share counts once (PSS).
    pub memory: u64,
}

/// The processes whose working folder is in one folder. Not a process group: PostgreSQL gives each
/// of its processes a group of its own.
#[derive(Debug)]
pub(crate) struct Processes {
    folder: PathBuf,
    watchdog: Child,
}

impl Processes {
    /// Watches over a folder: if this program ends without [`end`](Self::end), the processes are
    /// killed and the folder is deleted.
    pub(crate) fn new(folder: &Path) -> Result<Self, String> {
        let mut command = Command::new("sh");
        command.args(["-c", WATCHDOG]).arg(folder).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // Out of reach of an interrupt from the keyboard, which ends the test program's group.
        command.process_group(0);
        let watchdog = command.spawn().map_err(|error| format!("sh, for the watchdog: {error}"))?;
        Ok(Self { folder: folder.to_owned(), watchdog })
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        pids_in(&self.folder)
    }

    /// The process that started the others.
    pub(crate) fn first(&self) -> Option<u32> {
        let pids = self.pids();
        let parent = |pid: u32| stat(pid)?.get(1)?.parse::<u32>().ok();
        pids.iter().copied().find(|pid| parent(*pid).is_some_and(|parent| !pids.contains(&parent)))
    }

    /// See [`kill_in`].
    pub(crate) fn kill(&self) -> Result<(), String> {
        kill_in(&self.folder)
    }

    /// Ends the processes when no process locks a file any more, instead of when this program ends.
    pub(crate) fn end_with(&mut self, file: &Path) -> Result<(), String> {
        let Some(input) = &mut self.watchdog.stdin else { return Err("its watchdog is gone".to_owned()) };
        let line = format!("until {}\n", file.display());
        input.write_all(line.as_bytes()).map_err(|error| format!("its watchdog: {error}"))
    }

    /// Stops the processes where they are; returns when all have stopped.
    pub(crate) fn pause(&self) -> Result<(), String> {
        until(&self.folder, "stopped after SIGSTOP", || {
            signal_in(&self.folder, Signal::STOP);
            self.pids().iter().all(|pid| matches!(state(*pid), None | Some('T' | 'Z' | 'X')))
        })
    }

    pub(crate) fn resume(&self) {
        signal_in(&self.folder, Signal::CONT);
    }

    /// Gives the processes this much time to end by themselves, kills the rest, and dismisses the
    /// watchdog.
    pub(crate) fn end_within(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time && self.pids().iter().any(|pid| !matches!(state(*pid), Some('T'))) {
            std::thread::sleep(EVERY);
        }
        // Processes that can't be killed are left to the watchdog.
        if self.kill().is_ok()
            && let Some(mut input) = self.watchdog.stdin.take()
        {
            // It may have been killed by hand: then the message has no receiver.
            let _ = input.write_all(b"ended\n");
        }
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}

/// Returns the process of a folder whose own number is this one, which differs from its number here
/// if it is in a container.
pub(crate) fn known_to_itself_as(folder: &Path, number: u32) -> Option<u32> {
    let own = |pid: u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        numbers.split_whitespace().last()?.parse().ok()
    };
    pids_in(folder).into_iter().find(|pid| own(*pid) == Some(number))
}

/// Kills the processes of a folder until none is left. A process leaves its folder a moment before
/// its ports are free.
pub(crate) fn kill_in(folder: &Path) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    until(folder, "gone after SIGKILL", || {
        signal_in(folder, Signal::KILL);
        let left = pids_in(folder);
        seen.extend(left.iter().copied());
        seen.retain(|pid| !has_ended(*pid));
        left.is_empty() && seen.is_empty()
    })
}

/// Sends a signal to every process of a folder, parents first as far as their numbers show.
fn signal_in(folder: &Path, signal: Signal) {
    for pid in pids_in(folder) {
        send(pid, signal);
    }
}

fn until(folder: &Path, what: &str, mut done: impl FnMut() -> bool) -> Result<(), String> {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > PATIENCE {
            return Err(format!("the processes {:?} are not {what} within {PATIENCE:?}", pids_in(folder)));
        }
        std::thread::sleep(EVERY);
    }
    Ok(())
}

/// Resources that the processes of a folder have used.
pub(crate) fn usage_in(folder: &Path) -> Usage {
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    pids_in(folder).into_iter().fold(Usage::default(), |sum, pid| Usage {
        cpu: sum.cpu + Duration::from_millis(ticks_of(pid) * 1_000 / ticks),
        memory: sum.memory + memory_of(pid),
    })
}

/// The processes whose working folder is in a folder.
pub(crate) fn pids_in(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut pids: Vec<u32> = pids.filter(|pid| is_in(*pid, folder)).collect();
    pids.sort_unstable();
    pids
}

fn is_in(pid: u32, folder: &Path) -> bool {
    let within = |path: &Path| fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
    // A killed process still exists, and its ports are not free, while its first thread has ended
    // and others have not.
    let mut threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.any(|thread| within(&thread.path()))
}

/// Sends a signal to one process. A process that is gone is no error: that was the aim.
pub(crate) fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// The fields of `/proc/PID/stat` after the name, which may hold anything, so that the last bracket
/// counts.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// Returns true if all threads of a process have ended.
fn has_ended(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut numbers = threads.filter_map(|thread| thread.file_name().to_str()?.parse::<u32>().ok());
    numbers.all(|thread| matches!(state(thread), None | Some('Z' | 'X')))
}

fn state(pid: u32) -> Option<char> {
    stat(pid)?.first()?.chars().next()
}

/// User and system time, its own and that of children it has waited for.
fn ticks_of(pid: u32) -> u64 {
    let fields = stat(pid).unwrap_or_default();
    fields.iter().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum()
}

fn memory_of(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let kilobytes = text.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB"));
    kilobytes.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or_default() * 1024
}
