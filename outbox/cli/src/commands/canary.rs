//! `verify`: numbered messages through store, relay, broker and a consumer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use outbox::backend::{Deliveries, Delivery, Received, Subscription};
use outbox::message::Outgoing;
use outbox::relay::RelayHandle;
use outbox::{Consumer, Message, MessageId, Transport};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::app::{App, count};
use crate::args::CanaryArgs;
use crate::commands::canary_left::Left;
use crate::commands::{act, relay};
use crate::exit::{Exit, Failed, Outcome};
use crate::findings::Finding;
use crate::open::{self, Database};
use crate::time;

/// Messages of one transaction.
const BATCH: usize = 100;

/// Time limit of each step of the end: of the relay, the consumer, the connection, and the search
/// for what is missing.
const CLOSING: Duration = Duration::from_secs(5);

/// Time after the last message in which repeats are still waited for.
const QUIET: Duration = Duration::from_millis(500);

pub(crate) async fn verify(app: &App, args: &CanaryArgs) -> Outcome {
    let run = Canary::run(app, args).await?;
    report(app, args, &run)
}

/// Shows the result of a run.
pub(crate) fn report(app: &App, args: &CanaryArgs, run: &Canary) -> Outcome {
    let findings = run.findings(args);
    if app.out.is_json() {
        let mut json = run.json();
        json["findings"] = findings.iter().map(Finding::json).collect();
        app.out.object(&json)?;
    } else {
        app.out.fields(&run.fields(), &Value::Null)?;
        for finding in &findings {
            app.out.say(&format!("\n{}", finding.lines()), &Value::Null)?;
        }
        if findings.is_empty() {
            app.out.text("\nevery message arrived once, in the order of its key")?;
        }
    }
    Ok(Exit::of_findings(!findings.is_empty()))
}

/// Result of the messages of a run.
#[derive(Debug, Default)]
pub(crate) struct Canary {
    pub(crate) sent: u64,
    pub(crate) arrived: u64,
    pub(crate) repeated: u64,
    pub(crate) out_of_order: u64,
    /// Times from before the append to the arrival, of first arrivals.
    pub(crate) latencies: Vec<Duration>,
    /// Time from the first append to the last first arrival.
    pub(crate) took: Duration,
    /// Places of those that did not arrive; `None` if the database did not say.
    pub(crate) left: Option<Left>,
}

impl Canary {
    /// Sends the messages, and receives them.
    pub(crate) async fn run(app: &App, args: &CanaryArgs) -> Result<Self, Failed> {
        if args.messages == 0 || args.keys == 0 {
            return Err(Failed::usage("messages or keys are 0; give at least 1 of each"));
        }
        let store = app.store().await?;
        let run = MessageId::new().to_string();
        // The name of a run: a consumer of an earlier one would go on where that has ended.
        let consumer = Consumer::new(format!("outbox-canary-{run}"))?;
        let transport =
            open::transport(&app.settings, app.settings.transport()?, Some((&args.topic, &consumer)))?;
        let deadline = Instant::now() + args.within;
        let deliveries = subscribe(&*transport, args, &consumer, deadline).await?;
        let relay = match own_relay(app, args, &store).await {
            Ok(relay) => relay,
            Err(error) => {
                close(deliveries, &transport).await;
                return Err(error);
            }
        };
        let (sent, found) = {
            let appending = append(&*store, args, &run);
            let receiving = receive(&*deliveries, args, &run, deadline);
            tokio::join!(appending, receiving)
        };
        if let Some(relay) = relay {
            relay.stop(CLOSING).await;
        }
        close(deliveries, &transport).await;
        let (sent, found) = (sent?, found?);
        let mut canary = Self::judged(&sent, &found);
        if canary.lost() > 0 {
            let arrived: BTreeSet<u32> = found.iter().map(|arrival| arrival.number).collect();
            let missing = sent.iter().filter(|sent| !arrived.contains(&sent.number)).map(|sent| sent.id);
            canary.left = Left::find(&*store, missing.collect(), CLOSING).await;
        }
        Ok(canary)
    }

