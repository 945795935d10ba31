//! Transitions of failing keys.
//!
//! All steps of a call are one transaction that has the write lock from its start: no other writer
//! can take a lease, change a key or move a message while a step looks and acts. A step looks first
//! and is refused before it has changed anything.

use outbox_contract::admin::Actor;
use outbox_contract::backend::{KeyTransition, Transitioned};
use outbox_store_sql::key::step;
use sqlx::sqlite::{SqliteConnection, SqlitePool};

use crate::key::KeyIn;
use crate::lease::now;
use crate::sql;

pub(crate) async fn transition(
    pool: &SqlitePool,
    transitions: &[KeyTransition],
    actor: &Actor,
    history: bool,
) -> Result<Vec<Transitioned>, sqlx::Error> {
    if transitions.is_empty() {
        return Ok(Vec::new());
    }
    let mut tx = pool.begin_with(sql::BEGIN).await?;
    let now = now(&mut tx).await?;
    let mut answers = Vec::with_capacity(transitions.len());
    for transition in transitions {
        if !holds_lease(&mut tx, transition, now).await? {
            answers.push(Transitioned::LeaseLost);
            continue;
        }
        let KeyTransition { route, key, bucket, .. } = transition;
        let mut key = KeyIn { connection: &mut tx, route, key, bucket: *bucket, now, history };
        answers.push(step(&mut key, transition, actor).await?);
    }
    tx.commit().await?;
    Ok(answers)
}

async fn holds_lease(
    connection: &mut SqliteConnection,
    transition: &KeyTransition,
    now: i64,
) -> Result<bool, sqlx::Error> {
    let held = sqlx::query(sql::TRANSITION_LEASE)
        .bind(transition.route.as_str())
        .bind(transition.bucket.0)
        .bind(&transition.relay.as_uuid().as_bytes()[..])
        .bind(transition.epoch.0)
        .bind(now)
        .fetch_optional(connection)
        .await?;
    Ok(held.is_some())
}
