//! Health of a relay.

use std::sync::atomic::Ordering;
use std::time::Duration;

use outbox_contract::backend::{Backlog, Unserved};
use outbox_contract::duration::in_two_units as age;

use super::context::Context;
use super::maintenance::advice;
use crate::health::{Health, ReasonKind, Status};

/// Maximum number of unserved routes that get a reason of their own.
const MAX_NAMED: usize = 20;

impl Health {
    /// Returns the health of the relay of these routes.
    pub(crate) fn of<'c>(routes: impl Iterator<Item = &'c Context>) -> Self {
        let mut health = Self::good();
        for (at, context) in routes.enumerate() {
            health.examine(context);
            health.examine_measured(context);
            health.examine_below(context);
            if at == 0 {
                health.examine_unserved(context);
            }
        }
        health
    }

    /// Reports what keeps the route from publishing.
    fn examine(&mut self, context: &Context) {
        let (config, route, now) = (&context.config, &context.route, context.now());
        let counters = &context.counters;
        let mut add =
            |status, kind, reason: String| self.add(status, kind, format!("route {route}: {reason}"));
        if !context.tenure.holds(now) {
            let since = now.saturating_sub(context.tenure.renewed());
            let reason = format!("leases were last renewed {} ago; nothing is published", age(since));
            add(Status::Unhealthy, ReasonKind::Leases, reason);
        }
        if counters.keeps_failing(now) {
            let error = counters.last_error().unwrap_or_default();
            add(Status::Unhealthy, ReasonKind::Failing, format!("the relay keeps restarting: {error}"));
        }
        if let Some(since) = context.breaker().away_since() {
            let away = now.saturating_sub(since);
            let status = if away > config.lease { Status::Unhealthy } else { Status::Degraded };
            let why = counters.why_away().unwrap_or_else(|| "it does not answer".to_owned());
            let reason = format!("the transport has been unavailable for {}: {why}", age(away));
            add(status, ReasonKind::Outage, reason);
        } else if let Some(why) = context.unanswered() {
            // Nothing was sent that would tell.
            let reason = format!("the transport does not answer: {why}");
            add(Status::Degraded, ReasonKind::Outage, reason);
        }
        if let Some(reason) = context.checked.reason() {
            add(Status::Degraded, ReasonKind::BrokerSettings, reason);
        }
        if context.paused.load(Ordering::Relaxed) {
            let reason = "paused by an operator; nothing is published";
            add(Status::Degraded, ReasonKind::Paused, reason.to_owned());
        }
        for (topic, failure) in counters.broken_topics() {
            let why = failure.unwrap_or_else(|| "paused by an operator".to_owned());
            add(Status::Degraded, ReasonKind::Topic, format!("topic {topic} is not published: {why}"));
        }
        if counters.disagreeing.load(Ordering::Relaxed) {
            let reason = "relays of this route are configured differently (retry policies, source or history); deploy one configuration";
            add(Status::Degraded, ReasonKind::Configuration, reason.to_owned());
        }
    }

    /// Reports what was measured, and measuring or maintenance that fails.
    fn examine_measured(&mut self, context: &Context) {
        let (config, route, now) = (&context.config, &context.route, context.now());
        let counters = &context.counters;
        let is_long = |since: Duration, every| now.saturating_sub(since) > every * 3 + config.store_timeout;
        let backlog = counters.backlog();
        // A call that never returns yields no error. So the age of the last measurement counts.
        let measured = backlog.as_ref().map_or(context.started, |(at, _)| *at);
        if is_long(measured.max(counters.measure_at()), config.observe_every) {
            let (span, error) = (now.saturating_sub(measured), counters.unmeasured());
            let error = error.unwrap_or_else(|| "no answer".to_owned());
            let reason = format!("measuring the backlog has been failing for {}: {error}", age(span));
            self.add(Status::Unhealthy, ReasonKind::Unmeasured, format!("route {route}: {reason}"));
        }
        match &backlog {
            Some((_, backlog)) => self.examine_backlog(context, backlog),
            None => {
                let reason = format!("route {route}: the backlog has not been measured yet");
                self.add(Status::Degraded, ReasonKind::Unmeasured, reason);
            }
        }
        if let Some(maintained) = counters.last_maintained().map(|at| at.max(context.started))
            && is_long(maintained, config.maintain_every)
        {
            let error = counters.unmaintained().unwrap_or_else(|| "no answer".to_owned());
            let reason = format!(
                "maintenance has been failing for {}, scheduled messages and expired rows wait: {error}",
                age(now.saturating_sub(maintained))
            );
            self.add(Status::Degraded, ReasonKind::Maintenance, format!("route {route}: {reason}"));
        }
    }

    /// Reports messages below the position up to which the relay had read. They are delivered, but
    /// their cause may recur.
    fn examine_below(&mut self, context: &Context) {
        let now = context.now();
        let Some(found) = context.counters.below(now) else { return };
        let [first, last] = [found.first, found.last].map(|at| age(now.saturating_sub(at)));
        let (route, looks, cause) = (&context.route, count(found.looks, "check"), found.cause);
        self.add(
            Status::Degraded,
            ReasonKind::BelowCursor,
            format!(
                "route {route}: messages stood below the position up to which the relay had read, found \
                 first {first} ago and last {last} ago, by {looks}; they are delivered; \
                 {cause}"
            ),
        );
    }

    fn examine_backlog(&mut self, context: &Context, backlog: &Backlog) {
        let route = &context.route;
        let is_old = |age: &Duration| *age > context.config.unhealthy_age;
        if let Some(oldest) = backlog.oldest_pending_age.filter(is_old) {
            let reason = format!("the oldest message has been waiting for {}", age(oldest));
            self.add(Status::Unhealthy, ReasonKind::OldestAge, format!("route {route}: {reason}"));
        } else if let Some(oldest) = backlog.oldest_age.filter(is_old) {
            let reason = format!("the oldest message of failing keys has been waiting for {}", age(oldest));
            self.add(Status::Degraded, ReasonKind::OldestAge, format!("route {route}: {reason}"));
        }
        if backlog.held_keys > 0 {
            let held = count(backlog.held_keys, "held key");
            let reason = format!("route {route}: waiting for an operator: {held}");
            self.add(Status::Degraded, ReasonKind::HeldKeys, reason);
        }
        if backlog.dead > 0 {
            let (dead, new) = (count(backlog.dead, "dead letter"), context.counters.buried());
            let reason = format!("waiting for an operator: {dead}; {new} since this relay started");
            self.add(Status::Degraded, ReasonKind::DeadLetters, format!("route {route}: {reason}"));
        }
        if backlog.unowned_buckets > 0 && context.counters.is_owned() {
            let unowned = count(backlog.unowned_buckets, "bucket");
            let reason = format!("route {route}: no relay owns {unowned} with messages");
            self.add(Status::Degraded, ReasonKind::UnownedBuckets, reason);
        }
    }

    /// Reports routes that no running relay serves. The findings are kept with the relay's first
    /// route.
    fn examine_unserved(&mut self, context: &Context) {
        let now = context.now();
        if let Some((span, error)) = context.unserved.unknown(now) {
            let reason = format!("check for unserved routes has been failing for {}: {error}", age(span));
            self.add(Status::Degraded, ReasonKind::UnservedUnknown, reason);
        }
        let unserved = context.unserved.routes(now);
        for found in unserved.iter().take(MAX_NAMED) {
            let Unserved { route, oldest_age, .. } = found;
            let (oldest, advice) = (age(*oldest_age), advice(found));
            self.add(
                Status::Degraded,
                ReasonKind::UnservedRoute,
                format!(
                    "route {route}: no running relay serves it, and its oldest message has been \
                     waiting for {oldest}; {advice}"
                ),
            );
        }
        if unserved.len() > MAX_NAMED {
            let more = unserved.len() - MAX_NAMED;
            let reason = format!("{more} more routes have waiting messages and no running relay");
            self.add(Status::Degraded, ReasonKind::UnservedRoute, reason);
        }
    }
}

/// Returns a number with its noun: `1 key`, `2 keys`.
fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}
