//! `forget`: a consumer forgets that it has handled messages.

use outbox::Admin;
use outbox::admin::HandledFilter;
use serde_json::json;

use crate::app::{App, count};
use crate::args::ForgetArgs;
use crate::exit::{Exit, Outcome};
use crate::time::Between;

/// Counts, confirms, and forgets as many, the oldest first: what is handled meanwhile is newer.
pub(crate) async fn run(app: &App, args: ForgetArgs) -> Outcome {
    let store = app.store().await?;
    let mut filter = HandledFilter::of(args.consumer)?;
    let time = Between::of(&*store, (args.since, args.before)).await?;
    (filter.topic, filter.key, filter.since, filter.before) = (args.topic, args.key, time.since, time.before);
    let selected = Admin::count_handled(&*store, &filter).await?;
    let (consumer, noun) = (filter.consumer.as_str(), count(selected, "handled message"));
    if args.dry_run {
        let told = json!({ "operation": "forget", "consumer": consumer, "selected": selected });
        app.out.say(&format!("dry run: {consumer} would forget {noun}"), &told)?;
        return Ok(Exit::Done);
    }
    if selected > 0 {
        app.confirm(&format!(
            "make {consumer} forget {noun}; if they are delivered again, they are handled again"
        ))?;
    }
    let mut done = 0;
    while done < selected {
        match Admin::forget(&*store, &filter).await? {
            0 => break,
            some => done += some,
        }
    }
    let told = json!({ "operation": "forget", "consumer": consumer, "done": done });
    app.out.say(&format!("{consumer} forgot {}", count(done, "handled message")), &told)?;
    Ok(Exit::Done)
}
