//! Topics and units of a subscription that give nothing, while others do: logged once when one
//! appears and once when it is over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outbox_contract::backend::Problem;
use outbox_contract::{Consumer, Topic, metric};

/// Maximum number of problems that the health check names, each in a reason of its own.
const MAX_NAMED: usize = 20;

/// The problems of a subscription, as its transport told last. Shared by who looks and who is asked
/// for health.
#[derive(Debug)]
pub(crate) struct Problems {
    consumer: Consumer,
    // Held for a few instructions.
    now: Mutex<Vec<Problem>>,
}

impl Problems {
    pub(crate) fn new(consumer: Consumer) -> Self {
        Self { consumer, now: Mutex::default() }
    }

    fn now(&self) -> MutexGuard<'_, Vec<Problem>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the transport tells now.
    pub(crate) fn look(&self, told: &[Problem]) {
        let before = std::mem::replace(&mut *self.now(), told.to_vec());
        if before.is_empty() && told.is_empty() {
            return;
        }
        let consumer = &self.consumer;
        for problem in told.iter().filter(|problem| !is_in(&before, problem)) {
            tracing::warn!(%consumer, %problem, "can't receive from a topic; other topics continue");
        }
        for Problem { topic, number, .. } in before.iter().filter(|problem| !is_in(told, problem)) {
            tracing::info!(%consumer, %topic, unit = number, "receiving from the topic again");
        }
        self.measure(&before, told);
    }

    /// There is no subscription any more that could have problems.
    pub(crate) fn forget(&self) {
        let before = std::mem::take(&mut *self.now());
        self.measure(&before, &[]);
    }

    fn measure(&self, before: &[Problem], told: &[Problem]) {
        let mut counts: BTreeMap<&Topic, u32> = before.iter().map(|problem| (&problem.topic, 0)).collect();
        for problem in told {
            *counts.entry(&problem.topic).or_default() += 1;
        }
        for (topic, count) in counts {
            let labels =
                [("consumer", self.consumer.as_str().to_owned()), ("topic", topic.as_str().to_owned())];
            metrics::gauge!(metric::INBOX_PROBLEMS, &labels).set(f64::from(count));
        }
    }

    pub(crate) fn all(&self) -> Vec<Problem> {
        self.now().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.now().len()
    }

    /// The problems as reasons of a health check.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let now = self.now();
        let consumer = &self.consumer;
        let named = now.iter().take(MAX_NAMED);
        let mut reasons: Vec<String> = named
            .map(|problem| {
                format!("consumer {consumer}: can't receive since {} from {problem}", problem.since)
            })
            .collect();
        if let Some(more) = now.get(MAX_NAMED..).filter(|more| !more.is_empty()) {
            let topics: BTreeSet<&Topic> = more.iter().map(|problem| &problem.topic).collect();
            let (more, topics) = (more.len(), topics.len());
            reasons.push(format!("consumer {consumer}: can't receive from {more} more, of {topics} topics"));
        }
        reasons
    }
}

/// Returns true if a problem of this topic and unit is among these.
fn is_in(problems: &[Problem], problem: &Problem) -> bool {
    problems.iter().any(|other| other.topic == problem.topic && other.number == problem.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(topic: &str, number: Option<u32>) -> Problem {
        Problem::new(topic.parse().unwrap(), number, "it is missing")
    }

    #[test]
    fn each_problem_is_a_reason_until_it_is_over() {
        let problems = Problems::new("billing".parse().unwrap());
        problems.look(&[problem("orders", None), problem("bills", Some(3))]);
        let reasons = problems.reasons();
        assert!(reasons[0].contains("orders: it is missing"), "{reasons:?}");
        assert!(reasons[1].contains("bills/3: it is missing"), "{reasons:?}");
        problems.look(&[problem("bills", Some(3))]);
        assert_eq!((problems.count(), problems.reasons().len()), (1, 1));
        problems.forget();
        assert_eq!((problems.count(), problems.reasons().len()), (0, 0));
    }

    #[test]
    fn of_many_problems_the_rest_is_counted() {
        let problems = Problems::new("billing".parse().unwrap());
        let told: Vec<Problem> = (0..50).map(|number| problem("orders", Some(number))).collect();
        problems.look(&told);
        let reasons = problems.reasons();
        assert_eq!(reasons.len(), MAX_NAMED + 1);
        assert!(reasons[MAX_NAMED].contains("30 more, of 1 topics"), "{reasons:?}");
    }
}
