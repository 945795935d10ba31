//! Description of events in the words of the cast: `m12` is a message, `k3` its key.

use outbox_contract::MessageId;
use outbox_contract::backend::{
    Bucket, Fetched, FetchedRow, KeyTransition, Lease, Outcome, RowId, Scope, Step, Stored,
};

use super::super::{Answer, Command, Event, Question};
use super::broker::Late;
use super::cast::{KEYS, bucket, number_of, serial_of};

fn list(parts: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", parts.into_iter().collect::<Vec<_>>().join(" "))
}

fn message(stored: &Stored) -> String {
    format!("m{}/k{}@{}", serial_of(stored.message.id), number_of(&stored.message.key_id()), stored.position)
}

fn id(id: MessageId) -> String {
    format!("m{}", serial_of(id))
}

pub(super) fn rows(rows: &[RowId]) -> String {
    list(rows.iter().map(|row| format!("{}@{}", id(row.id), row.position)))
}

fn of_bucket(at: Bucket) -> String {
    let keys: Vec<String> = (0..KEYS).filter(|of| bucket(*of) == at).map(|of| format!("k{of}")).collect();
    keys.join("+")
}

pub(super) fn leases(leases: &[Lease]) -> String {
    let one =
        |lease: &Lease| format!("{} under {} from {}", of_bucket(lease.bucket), lease.epoch, lease.low_water);
    list(leases.iter().map(one))
}

fn fetched(answer: &Fetched) -> String {
    let one = |row: &FetchedRow| match row {
        FetchedRow::Message(stored) => message(stored),
        FetchedRow::Failing(at) => {
            format!("failing {}/k{}@{}", id(at.at.id), number_of(&at.key), at.at.position)
        }
        FetchedRow::Malformed(at, _) => {
            format!("nonsense {}/k{}@{}", id(at.at.id), number_of(&at.key), at.at.position)
        }
        other => format!("muted @{}", other.position()),
    };
    let full = if answer.full { ", cut short" } else { "" };
    format!("{}{full}", list(answer.rows.iter().map(one)))
}

fn word(outcome: Option<&Outcome>) -> &'static str {
    match outcome {
        None => "nothing is heard",
        Some(Outcome::Delivered) => "delivered",
        Some(Outcome::Rejected(_)) => "rejected",
        Some(Outcome::Postponed(..)) => "postponed",
        Some(Outcome::Failed(_)) => "failed",
        Some(Outcome::Unavailable(..)) => "not available",
        Some(Outcome::Blocked) => "blocked",
        Some(_) => "unknown",
    }
}

pub(super) fn carried(run: &[std::sync::Arc<Stored>], outcomes: Option<&Vec<Option<Outcome>>>) -> String {
    let word = |at: usize| outcomes.map_or("?", |outcomes| word(outcomes.get(at).and_then(Option::as_ref)));
    list(run.iter().enumerate().map(|(at, stored)| format!("{} {};", message(stored), word(at))))
}

pub(super) fn late(late: &Late) -> String {
    list(late.messages.iter().map(|(message, position)| format!("{}@{position}", id(*message))))
}

pub(super) fn transition(transition: &KeyTransition) -> String {
    let step = match &transition.step {
        Step::Fail { row, attempts, behind, then, .. } => {
            format!("fail {} after {attempts}, {then:?}, behind it {}", id(row.id), rows(behind))
        }
        Step::Park { rows: parked } => format!("park {}", rows(parked)),
        Step::Bury { row, discard: true, reason, .. } => format!("discard {} ({reason})", id(row.id)),
        Step::Bury { row, reason, .. } => format!("bury {} ({reason})", id(row.id)),
        Step::Resume { delivered } => format!("resume, delivered {}", rows(delivered)),
    };
    format!("k{}: {step}, from {:?}", number_of(&transition.key), transition.version)
}

fn scope(scope: &Scope) -> String {
    match scope {
        Scope::Everything => "everything".to_owned(),
        Scope::Topic(topic) => topic.to_string(),
        Scope::Key(key) => format!("k{}", number_of(key)),
    }
}

