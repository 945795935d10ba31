//! Diversions: the steps of failing keys.
//!
//! Steps are done in transactions behind a [`Fence`]: nobody takes a lease or changes a key between what a step has seen and its commit. A
//! conflict with somebody who does so starts the transaction again, with fewer steps, so that a short one gets through where others come often;
//! it is no attempt of a message. A step looks first and is refused before it has changed anything.

use mongodb::ClientSession;
use outbox_contract::divert::{Diversion, Diverted, Step, Then};
use outbox_contract::fetch::RowId;
use outbox_contract::{Failure, Route, StoreError, async_trait};

use crate::database::Database;
use crate::error::Failed;
use crate::fence::Fence;
use crate::keys::{Death, KeyIn, KeyState};
use crate::transaction::{Attempts, Work, once};

/// The most steps of one transaction, so that none comes near the server's limit of a minute.
const MOST_STEPS: usize = 50;

pub(crate) async fn divert(
    database: &Database,
    diversions: &[Diversion],
) -> Result<Vec<Diverted>, StoreError> {
    let mut answers = Vec::with_capacity(diversions.len());
    for of_route in diversions.chunk_by(|one, next| one.route == next.route) {
        let (mut rest, mut most) = (of_route, MOST_STEPS);
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
                    attempts.after("divert", failed).await?;
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
    steps: &'a [Diversion],
}

#[async_trait]
impl Work for Steps<'_> {
    type Done = Vec<Diverted>;

    async fn run(&self, database: &Database, session: &mut ClientSession) -> Result<Vec<Diverted>, Failed> {
        let mut fence = Fence::open(database, session, self.route).await?;
        let mut answers = Vec::with_capacity(self.steps.len());
        for diversion in self.steps {
            let answer = if fence.ownership().holds(diversion.relay, diversion.bucket, diversion.epoch) {
                let (route, key, now) = (self.route, &diversion.key, fence.ownership().now());
                let step = fence.step();
                KeyIn { database, session: &mut *session, route, key, now, step }.divert(diversion).await?
            } else {
                Diverted::LeaseLost
            };
            answers.push(answer);
        }
        // What was refused has changed nothing that others could meet.
        if answers.iter().any(|answer| matches!(answer, Diverted::Done(_))) {
            fence.close(database, session, self.route).await?;
        }
        Ok(answers)
    }
}

impl KeyIn<'_> {
    async fn divert(mut self, diversion: &Diversion) -> Result<Diverted, Failed> {
        let state = self.state().await?;
        if diversion.version.is_some() && diversion.version != state.as_ref().map(|state| state.version) {
            return Ok(Diverted::Stale);
        }
        match &diversion.step {
            Step::Fail { row, attempts, first, last, then, behind } => {
                self.fail(diversion, state, *row, (*attempts, first, last), *then, behind).await
            }
            Step::Park { rows } => {
                let Some(state) = state else { return Ok(Diverted::Stale) };
                self.park(rows).await?;
                // The same state: a retry that is under way need not start again because more has come behind it.
                Ok(Diverted::Done(Some(state.version)))
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
        diversion: &Diversion,
        state: Option<KeyState>,
        row: RowId,
        failed: (u32, &Failure, &Failure),
        then: Then,
        behind: &[RowId],
    ) -> Result<Diverted, Failed> {
        if self.park(&[row]).await? == 0 && !self.is_parked(row).await? {
            return Ok(Diverted::Stale);
        }
        self.park(behind).await?;
        let is_first = self.first_parked().await? == Some(row.id);
        if state.is_some() && !is_first {
            // What is first decides the key's state; a later one that failed too just waits behind it.
            self.next_version().await?;
        } else {
            self.fails(state.as_ref(), diversion.bucket, row.id, failed, then).await?;
        }
        Ok(Diverted::Done(Some(self.step)))
    }

    async fn bury_one(
        mut self,
        state: Option<KeyState>,
        row: RowId,
        death: &Death,
    ) -> Result<Diverted, Failed> {
        if !self.bury(row, death).await? {
            return Ok(Diverted::Stale);
        }
        let Some(state) = state else { return Ok(Diverted::Done(None)) };
        if state.failing.is_some() && state.failing == self.first_parked().await? {
            // It was not the first that was buried: that one goes on failing.
            self.next_version().await?;
        } else {
            self.goes_on(state.held).await?;
        }
        Ok(Diverted::Done(Some(self.step)))
    }

    async fn resume(mut self, state: Option<KeyState>, delivered: &[RowId]) -> Result<Diverted, Failed> {
        let Some(state) = state else { return Ok(Diverted::Done(None)) };
        self.delivered(delivered).await?;
        if !state.held && self.first_parked().await?.is_none() {
            self.flows().await?;
            return Ok(Diverted::Done(None));
        }
        self.goes_on(state.held).await?;
        Ok(Diverted::Done(Some(self.step)))
    }
}
