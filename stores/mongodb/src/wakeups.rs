//! Wake-ups: rings of this process, and what a change stream hears of others where the server has
//! them.
//!
//! A stream that hears of something is closed and opened again after a pause, and rings once more
//! then: under load it costs a few commands a second in place of an event for each message, and
//! what came during the pause is covered.

use std::sync::Arc;
use std::time::Duration;

use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use mongodb::bson::doc;
use outbox_contract::backend::{Wakeup, WakeupSignal};

use crate::database::Database;
use crate::error::has_no_change_streams;

/// Minimum interval between two wake-ups of the server.
const PAUSE: Duration = Duration::from_millis(50);

/// The pauses after a stream that broke.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Never ends.
pub(crate) fn wakeups(database: &Arc<Database>, wakeup_signal: &WakeupSignal) -> BoxStream<'static, Wakeup> {
    let rings = wakeup_signal.listen().into_stream();
    if !database.options.change_streams {
        return rings.boxed();
    }
    stream::select(rings, changes(Arc::clone(database))).boxed()
}

/// Next action of the listener.
enum State {
    /// Opens the stream; after a pause where there was one before.
    Open { pause: Duration, retry: Duration },
    /// Waits for what an open stream hears.
    Hear(Box<mongodb::change_stream::ChangeStream<mongodb::change_stream::event::ChangeStreamEvent<Name>>>),
    /// The server has no change streams.
    Poll,
}

/// Of a change, nothing is read but that it was one.
#[derive(serde::Deserialize)]
struct Name {}

fn changes(database: Arc<Database>) -> BoxStream<'static, Wakeup> {
    let first = State::Open { pause: Duration::ZERO, retry: FIRST_RETRY };
    stream::unfold((database, first), |(database, mut state)| async move {
        loop {
            state = match state {
                State::Poll => std::future::pending().await,
                State::Open { pause, retry } => {
                    tokio::time::sleep(pause).await;
                    match open(&database).await {
                        // Commits from before the stream was open are found by looking once.
                        Ok(stream) => return Some((Wakeup::Now, (database, State::Hear(Box::new(stream))))),
                        Err(error) if has_no_change_streams(&error) => {
                            tracing::info!(%error, "no change streams here; messages of other programs are found by polling");
                            State::Poll
                        }
                        Err(error) => {
                            tracing::warn!(%error, ?retry, "the change stream broke; messages of other programs are found by polling until it is back");
                            State::Open { pause: retry, retry: (retry * 2).min(LONGEST_RETRY) }
                        }
                    }
                }
                State::Hear(mut stream) => match stream.next().await {
                    Some(Ok(_)) => {
                        drop(stream);
                        let next = State::Open { pause: PAUSE, retry: FIRST_RETRY };
                        return Some((Wakeup::Now, (database, next)));
                    }
                    Some(Err(_)) | None => State::Open { pause: FIRST_RETRY, retry: FIRST_RETRY },
                },
            };
        }
    })
    .boxed()
}

async fn open(
    database: &Database,
) -> mongodb::error::Result<
    mongodb::change_stream::ChangeStream<mongodb::change_stream::event::ChangeStreamEvent<Name>>,
> {
    let pipeline = [
        doc! { "$match": { "operationType": "insert" } },
        doc! { "$project": { "operationType": 1, "ns": 1 } },
    ];
    database.inner.collection::<Name>(crate::database::MESSAGE).watch().pipeline(pipeline).await
}
