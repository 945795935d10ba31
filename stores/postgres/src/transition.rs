//! Transitions of failing keys.
//!
//! All steps of a call are one call of a function in the database: one round trip, so that no
//! program can be paused in the middle of it while the lease is locked. `0003_relay.sql` defines
//! the steps and the fence.

use outbox_contract::admin::Actor;
use outbox_contract::backend::rules::micros;
use outbox_contract::backend::{AuditNote, KeyTransition, RowId, Step, Then, Transitioned};
use serde_json::{Value, json};
use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::sql::Statements;

const NO_STATE: i64 = -1;
const STALE: i64 = -2;
const LEASE_LOST: i64 = -3;

pub(crate) async fn transition(
    connection: &mut PgConnection,
    sql: &Statements,
    transitions: &[KeyTransition],
    actor: &Actor,
    history: bool,
) -> Result<Vec<Transitioned>, sqlx::Error> {
    let steps = Value::from_iter(transitions.iter().map(|transition| step(transition, actor))).to_string();
    let row = sql.query(&sql.transition).bind(steps).bind(history).fetch_one(connection).await?;
    let answers: Vec<i64> = row.try_get(0)?;
    if answers.len() != transitions.len() {
        let said = format!("{} answers for {} transitions", answers.len(), transitions.len());
        return Err(sqlx::Error::Decode(said.into()));
    }
    Ok(answers.into_iter().map(answer).collect())
}

fn answer(number: i64) -> Transitioned {
    match number {
        NO_STATE => Transitioned::Done(None),
        STALE => Transitioned::Stale,
        LEASE_LOST => Transitioned::LeaseLost,
        version => Transitioned::Done(Some(version)),
    }
}

/// Returns a transition as the function takes it.
fn step(transition: &KeyTransition, actor: &Actor) -> Value {
    let mut step = json!({
        "route": transition.route.as_str(),
        "relay": transition.relay.as_uuid().to_string(),
        "bucket": transition.bucket.0,
        "epoch": transition.epoch.0,
        "topic": transition.key.topic.as_str(),
        "key": transition.key.key.as_str(),
        "version": transition.version,
    });
    let what = match &transition.step {
        Step::Fail { row, attempts, first, last, then, behind } => {
            let rows: Vec<RowId> = [*row].into_iter().chain(behind.iter().copied()).collect();
            let retry_after = match then {
                Then::RetryAfter(delay) => Some(micros(*delay)),
                Then::Hold => None,
            };
            rows_and(
                &rows,
                json!({
                    "step": "fail",
                    "attempts": attempts,
                    "first": first.to_text(),
                    "last": last.to_text(),
                    "retry_after": retry_after,
                }),
            )
        }
        Step::Park { rows } => rows_and(rows, json!({ "step": "park" })),
        Step::Bury { row, discard: true, .. } => {
            let note = AuditNote::discarded(actor, transition).map(|(note, _)| {
                json!({ "actor": note.actor.as_str(), "operation": note.operation, "detail": note.detail })
            });
            rows_and(&[*row], json!({ "step": "bury", "discard": note }))
        }
        Step::Bury { row, discard: false, reason, attempts, first, last } => rows_and(
            &[*row],
            json!({
                "step": "bury",
                "reason": reason,
                "attempts": attempts,
                "first": first.to_text(),
                "last": last.to_text(),
            }),
        ),
        Step::Resume { delivered } => rows_and(delivered, json!({ "step": "resume" })),
    };
    if let (Value::Object(step), Value::Object(what)) = (&mut step, what) {
        step.extend(what);
    }
    step
}

fn rows_and(rows: &[RowId], mut what: Value) -> Value {
    what["positions"] = rows.iter().map(|row| row.position.0).collect();
    what["ids"] = rows.iter().map(|row| row.id.to_string()).collect();
    what
}
