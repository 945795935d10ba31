//! Resources of processes, from the operating system.

use std::fs;
use std::time::Duration;

/// Returns processor time, of the process itself and of the system for it, all threads. In steps of
/// a clock tick, mostly 10 ms.
pub(crate) fn cpu() -> Duration {
    cpu_of(std::process::id())
}

/// Like [`cpu`], of another living process.
pub(crate) fn cpu_of(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let ticks = ticks(&stat).expect("the operating system says what a process has used");
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns the number of processes that wanted to run in the last minute, on average.
pub(crate) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Returns resident memory in bytes: now, and the maximum so far.
pub(crate) fn memory() -> (u64, u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name| bytes(&status, name).expect("the operating system says what memory a process has");
    (of("VmRSS"), of("VmHWM"))
}

/// Returns user and system time of a line of `stat`. The second field is a name, which may have
/// blanks and brackets.
pub(crate) fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

pub(crate) fn bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
