//! `requeue ID --edit`: a dead letter that is corrected, and sent again.

use std::collections::BTreeMap;
use std::io::Read;

use outbox::admin::{Edit, Filter, View};
use outbox::{Headers, Key, MessageId, Timestamp, Topic};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::app::App;
use crate::args::Select;
use crate::commands::list;
use crate::exit::{Exit, Failed, Outcome};

/// Fields of an edit, under the names of `dead show --json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Fields {
    id: Option<MessageId>,
    topic: Option<String>,
    #[serde(deserialize_with = "given")]
    key: Option<Option<String>>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    schema_version: Option<u32>,
    content_type: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    payload: Option<Value>,
    payload_text: Option<String>,
    payload_hex: Option<String>,
    occurred_at: Option<String>,
}

/// Reads a value that may be null, and differs from one that is absent.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(value: D) -> Result<Option<T>, D::Error> {
    T::deserialize(value).map(Some)
}

impl Fields {
    fn edit(self) -> Result<Edit, Failed> {
        let mut edit = Edit { id: self.id, event_type: self.event_type, ..Edit::default() };
        (edit.schema_version, edit.content_type) = (self.schema_version, self.content_type);
        edit.topic = self.topic.map(Topic::new).transpose()?;
        edit.key = self.key.map(|key| key.map(Key::new).transpose()).transpose()?;
        if let Some(given) = self.headers {
            let mut headers = Headers::new();
            for (name, value) in given {
                headers.insert(name, value)?;
            }
            edit.headers = Some(headers);
        }
        if let Some(at) = self.occurred_at {
            let wrong = || Failed::usage(format!("occurred_at: invalid time {at:?}: write RFC 3339"));
            edit.occurred_at = Some(Timestamp::parse(&at).ok_or_else(wrong)?);
        }
        let payloads = [
            self.payload.map(|payload| payload.to_string().into_bytes()),
            self.payload_text.map(String::into_bytes),
            self.payload_hex.map(|text| bytes(&text)).transpose()?,
        ];
        let mut payloads = payloads.into_iter().flatten();
        edit.payload = payloads.next().map(Into::into);
        if payloads.next().is_some() {
            return Err(Failed::usage("give one of payload, payload_text and payload_hex"));
        }
        if edit == Edit::default() {
            return Err(Failed::usage(
                r#"--edit changes nothing; write fields as JSON, as '{"topic": "orders"}'"#,
            ));
        }
        Ok(edit)
    }
}

/// Returns the bytes of hexadecimal digits.
fn bytes(text: &str) -> Result<Vec<u8>, Failed> {
    let wrong = || Failed::usage("payload_hex has to be pairs of hexadecimal digits");
    let digits: Option<Vec<u8>> =
        text.chars().map(|char| char.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0).ok_or_else(wrong)?;
    Ok(digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]).collect())
}

/// Reads the fields: JSON, or `-` for the standard input.
fn read(text: &str) -> Result<Edit, Failed> {
    let mut input = String::new();
    let text = if text == "-" {
        std::io::stdin().lock().read_to_string(&mut input)?;
        &input
    } else {
        text
    };
    let fields: Fields = serde_json::from_str(text)
        .map_err(|error| Failed::usage(format!("invalid --edit: {error}; write a JSON object of fields")))?;
    fields.edit()
}

pub(crate) async fn run(app: &App, select: &Select, edit: &str) -> Outcome {
    let [id] = select.ids[..] else {
        return Err(Failed::usage("--edit corrects one dead letter: give its id, and no other"));
    };
    let edit = read(edit)?;
    let store = app.store().await?;
    let found = list::find(&*store, View::DeadLetters, &[id]).await?;
    let Some(letter) = found.first() else { return Err(list::absent(View::DeadLetters, &[id])) };
    let edited = edit.of_message(&letter.stored.message);
    let message = edited.map_err(|wrong| Failed::error(format!("not done: {wrong}")))?;
    let object = json!({
        "operation": "requeue_edited",
        "id": message.id.to_string(),
        "topic": message.topic.as_str(),
        "key": message.key.as_ref().map(|key| key.as_str()),
        "edited": edit.fields(),
    });
    let what = format!("{} of dead letter {id}", edit.fields().join(", "));
    if select.dry_run {
        app.out.say(&format!("dry run: {what} would be replaced, and it would be requeued"), &object)?;
        return Ok(Exit::Done);
    }
    let filter = Filter {
        ids: Some(vec![id]),
        route: select.filter.of.route.clone().or_else(|| Some(letter.route.clone())),
        ..Filter::all_routes()
    };
    match app.acting(&*store).requeue_edited(&filter, &edit).await? {
        Some(_) => {
            app.out.say(&format!("replaced {what}, and requeued it"), &object)?;
            Ok(Exit::Done)
        }
        None => Err(list::absent(View::DeadLetters, &[id])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_a_shown_message() {
        let edit = read(r#"{"topic":"refunds","key":null,"payload":{"a":1},"headers":{"x":"y"}}"#).unwrap();
        assert_eq!(edit.fields(), ["topic", "key", "headers", "payload"]);
        assert_eq!(edit.key, Some(None), "null removes the key");
        assert_eq!(edit.payload.as_deref(), Some(&br#"{"a":1}"#[..]));
        assert_eq!(read(r#"{"payload_hex":"00fF"}"#).unwrap().payload.as_deref(), Some(&[0, 255][..]));
        assert_eq!(read(r#"{"type":"x"}"#).unwrap().key, None, "absent keeps the key");
        for wrong in [
            "{}",
            "[]",
            "not json",
            r#"{"typo":1}"#,
            r#"{"topic":""}"#,
            r#"{"key":"a\nb"}"#,
            r#"{"payload_hex":"0"}"#,
            r#"{"payload_hex":"zz"}"#,
            r#"{"payload":1,"payload_text":"1"}"#,
            r#"{"headers":{"":"1"}}"#,
            r#"{"occurred_at":"soon"}"#,
        ] {
            assert!(matches!(read(wrong), Err(Failed::Usage(_))), "{wrong}");
        }
    }
}
