//! Resources of this process, and its talk with the benchmark.

use std::fs;
use std::io::{BufRead, stdin};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Work and resources between the start signal and the end of the work.
#[derive(Debug, Serialize)]
struct Done {
    messages: u64,
    seconds: f64,
    cpu_seconds: f64,
    memory: u64,
    max_memory: u64,
}

/// Waits for the start signal, measures the work, reports, and waits for the end of the input.
pub(crate) async fn measured(messages: u64, work: impl Future<Output = ()>) {
    println!("ready");
    heard().await;
    let (started, before) = (Instant::now(), cpu());
    work.await;
    let done = Done {
        messages,
        seconds: started.elapsed().as_secs_f64(),
        cpu_seconds: (cpu() - before).as_secs_f64(),
        memory: memory("VmRSS"),
        max_memory: memory("VmHWM"),
    };
    println!("{}", serde_json::to_string(&done).expect("a result is JSON"));
    while heard().await {}
}

async fn heard() -> bool {
    let read = tokio::task::spawn_blocking(|| stdin().lock().read_line(&mut String::new()));
    read.await.expect("reading does not panic").is_ok_and(|bytes| bytes > 0)
}

/// Processor time of this process, of all threads.
fn cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