fn answer(answer: &Answer) -> String {
    match answer {
        Answer::Fetched(answer) => fetched(answer),
        Answer::Due(due) => {
            let keys = due.keys.iter().map(|key| {
                let parked = list(key.parked.iter().map(|stored| message(stored)));
                format!("k{} version {} parked {parked}", number_of(&key.key), key.version)
            });
            format!("due {}, next {:?}", list(keys), due.next)
        }
        Answer::Writers(writers) => format!("writers {:?} up to {}", writers.open, writers.last),
        Answer::Marks(marks) => {
            list(marks.iter().map(|mark| format!("{}@{}", mark.last.number, mark.position)))
        }
    }
}

fn outcomes(outcomes: &[Option<Outcome>]) -> String {
    list(outcomes.iter().map(|outcome| format!("{};", word(outcome.as_ref()))))
}

pub(super) fn event(event: &Event) -> String {
    match event {
        Event::Leased { leased, surplus, .. } => {
            let surplus = list(surplus.iter().map(of_bucket));
            format!("leases {}, surplus {surplus}, paused {:?}", leases(&leased.leases), leased.paused.topics)
        }
        Event::Answered { number, answer: given } => format!("answer {number}: {}", answer(given)),
        Event::LookedBelow { number, answer, .. } => {
            let words = answer.as_ref().map_or("failed".to_owned(), |(answer, _)| fetched(answer));
            format!("look below {number}: {words}")
        }
        Event::Heard { batch, delivered } => format!("word of batch {batch}: {delivered:?}"),
        Event::Published { batch, outcomes: all, broke, .. } => {
            format!("batch {batch}: {}{}", outcomes(all), if *broke { ", broke" } else { "" })
        }
        Event::Lapsed(epochs) => format!("lapsed {}", list(epochs.keys().map(|at| of_bucket(*at)))),
        Event::Transitioned { number, answer } => format!("transition {number}: {answer:?}"),
        Event::Removed { number } => format!("removal {number} is done"),
        Event::Owed { messages, .. } => format!("{messages} owed of before"),
        other => format!("{other:?}"),
    }
}

pub(super) fn command(command: &Command) -> Option<String> {
    Some(match command {
        Command::Ask { number, question: Question::Fetch(request) } => {
            let buckets = list(request.buckets.iter().map(of_bucket));
            let muted = list(request.muted.iter().map(scope));
            let except: Vec<i64> = request.except.iter().map(|position| position.0).collect();
            format!(
                "fetch {number}: {} after {} but {except:?} of {buckets}, muted {muted}, {} at most",
                scope(&request.scope),
                request.after,
                request.limit
            )
        }
        Command::Ask { number, question: Question::Due(request) } => {
            let except = list(request.except.iter().map(|key| format!("k{}", number_of(key))));
            format!("due {number}: {} keys but {except}", request.keys)
        }
        Command::Ask { number, question: Question::Marks(_) } => format!("marks {number}"),
        Command::Ask { number, question } => format!("{question:?} {number}"),
        Command::LookBelow { number, request, .. } => {
            format!("look below {number}: after {} up to {}", request.after, request.until)
        }
        Command::Publish(batch) => {
            let messages = list(batch.messages.iter().map(|stored| message(stored)));
            format!("batch {} of {:?}: {messages}", batch.number, batch.line)
        }
        Command::Remove { number, rows: removed, .. } => format!("removal {number}: {}", rows(removed)),
        Command::Transition { number, transition: step } => {
            format!("transition {number}: {}", transition(step))
        }
        Command::PauseTopic { number, topic, .. } => format!("pause {number} of {topic}"),
        Command::GiveBack { buckets, low_water } => {
            format!("give back {} with the mark {}", list(buckets.iter().map(of_bucket)), low_water.position)
        }
        Command::Save(low_water) => format!("mark {}", low_water.position),
        Command::Drained(low_water) => format!("drained with the mark {}", low_water.position),
        Command::Count(_) => return None,
        Command::Report(report) => format!("report {report:?}"),
    })
}
