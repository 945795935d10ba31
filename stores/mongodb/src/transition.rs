//! Transitions of failing keys.
//!
//! Steps are done in transactions behind a [`Fence`]: no lease or key changes between what a step
//! has seen and its commit. A conflict with somebody who does so starts the transaction again, with
//! fewer steps, so that a short one gets through where others come often; it is no attempt of a
//! message. A step looks first and is refused before it has changed anything.

use mongodb::ClientSession;
use outbox_contract::admin::Actor;
use outbox_contract::backend::rules::failing_key;
use outbox_contract::backend::{AuditNote, KeyTransition, Step, Transitioned};
use outbox_contract::{Route, StoreError, async_trait};

use crate::audit;
use crate::database::Database;
use crate::error::Failed;
use crate::fence::Fence;
use crate::keys::{Death, KeyIn};
use crate::transaction::{Attempts, Work, once};

/// The most steps of one transaction, so that none comes near the server's limit of a minute.
const MAX_STEPS: usize = 50;

pub(crate) async fn transition(
    database: &Database,
    transitions: &[KeyTransition],
    actor: &Actor,
) -> Result<Vec<Transitioned>, StoreError> {
    let mut answers = Vec::with_capacity(transitions.len());
    for of_route in transitions.chunk_by(|one, next| one.route == next.route) {
        let (mut rest, mut most) = (of_route, MAX_STEPS);
        let mut attempts = Attempts::new(database.options.conflict_timeout);
        while let Some(first) = rest.first() {
            let (steps, later) = rest.split_at(most.min(rest.len()));
            match once(database, &Steps { route: &first.route, steps, actor }, &attempts).await {
                Ok(done) => {
                    answers.extend(done);
                    rest = later;
                    attempts = Attempts::new(database.options.conflict_timeout);
                }
                Err(failed) => {
                    attempts.after("transition", failed).await?;
                    most = (steps.len() / 2).max(1);
                }
            }
        }
    }
    Ok(answers)
}

/// Steps of one route.
struct Steps<'a> {
    route: &'a Route,
    steps: &'a [KeyTransition],
    actor: &'a Actor,
}

#[async_trait]
impl Work for Steps<'_> {
    type Done = Vec<Transitioned>;

    async fn run(
        &self,
        database: &Database,
        session: &mut ClientSession,
    ) -> Result<Vec<Transitioned>, Failed> {
        let mut fence = Fence::open(database, session, self.route).await?;
        let mut answers = Vec::with_capacity(self.steps.len());
        for transition in self.steps {
            let answer = if fence.ownership().holds(transition.relay, transition.bucket, transition.epoch) {
                let (route, now, step) = (self.route, fence.ownership().now(), fence.step());
                let (key, bucket) = (&transition.key, transition.bucket);
                KeyIn { database, session: &mut *session, route, key, bucket, now, step }
                    .transition(transition, self.actor)
                    .await?
            } else {
                Transitioned::LeaseLost
            };
            answers.push(answer);
        }
        // Refused steps have changed nothing that could conflict.
        if answers.iter().any(|answer| matches!(answer, Transitioned::Done(_))) {
            fence.close(database, session, self.route).await?;
        }
        Ok(answers)
    }
}

impl KeyIn<'_> {
    async fn transition(mut self, transition: &KeyTransition, actor: &Actor) -> Result<Transitioned, Failed> {
        let state = self.state().await?;
        let step = &transition.step;
        if failing_key::is_stale(state.as_ref(), transition) || !self.move_messages(step).await? {
            return Ok(Transitioned::Stale);
        }
        if let Some((note, id)) = AuditNote::discarded(actor, transition) {
            audit::write(self.database, &mut *self.session, &note, self.now, (1, &[id])).await?;
        }
        let first = match failing_key::depends_on_first(state.as_ref(), step) {
            true => self.first_parked().await?,
            false => None,
        };
        let next = failing_key::after(state.clone(), step, first, self.step, self.instant());
        self.put(state.as_ref(), next.as_ref()).await?;
        Ok(Transitioned::Done(next.map(|state| state.version)))
    }

    /// Moves the messages of a step. False: its own message is neither hot nor parked, and nothing
    /// has changed.
    async fn move_messages(&mut self, step: &Step) -> Result<bool, Failed> {
        match step {
            Step::Fail { row, behind, .. } => {
                let is_there = self.park(&[*row]).await? > 0 || self.is_parked(*row).await?;
                if is_there {
                    self.park(behind).await?;
                }
                Ok(is_there)
            }
            Step::Park { rows } => self.park(rows).await.map(|_| true),
            Step::Bury { row, discard: true, .. } => Ok(!self.take(*row).await?.is_empty()),
            Step::Bury { row, discard: false, reason, attempts, first, last } => {
                let death = Death {
                    reason: (*reason).to_owned(),
                    attempts: i64::from(*attempts),
                    first_failure: Some(first.to_text()),
                    last_failure: Some(last.to_text()),
                };
                self.bury(*row, &death).await
            }
            Step::Resume { delivered } => self.delivered(delivered).await.map(|()| true),
        }
    }
}
