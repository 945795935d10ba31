//! `bench`: a load through the whole chain, with its latencies.

use std::time::Duration;

use serde_json::{Value, json};

use crate::app::App;
use crate::args::CanaryArgs;
use crate::commands::canary::{Canary, millis};
use crate::exit::{Exit, Outcome};
use crate::findings::Finding;

/// Width of the longest bar.
const BAR: u64 = 40;

pub(crate) async fn run(app: &App, args: &CanaryArgs) -> Outcome {
    let run = Canary::run(app, args).await?;
    let findings = run.findings(args);
    let rate = run.arrived as f64 / run.took.as_secs_f64().max(1e-6);
    let histogram = histogram(&run.latencies);
    if app.out.is_json() {
        let mut json = run.json();
        json["messages_per_second"] = json!(rate.round());
        json["histogram"] = histogram
            .iter()
            .map(|(below, count)| json!({ "below_ms": millis(*below), "messages": count }))
            .collect();
        json["findings"] = findings.iter().map(Finding::json).collect();
        app.out.object(&json)?;
    } else {
        let latency = |share| format!("{:.1?}", run.percentile(share));
        app.out.fields(
            &[
                ("messages", format!("{} of {}", run.arrived, run.sent)),
                ("rate", format!("{rate:.0} messages/s, append to arrival")),
                ("median", latency(0.5)),
                ("p90", latency(0.9)),
                ("p99", latency(0.99)),
                ("max", latency(1.0)),
            ],
            &Value::Null,
        )?;
        app.out.text("")?;
        let most = histogram.iter().map(|(_, count)| *count).max().unwrap_or(1);
        for (below, count) in &histogram {
            let bar = "#".repeat(usize::try_from((count * BAR).div_ceil(most)).unwrap_or_default());
            app.out.text(&format!("{:>10} {count:>8} {bar}", format!("< {below:?}")))?;
        }
        for finding in &findings {
            app.out.say(&format!("\n{}", finding.lines()), &Value::Null)?;
        }
    }
    Ok(Exit::of_findings(!findings.is_empty()))
}

/// Returns the number of latencies below each power of two of a millisecond, and not below the
/// last.
fn histogram(latencies: &[Duration]) -> Vec<(Duration, u64)> {
    let mut bins: Vec<(Duration, u64)> = Vec::new();
    let mut below = Duration::from_millis(1);
    let mut rest = latencies;
    while !rest.is_empty() {
        let inside = rest.partition_point(|latency| *latency < below);
        if inside > 0 || !bins.is_empty() {
            bins.push((below, inside as u64));
        }
        rest = &rest[inside..];
        below = below.saturating_mul(2);
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_is_in_one_bin() {
        let latencies: Vec<Duration> = [3, 3, 5, 100].into_iter().map(Duration::from_millis).collect();
        let bins = histogram(&latencies);
        assert_eq!(bins.iter().map(|(_, count)| count).sum::<u64>(), 4);
        assert_eq!(bins[0], (Duration::from_millis(4), 2));
        assert_eq!(bins.last(), Some(&(Duration::from_millis(128), 1)));
        assert!(histogram(&[]).is_empty());
    }
}
