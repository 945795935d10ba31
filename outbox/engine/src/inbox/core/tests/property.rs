//! Any order of events: a key is in one job at a time, in order, and bounds hold.

use proptest::prelude::*;

use super::*;

/// Next act of a run.
#[derive(Clone, Debug)]
enum Act {
    Push {
        key: u8,
        handler: usize,
    },
    Next,
    /// One of the jobs that are out comes back; a message of it fails, or none does.
    Finish {
        which: usize,
        fails: Option<usize>,
    },
    Wake,
    Revoke,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..4u8, 0..2usize).prop_map(|(key, handler)| Act::Push { key, handler }),
        4 => Just(Act::Next),
        4 => (0..8usize, prop::option::weighted(0.4, 0..4usize)).prop_map(|(which, fails)| Act::Finish { which, fails }),
        2 => Just(Act::Wake),
        1 => Just(Act::Revoke),
    ]
}

proptest! {
    /// Whatever happens: a key is in one job at a time, its messages leave in order and none is
    /// lost, and handlers stay in their bounds.
    #[test]
    fn every_message_is_finished_in_the_order_of_its_key(
        acts in prop::collection::vec(act(), 1..200),
        batch in 1..4usize,
        bound in 1..3usize,
        suspects in 1..3usize,
    ) {
        let limits = Limits { batch, suspects, by_handler: vec![bound, usize::MAX], ..limits() };
        let mut driver = Driver::new(limits);
        let mut out: Vec<Given> = Vec::new();
        let mut pushed: BTreeMap<KeyId, Vec<u64>> = BTreeMap::new();
        let mut finished: BTreeMap<KeyId, Vec<u64>> = BTreeMap::new();
        let (mut number, mut incarnation, mut now) = (0, 1, S);
        let settle = |driver: &mut Driver,
                          finished: &mut BTreeMap<KeyId, Vec<u64>>,
                          job: Given,
                          fails: Option<usize>,
                          incarnation: u64,
                          now: Duration| {
            let mut stopped = BTreeSet::new();
            let mut verdicts = Vec::new();
            for (index, item) in job.items.iter().enumerate() {
                verdicts.push(if stopped.contains(&item.key) {
                    Verdict::NotTried
                } else if job.task == Task::Handle && fails == Some(index) {
                    stopped.insert(item.key.clone());
                    failed()
                } else {
                    if item.tag.incarnation == incarnation {
                        finished.entry(item.key.clone()).or_default().push(item.tag.number);
                    }
                    handled()
                });
            }
            finish(driver, job, verdicts, now);
        };
        for act in acts {
            now += S / 4;
            match act {
                Act::Push { key, handler } => {
                    let item = item_of(&key.to_string(), number, handler, incarnation);
                    pushed.entry(item.key.clone()).or_default().push(number);
                    driver.push(item);
                    number += 1;
                }
                Act::Next => {
                    if let Some(job) = driver.next() {
                        for other in &out {
                            prop_assert!(job.items.iter().all(|item| other.items.iter().all(|o| o.key != item.key)));
                        }
                        prop_assert!(job.task == Task::Store || job.items.len() <= batch);
                        out.push(job);
                        let bounded = out.iter().filter(|job| {
                            job.task == Task::Handle && job.items.iter().any(|item| item.handler == Some(0))
                        });
                        prop_assert!(bounded.count() <= bound);
                        prop_assert!(out.iter().filter(|job| job.is_suspect).count() <= suspects);
                    }
                }
                Act::Finish { which, fails } if !out.is_empty() => {
                    let job = out.remove(which % out.len());
                    settle(&mut driver, &mut finished, job, fails, incarnation, now);
                }
                Act::Finish { .. } => {}
                Act::Wake => {
                    driver.wake(now);
                }
                Act::Revoke => {
                    driver.revoke(&[unit()]);
                    incarnation += 1;
                    // Unfinished messages belong to others now.
                    pushed.clear();
                    finished.clear();
                }
            }
        }
        // Everything that is left gets done.
        for job in std::mem::take(&mut out) {
            settle(&mut driver, &mut finished, job, None, incarnation, now);
        }
        for _ in 0..1_000 {
            now += S * 10;
            driver.wake(now);
            let Some(job) = driver.next() else { break };
            settle(&mut driver, &mut finished, job, None, incarnation, now);
        }
        prop_assert!(driver.is_idle() && driver.core.keys.is_empty());
        prop_assert_eq!(finished, pushed);
    }
}
