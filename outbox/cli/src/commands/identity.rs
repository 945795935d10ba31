//! `identity`: the identity of the outbox, and a new one.

use outbox::Admin;
use serde_json::json;

use crate::app::App;
use crate::exit::{Exit, Outcome};

pub(crate) async fn run(app: &App, renew: bool) -> Outcome {
    let store = app.store().await?;
    let before = Admin::identity(&*store).await?;
    if !renew {
        app.out.say(&before.source(), &json!({ "source": before.source() }))?;
        return Ok(Exit::Done);
    }
    app.confirm(&format!(
        "give the outbox a new identity in place of {}; consumers then take repeats of what it has sent for new messages",
        before.source()
    ))?;
    let now = app.acting(&*store).renew_identity().await?;
    app.out.say(
        &format!("{}\nRelays use it from their next start.", now.source()),
        &json!({ "source": now.source(), "before": before.source() }),
    )?;
    Ok(Exit::Done)
}