    /// Compares what arrived with what was sent.
    fn judged(sent: &[Sent], arrivals: &[Arrival]) -> Self {
        let mut canary = Self { sent: sent.len() as u64, ..Self::default() };
        let mut last: BTreeMap<u32, u32> = BTreeMap::new();
        let mut seen: BTreeMap<u32, ()> = BTreeMap::new();
        let began = sent.first().map(|sent| sent.at);
        for arrival in arrivals {
            if seen.insert(arrival.number, ()).is_some() {
                canary.repeated += 1;
                continue;
            }
            canary.arrived += 1;
            if last.insert(arrival.key, arrival.number).is_some_and(|before| before > arrival.number) {
                canary.out_of_order += 1;
            }
            if let Some(sent) = sent.get(arrival.number as usize) {
                canary.latencies.push(arrival.at.saturating_duration_since(sent.at));
            }
            canary.took = began.map_or(Duration::ZERO, |began| arrival.at.saturating_duration_since(began));
        }
        canary.latencies.sort_unstable();
        canary
    }

    /// Returns the latency below which this share of all messages stayed.
    pub(crate) fn percentile(&self, share: f64) -> Duration {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
        let at = ((self.latencies.len() as f64 * share).ceil() as usize).saturating_sub(1);
        self.latencies.get(at).copied().unwrap_or_default()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.sent - self.arrived.min(self.sent)
    }

    pub(crate) fn findings(&self, args: &CanaryArgs) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.lost() > 0 {
            let remedy = if args.with_relay {
                "see `outbox status` for what waits, and whether the topic exists; a longer --within waits longer"
            } else {
                "see whether a relay of this route runs, or run one with --with-relay; `outbox status` shows what waits"
            };
            let places = self.left.map(|left| format!(": {}", left.text())).unwrap_or_default();
            let text = format!(
                "{} of {} did not arrive within {}{places}",
                self.lost(),
                count(self.sent, "message"),
                time::age(args.within)
            );
            findings.push(Finding::new("missing", text, remedy));
        }
        if self.repeated > 0 {
            let remedy =
                "repeats are allowed after a kill or a lost confirmation: handle messages with an inbox";
            findings.push(Finding::new(
                "repeated",
                format!("{} arrived more than once", count(self.repeated, "message")),
                remedy,
            ));
        }
        if self.out_of_order > 0 {
            let remedy = "a key arrived out of order: does another program publish to this topic, or change its partitions?";
            findings.push(Finding::new(
                "out-of-order",
                format!("{} arrived out of order", count(self.out_of_order, "message")),
                remedy,
            ));
        }
        findings
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "sent": self.sent,
            "arrived": self.arrived,
            "missing": self.lost(),
            "left": self.left.map(Left::json),
            "repeated": self.repeated,
            "out_of_order": self.out_of_order,
            "latency_ms": { "p50": millis(self.percentile(0.5)), "p99": millis(self.percentile(0.99)), "max": millis(self.percentile(1.0)) },
            "took_ms": millis(self.took),
        })
    }

    fn latency(&self) -> String {
        if self.latencies.is_empty() {
            return "-".to_owned();
        }
        let [median, p99, max] = [0.5, 0.99, 1.0].map(|share| self.percentile(share));
        format!("{median:.1?} median, {p99:.1?} p99, {max:.1?} max")
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        vec![
            ("sent", self.sent.to_string()),
            ("arrived", self.arrived.to_string()),
            ("missing", self.lost().to_string()),
            ("repeated", self.repeated.to_string()),
            ("out of order", self.out_of_order.to_string()),
            ("latency", self.latency()),
        ]
    }
}

/// Returns a time in milliseconds.
pub(crate) fn millis(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e3
}

/// A message that arrived.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    key: u32,
    number: u32,
    at: Instant,
}

/// Starts a relay, if one is asked for.
async fn own_relay(
    app: &App,
    args: &CanaryArgs,
    store: &Arc<dyn Database>,
) -> Result<Option<RelayHandle>, Failed> {
    if !args.with_relay {
        return Ok(None);
    }
    Ok(Some(relay::builder(app, store)?.start().await?))
}

async fn subscribe(
    transport: &dyn Transport,
    args: &CanaryArgs,
    consumer: &Consumer,
    deadline: Instant,
) -> Result<Box<dyn Deliveries>, Failed> {
    let subscription = Subscription::new(consumer.clone(), [args.topic.clone()])?;
    match timeout_at(deadline, transport.subscribe(subscription)).await {
        Ok(deliveries) => Ok(deliveries?),
        Err(_) => Err(Failed::error(format!("the broker ({}) did not answer in time", transport.name()))),
    }
}

/// A message that was appended.
#[derive(Clone, Copy, Debug)]
struct Sent {
    number: u32,
    id: MessageId,
    at: Instant,
}

