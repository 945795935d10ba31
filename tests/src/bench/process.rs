//! Resources of processes, from the operating system.

use std::fs;
use std::time::{Duration, Instant};

/// Returns processor time, of the process itself and of the system for it, all threads. In steps of
/// a clock tick, mostly 10 ms.
pub fn cpu() -> Duration {
    cpu_of(std::process::id())
}

/// Like [`cpu`], of another living process.
pub fn cpu_of(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let ticks = ticks(&stat).expect("the operating system says what a process has used");
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns the number of processors that other processes use, on average of a second. The system's
/// load would count what this machine has measured just before.
pub fn in_use() -> Option<f64> {
    let before = working(&fs::read_to_string("/proc/stat").ok()?)?;
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(1));
    let ticks = working(&fs::read_to_string("/proc/stat").ok()?)?.saturating_sub(before);
    let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
    Some(ticks as f64 / ticks_per_second / began.elapsed().as_secs_f64())
}

/// Returns the time that all processors have worked, in ticks, of the first line of the system's
/// `stat`.
pub fn working(stat: &str) -> Option<u64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let ticks: Vec<u64> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    // User, nice, system, idle, waiting for a disk, interrupts of two kinds, stolen.
    Some([0, 1, 2, 5, 6, 7].iter().filter_map(|at| ticks.get(*at)).sum())
}

/// Returns resident memory in bytes: now, and the maximum so far.
pub fn memory() -> (u64, u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name| bytes(&status, name).expect("the operating system says what memory a process has");
    (of("VmRSS"), of("VmHWM"))
}

/// Returns user and system time of a line of `stat`. The second field is a name, which may have
/// blanks and brackets.
pub fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// Returns the bytes that a line of `status` has in kB.
pub fn bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
