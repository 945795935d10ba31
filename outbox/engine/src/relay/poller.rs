//! Poller: queries the store, one query at a time. The core decides what to ask and what the
//! answers mean.
//!
//! Checks below the read position run beside all other queries. A saved mark is a hint, and nothing
//! waits for these checks.

use std::sync::Arc;

use outbox_contract::backend::{FetchRequest, Fetched, FetchedRow, StripeMark};
use ractor::{ActorProcessingErr, ActorRef};
use tokio::task::JoinHandle;

use super::context::{Context, RouteFailure, in_time};
use super::core::{Answer, Event, Question};
use super::route::CoreMsg;

pub(crate) struct Poller {
    pub(crate) context: Arc<Context>,
    pub(crate) route: ActorRef<CoreMsg>,
}

pub(crate) enum PollerMsg {
    /// Query the store.
    Ask { number: u64, question: Question },
    /// Check for messages below the read position.
    LookBelow { number: u64, request: FetchRequest, with_marks: bool },
}

/// Running check below the read position; dropping this aborts it.
#[derive(Debug, Default)]
pub(crate) struct LookBelow(Option<JoinHandle<()>>);

impl Drop for LookBelow {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

#[ractor::actor(message = PollerMsg, state = LookBelow)]
impl Poller {
    async fn pre_start(&self, _myself: ActorRef<PollerMsg>, (): ()) -> Result<LookBelow, ActorProcessingErr> {
        Ok(LookBelow::default())
    }

    async fn handle(
        &self,
        _myself: ActorRef<PollerMsg>,
        message: PollerMsg,
        below: &mut LookBelow,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PollerMsg::Ask { number, question } => {
                let answer = self.ask(question).await?;
                // A route that is gone was stopped with all its state.
                let _ = self.route.cast(CoreMsg::Event(Event::Answered { number, answer }));
            }
            PollerMsg::LookBelow { number, request, with_marks } => {
                *below = self.look_below(number, request, with_marks);
            }
        }
        Ok(())
    }
}

impl Poller {
    async fn ask(&self, question: Question) -> Result<Answer, RouteFailure> {
        let Context { store, route, config, .. } = &*self.context;
        let limit = config.store_timeout;
        Ok(match question {
            Question::Fetch(request) => {
                let span = tracing::debug_span!("fetch", %route, after = request.after.0);
                let call = tracing::Instrument::instrument(store.fetch(&request), span);
                Answer::Fetched(in_time(limit, "fetch", call).await?)
            }
            Question::Due(request) => Answer::Due(in_time(limit, "due", store.due(&request)).await?),
            Question::Writers => {
                Answer::Writers(in_time(limit, "writers", store.frontier().writers()).await?)
            }
            Question::Marks(buckets) => {
                Answer::Marks(in_time(limit, "stripes", store.frontier().stripes(route, &buckets)).await?)
            }
        })
    }

    fn look_below(&self, number: u64, request: FetchRequest, with_marks: bool) -> LookBelow {
        let (context, route) = (Arc::clone(&self.context), self.route.clone());
        LookBelow(Some(tokio::spawn(async move {
            let asked = context.now();
            let answer = below(&context, &request, with_marks).await;
            let took = context.now().saturating_sub(asked);
            let answer = answer
                .inspect_err(|error| {
                    tracing::debug!(
                        route = %context.route,
                        %error,
                        "check below the saved mark failed; will retry later"
                    );
                })
                .ok();
            let _ = route.cast(CoreMsg::Event(Event::LookedBelow { number, took, answer }));
        })))
    }
}

/// Fetches messages below the saved mark. If there are any and the store has sequence shards, it
/// then reads the shards' committed marks, which cover everything that the fetch saw.
async fn below(
    context: &Context,
    request: &FetchRequest,
    with_marks: bool,
) -> Result<(Fetched, Vec<StripeMark>), RouteFailure> {
    let limit = context.config.store_timeout;
    let fetched = in_time(limit, "fetch_below", context.store.fetch_below(request)).await?;
    if !with_marks || fetched.rows.iter().all(|row| matches!(row, FetchedRow::Muted(_))) {
        return Ok((fetched, Vec::new()));
    }
    let marks = context.store.frontier().stripes(&context.route, &request.buckets);
    Ok((fetched, in_time(limit, "stripes", marks).await?))
}