/// Appends the messages; returns when each was.
async fn append(store: &dyn Database, args: &CanaryArgs, run: &str) -> Result<Vec<Sent>, Failed> {
    let mut sent = Vec::new();
    let numbers: Vec<u32> = (0..args.messages).collect();
    for part in numbers.chunks(BATCH) {
        let mut messages = Vec::with_capacity(part.len());
        for number in part {
            let key = number % args.keys;
            let payload =
                json!({ "key": key, "number": number, "pad": "x".repeat(args.bytes.saturating_sub(40)) });
            let message = Message::new(args.topic.clone(), "outbox.canary")?
                .with_key(format!("{run}-{key}"))?
                .with_header("outbox-canary", run)?
                .with_payload(payload.to_string());
            messages.push(Outgoing::from(message).by(args.route.clone()));
        }
        let at = Instant::now();
        store.append_all(&messages).await?;
        let sent_now = part.iter().zip(&messages);
        sent.extend(sent_now.map(|(number, outgoing)| Sent { number: *number, id: outgoing.message.id, at }));
    }
    Ok(sent)
}

/// Receives until all have arrived and nothing more comes, or the time is over.
async fn receive(
    deliveries: &dyn Deliveries,
    args: &CanaryArgs,
    run: &str,
    deadline: Instant,
) -> Result<Vec<Arrival>, Failed> {
    let (mut arrivals, mut seen) = (Vec::new(), vec![false; args.messages as usize]);
    let mut missing = args.messages;
    let bar: ProgressBar = act::bar(args.messages.into());
    loop {
        let until = if missing == 0 { Instant::now() + QUIET } else { deadline };
        let received = match timeout_at(until, deliveries.next()).await {
            Err(_) => break,
            Ok(Err(error)) if error.is_retryable() => {
                // A broker that is away fails each time at once, and a timeout does not come to see it.
                let next_try = Instant::now() + QUIET;
                if next_try >= until {
                    break;
                }
                sleep_until(next_try).await;
                continue;
            }
            Ok(received) => received?,
        };
        match received {
            Received::Deliveries(batch) => {
                let at = Instant::now();
                for (key, number) in batch.iter().filter_map(|delivery| canary(delivery, run)) {
                    arrivals.push(Arrival { key, number, at });
                    if let Some(seen) = seen.get_mut(number as usize).filter(|seen| !**seen) {
                        *seen = true;
                        missing -= 1;
                        bar.inc(1);
                    }
                }
                let tags: Vec<_> = batch.into_iter().map(|delivery| delivery.tag).collect();
                // What can't be acknowledged comes again, and is counted as repeated.
                match timeout_at(deadline + QUIET, deliveries.acknowledge(&tags)).await {
                    Ok(Err(error)) if !error.is_retryable() => return Err(error.into()),
                    _ => {}
                }
            }
            Received::Revoked(_) => {}
            _ => break,
        }
    }
    bar.finish_and_clear();
    Ok(arrivals)
}

/// Returns key and number of a message of this run.
fn canary(delivery: &Delivery, run: &str) -> Option<(u32, u32)> {
    let message = delivery.message.as_ref().ok()?;
    if message.headers.get("outbox-canary") != Some(run) {
        return None;
    }
    let payload: Value = serde_json::from_slice(&message.payload).ok()?;
    let number = |name: &str| u32::try_from(payload.get(name)?.as_u64()?).ok();
    Some((number("key")?, number("number")?))
}

/// Ends the consumer. A broker that is away is not waited for: it forgets the group by itself.
async fn close(deliveries: Box<dyn Deliveries>, transport: &Arc<dyn Transport>) {
    // The run is over: its group is of no use any more.
    let _ = timeout(CLOSING, deliveries.close()).await;
    let _ = timeout(CLOSING, transport.close()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_repeated_or_out_of_order_is_counted() {
        let now = Instant::now();
        let sent: Vec<Sent> = (0..6).map(|number| Sent { number, id: MessageId::new(), at: now }).collect();
        let arrival = |number: u32| Arrival { key: number % 2, number, at: now + Duration::from_millis(5) };
        // 4 before 2 in its key, 1 twice, 5 never.
        let arrivals: Vec<Arrival> = [0, 1, 4, 2, 1, 3].into_iter().map(arrival).collect();
        let canary = Canary::judged(&sent, &arrivals);
        assert_eq!((canary.sent, canary.arrived, canary.lost()), (6, 5, 1));
        assert_eq!((canary.repeated, canary.out_of_order), (1, 1));
        assert_eq!(canary.percentile(0.5), Duration::from_millis(5));
    }
}
