//! Acknowledgements, recalls, drains and stored mode, by hand.

use super::*;

fn core(limits: Limits) -> Core {
    let mut core = Core::new(Limits { workers: 9, told_at_once: 9, ..limits }, S / 2, 7);
    core.on(Event::Delivered((0..3).map(|number| item(&number.to_string(), number, 0)).collect()), S);
    core
}

fn finish(core: &mut Core, number: u64, verdict: Verdict, now: Duration) -> Vec<Command> {
    let count = core.jobs[&number].items.len();
    core.on(Event::Finished { number, verdicts: vec![verdict; count] }, now)
}

/// The one acknowledgement among commands.
fn told(commands: &[Command]) -> Option<(u64, Vec<u64>)> {
    let told = commands.iter().filter_map(|command| match command {
        Command::Acknowledge { number, tags } => Some((*number, tags.iter().map(|tag| tag.number).collect())),
        _ => None,
    });
    let told: Vec<_> = told.collect();
    assert!(told.len() < 2, "{told:?}");
    told.into_iter().next()
}

fn begun(commands: &[Command]) -> Vec<(u64, usize)> {
    let begun = commands.iter().filter_map(|command| match command {
        Command::Begin(job) => Some((job.number, job.messages.len())),
        _ => None,
    });
    begun.collect()
}

#[test]
fn deliveries_are_told_together_and_again_when_they_could_not_be() {
    let mut core = core(limits());
    assert_eq!(told(&finish(&mut core, 2, handled(), S)), None);
    assert_eq!(told(&finish(&mut core, 1, handled(), S)), None);
    assert_eq!(core.next_tick(), Some(S * 3 / 2));
    let (number, tags) = told(&core.on(Event::Tick, S * 3 / 2)).unwrap();
    assert_eq!(tags, [1, 0], "in the order in which they were finished");
    assert_eq!(told(&finish(&mut core, 3, handled(), S * 2)), None);
    assert_eq!((told(&core.on(Event::Tick, S * 3)), core.next_tick()), (None, None), "one at a time");
    let commands = core.on(Event::Acknowledged { number, told: false }, S * 3);
    assert_eq!((told(&commands), core.next_tick()), (None, Some(S * 4)));
    let (again, tags) = told(&core.on(Event::Tick, S * 4)).unwrap();
    assert_eq!(tags, [1, 0, 2]);
    core.on(Event::Acknowledged { number, told: true }, S * 4);
    core.on(Event::Acknowledged { number: again, told: false }, S * 4);
    assert_eq!(core.next_tick(), Some(S * 6), "the wait grows; the earlier answer came late");
    let (number, _) = told(&core.on(Event::Tick, S * 6)).unwrap();
    core.on(Event::Acknowledged { number, told: true }, S * 6);
    assert_eq!(core.next_tick(), None);
}

#[test]
fn much_is_told_at_once() {
    let mut core = core(limits());
    core.limits.told_at_once = 2;
    assert_eq!(told(&finish(&mut core, 1, handled(), S)), None);
    assert!(told(&finish(&mut core, 2, handled(), S)).is_some());
}

#[test]
fn a_drain_recalls_jobs_waits_for_them_and_tells_once() {
    for is_told in [true, false] {
        let mut core = core(limits());
        let commands = core.on(Event::Drain, S);
        assert!(matches!(commands[..], [Command::Recall(1), Command::Recall(2), Command::Recall(3)]));
        assert!(finish(&mut core, 1, handled(), S).is_empty());
        assert!(finish(&mut core, 2, Verdict::NotTried, S).is_empty());
        let (number, tags) = told(&finish(&mut core, 3, handled(), S)).unwrap();
        assert_eq!(tags, [0, 2]);
        let commands = core.on(Event::Acknowledged { number, told: is_told }, S);
        assert!(matches!(commands[..], [Command::Drained { is_clean }] if is_clean == is_told));
    }
}

#[test]
fn only_jobs_of_what_was_taken_away_or_paused_are_recalled() {
    let mut core = core(limits());
    let other = Unit { number: 1, ..unit() };
    assert!(core.on(Event::Revoked(vec![other]), S).is_empty());
    let paused = Paused::new(false, vec!["returns".parse().unwrap()]);
    assert!(core.on(Event::Paused(paused), S).is_empty());
    let recalled = core.on(Event::Revoked(vec![unit()]), S);
    assert!(matches!(recalled[..], [Command::Recall(1), Command::Recall(2), Command::Recall(3)]));
    let paused = Paused::new(true, Vec::new());
    assert!(core.on(Event::Paused(paused), S).is_empty(), "they were recalled already");
}

/// The supervisor of the worker tells of its death before its last words arrive.
#[test]
fn the_answer_of_a_worker_that_died_is_dropped() {
    let mut core = core(limits());
    core.on(Event::Broke { number: 1 }, S);
    assert!(core.on(Event::Finished { number: 1, verdicts: vec![handled()] }, S).is_empty());
    let commands = core.on(Event::Tick, S * 9);
    let Some(Command::Begin(job)) = commands.first() else { panic!("{commands:?}") };
    assert!(job.number > 3 && job.is_suspect && job.attempt == 1, "tried again, and nothing is counted");
}

#[test]
fn stored_mode_stores_in_order_by_one_job_at_a_time() {
    let mut core = core(Limits { stores_all: true, ..limits() });
    assert_eq!(core.jobs[&1].items.len(), 3);
    assert!(core.on(Event::Delivered(vec![item("a", 3, 0)]), S).is_empty(), "one at a time");
    core.on(Event::Paused(Paused::new(true, Vec::new())), S);
    assert_eq!(begun(&finish(&mut core, 1, Verdict::NotTried, S)), [(2, 4)], "also during a pause");
    assert!(core.on(Event::Broke { number: 2 }, S).is_empty(), "its worker died: it rests");
    let at = core.next_tick().unwrap();
    assert_eq!(begun(&core.on(Event::Tick, at)), [(3, 4)]);
    let numbers: Vec<u64> = core.jobs[&3].items.iter().map(|item| item.tag.number).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    core.on(Event::Revoked(vec![unit()]), at);
    assert!(begun(&finish(&mut core, 3, Verdict::NotTried, at)).is_empty(), "its next owner has it");
}
