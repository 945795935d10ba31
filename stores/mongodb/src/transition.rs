//! KeyTransitions: the steps of failing keys.
//!
//! Steps are done in transactions behind a [`Fence`]: nobody takes a lease or changes a key between what a step has seen and its commit. A
//! conflict with somebody who does so starts the transaction again, with fewer steps, so that a short one gets through where others come often;
//! it is no attempt of a message. A step looks first and is refused before it has changed anything.

use mongodb::ClientSession;
use outbox_contract::backend::{KeyTransition, RowId, Step, Then, Transitioned};
use outbox_contract::{Failure, Route, StoreError, async_trait};

use crate::database::Database;
use crate::error::Failed;
use crate::fence::Fence;
use crate::keys::{Death, KeyIn, KeyState};
use crate::transaction::{Attempts, Work, once};

/// The most steps of one transaction, so that none comes near the server's limit of a minute.
const MAX_STEPS: usize = 50;

pub(crate) async fn transition(
    database: &Database,
    transitions: &[KeyTransition],
) -> Result<Vec<Transitioned>, StoreError> {
    let mut answers = Vec::with_capacity(transitions.len());
    for of_route in transitions.chunk_by(|one, next| one.route == next.route) {
        let (mut rest, mut most) = (of_route, MAX_STEPS);
        let mut attempts = Attempts::new(database.options.conflict_timeout);
        while let Some(first) = rest.first() {
            let (steps, later) = rest.split_at(most.min(rest.len()));
            match once(database, &Steps { route: &first.route, steps }, &attempts).await {
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
                let (route, key, now) = (self.route, &transition.key, fence.ownership().now());
                let step = fence.step();
                KeyIn { database, session: &mut *session, route, key, now, step }
                    .transition(transition)
                    .await?
            } else {
                Transitioned::LeaseLost
            };
            answers.push(answer);
        }
        // What was refused has changed nothing that others could meet.
        if answers.iter().any(|answer| matches!(answer, Transitioned::Done(_))) {
            fence.close(database, session, self.route).await?;
        }
        Ok(answers)
    }
}

impl KeyIn<'_> {
    async fn transition(mut self, transition: &KeyTransition) -> Result<Transitioned, Failed> {
        let state = self.state().await?;
        if transition.version.is_some() && transition.version != state.as_ref().map(|state| state.version) {
            return Ok(Transitioned::Stale);
        }
        match &transition.step {
            Step::Fail { row, attempts, first, last, then, behind } => {
                self.fail(transition, state, *row, (*attempts, first, last), *then, behind).await
            }
            Step::Park { rows } => {
                let Some(state) = state else { return Ok(Transitioned::Stale) };
                self.park(rows).await?;
                // The same state: a retry that is under way need not start again because more has come behind it.
                Ok(Transitioned::Done(Some(state.version)))
            }
            Step::Bury { row, reason, attempts, first, last } => {
                let death = Death {
                    reason: (*reason).to_owned(),
                    attempts: i64::from(*attempts),
                    first_failure: Some(first.to_text()),
                    last_failure: Some(last.to_text()),
                };
                self.bury_one(state, *row, &death).await
            }
            Step::Resume { delivered } => self.resume(state, delivered).await,
        }
    }

    async fn fail(
        mut self,
        transition: &KeyTransition,
        state: Option<KeyState>,
        row: RowId,
        failed: (u32, &Failure, &Failure),
        then: Then,
        behind: &[RowId],
    ) -> Result<Transitioned, Failed> {
        if self.park(&[row]).await? == 0 && !self.is_parked(row).await? {
            return Ok(Transitioned::Stale);
        }
        self.park(behind).await?;
        let is_first = self.first_parked().await? == Some(row.id);
        if state.is_some() && !is_first {
            // What is first decides the key's state; a later one that failed too just waits behind it.
            self.next_version().await?;
        } else {
            self.fails(state.as_ref(), transition.bucket, row.id, failed, then).await?;
        }
        Ok(Transitioned::Done(Some(self.step)))
    }

    async fn bury_one(
        mut self,
        state: Option<KeyState>,
        row: RowId,
        death: &Death,
    ) -> Result<Transitioned, Failed> {
        if !self.bury(row, death).await? {
            return Ok(Transitioned::Stale);
        }
        let Some(state) = state else { return Ok(Transitioned::Done(None)) };
        if state.failing.is_some() && state.failing == self.first_parked().await? {
            // It was not the first that was buried: that one goes on failing.
            self.next_version().await?;
        } else {
            self.goes_on(state.held).await?;
        }
        Ok(Transitioned::Done(Some(self.step)))
    }

    async fn resume(mut self, state: Option<KeyState>, delivered: &[RowId]) -> Result<Transitioned, Failed> {
        let Some(state) = state else { return Ok(Transitioned::Done(None)) };
        self.delivered(delivered).await?;
        if !state.held && self.first_parked().await?.is_none() {
            self.flows().await?;
            return Ok(Transitioned::Done(None));
        }
        self.goes_on(state.held).await?;
        Ok(Transitioned::Done(Some(self.step)))
    }
}
