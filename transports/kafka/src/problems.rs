//! Problems of single topics and partitions of a member, and topics in doubt. A machine without
//! waiting.

use std::collections::{BTreeMap, BTreeSet};

use outbox_contract::Topic;
use outbox_contract::backend::Problem;

/// Number of looks at a topic behind an error that may be of it: the broker that was asked may
/// learn of the cause later than the one that told.
const LOOKS: u8 = 2;

/// A partition of a topic, or all of it, and what is wrong with it.
pub(crate) type Finding = (Option<u32>, String);

/// Topics and partitions that give nothing.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    now: BTreeMap<(Topic, Option<u32>), Problem>,
    /// Topics that an error may be of, and how often they are still to be looked at.
    doubted: BTreeMap<Topic, u8>,
}

impl Problems {
    pub(crate) fn new(known: Vec<Problem>) -> Self {
        let key = |problem: Problem| ((problem.topic.clone(), problem.number), problem);
        Self { now: known.into_iter().map(key).collect(), doubted: BTreeMap::new() }
    }

    /// Something may be wrong with these topics.
    pub(crate) fn doubt<'t>(&mut self, topics: impl IntoIterator<Item = &'t Topic>) {
        self.doubted.extend(topics.into_iter().map(|topic| (topic.clone(), LOOKS)));
    }

    /// Returns true if a topic came into doubt that was not looked at since.
    pub(crate) fn is_urgent(&self) -> bool {
        self.doubted.values().any(|looks| *looks == LOOKS)
    }

    /// Returns true if there is anything to look at again soon.
    pub(crate) fn is_quiet(&self) -> bool {
        self.now.is_empty() && self.doubted.is_empty()
    }

    /// The topics to look at: those in doubt, and those with a problem that may be over.
    pub(crate) fn suspects(&mut self) -> BTreeSet<Topic> {
        let mut suspects: BTreeSet<Topic> = self.doubted.keys().cloned().collect();
        self.doubted.retain(|_, looks| {
            *looks -= 1;
            *looks > 0
        });
        suspects.extend(self.now.keys().map(|(topic, _)| topic.clone()));
        suspects
    }

    /// A topic was looked at: this is all that is wrong with it.
    pub(crate) fn found(&mut self, topic: &Topic, findings: Vec<Finding>) {
        let mut before: BTreeMap<Option<u32>, Problem> = BTreeMap::new();
        self.now.retain(|(of, number), problem| {
            let keep = of != topic;
            if !keep {
                before.insert(*number, problem.clone());
            }
            keep
        });
        for (number, error) in findings {
            let problem = match before.remove(&number) {
                Some(mut known) => {
                    known.error = error;
                    known
                }
                None => Problem::new(topic.clone(), number, error),
            };
            self.now.insert((topic.clone(), number), problem);
        }
    }

    /// Returns true if something is wrong with a topic.
    pub(crate) fn has(&self, topic: &Topic) -> bool {
        self.now.keys().any(|(of, _)| of == topic)
    }

    pub(crate) fn all(&self) -> Vec<Problem> {
        self.now.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> Topic {
        Topic::new(name).unwrap()
    }

    #[test]
    fn what_lasts_keeps_its_beginning_and_what_is_over_goes() {
        let (one, other) = (topic("one"), topic("other"));
        let mut problems = Problems::default();
        problems.found(&one, vec![(Some(1), "first".to_owned()), (Some(2), "second".to_owned())]);
        problems.found(&other, vec![(None, "missing".to_owned())]);
        let since = problems.all()[0].since;
        problems.found(&one, vec![(Some(1), "again".to_owned())]);
        let all = problems.all();
        assert_eq!((all.len(), all[0].since, all[0].error.as_str()), (2, since, "again"));
        problems.found(&one, Vec::new());
        assert!(!problems.has(&one) && problems.has(&other));
    }

    #[test]
    fn what_is_in_doubt_is_looked_at_twice_and_a_problem_until_it_is_over() {
        let (one, other) = (topic("one"), topic("other"));
        let mut problems = Problems::default();
        assert!(problems.is_quiet() && !problems.is_urgent());
        problems.doubt([&one]);
        problems.found(&other, vec![(None, "missing".to_owned())]);
        assert!(problems.is_urgent());
        assert_eq!(problems.suspects().len(), 2);
        assert!(!problems.is_urgent() && !problems.is_quiet());
        assert_eq!(problems.suspects().len(), 2);
        assert_eq!(problems.suspects().into_iter().collect::<Vec<_>>(), std::slice::from_ref(&other));
        problems.found(&other, Vec::new());
        assert!(problems.is_quiet());
    }
}
