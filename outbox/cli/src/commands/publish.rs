//! `publish`: a message through the outbox, for a test.

use std::io::Read;

use outbox::Message;
use outbox::message::Outgoing;
use serde_json::json;

use crate::app::App;
use crate::args::PublishArgs;
use crate::exit::{Exit, Failed, Outcome};

pub(crate) async fn run(app: &App, args: PublishArgs) -> Outcome {
    let outgoing = outgoing(args)?;
    let store = app.store().await?;
    let id = outgoing.message.id;
    store.append_all(std::slice::from_ref(&outgoing)).await?;
    let (topic, route) = (outgoing.message.topic.as_str(), outgoing.route.as_str());
    app.out.say(
        &format!("appended {id} to topic {topic}, route {route}"),
        &json!({ "id": id.to_string(), "topic": topic, "route": route }),
    )?;
    Ok(Exit::Done)
}

fn outgoing(args: PublishArgs) -> Result<Outgoing, Failed> {
    let data = if args.data == "-" {
        let mut data = Vec::new();
        std::io::stdin().lock().read_to_end(&mut data)?;
        data
    } else {
        args.data.into_bytes()
    };
    if args.content_type == "application/json"
        && let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(&data)
    {
        return Err(Failed::usage(format!(
            "the data is not JSON ({error}); quote it for the shell, or name another --content-type"
        )));
    }
    let mut message =
        Message::new(args.topic, args.event_type)?.with_content_type(args.content_type).with_payload(data);
    message.key = args.key;
    for header in args.header {
        let Some((name, value)) = header.split_once('=') else {
            return Err(Failed::usage("a header has no `=`; write --header NAME=VALUE"));
        };
        message = message.with_header(name, value)?;
    }
    let mut outgoing = Outgoing::from(message).by(args.route);
    outgoing.due = args.due;
    Ok(outgoing)
}
