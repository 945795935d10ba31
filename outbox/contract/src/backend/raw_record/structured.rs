//! Events in structured mode: attributes and data in one JSON object.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::value::RawValue;

use super::event_attributes::Attributes;
use super::{NO_CONTENT, Raw, text};
use crate::backend::cloudevents::{is_json, media_type};

/// The beginning of all media types of CloudEvents.
const EVENTS: &str = "application/cloudevents";
const BATCH: &str = "application/cloudevents-batch";

/// An event that was read.
pub(super) struct Event<'r> {
    pub(super) attributes: Attributes<'r>,
    pub(super) payload: Bytes,
    /// Content type of the data. Empty: there is none.
    pub(super) content_type: String,
}

/// Reads an event, if the content type says that the payload is one. Data that is JSON stays as it
/// was written, digit for digit.
///
/// # Errors
///
/// In text: an encoding that is not known, a batch, or a payload that is no JSON object.
pub(super) fn read<'r>(
    content_type: &[u8],
    payload: &'r Bytes,
    notes: &mut Vec<String>,
) -> Option<Result<Event<'r>, String>> {
    let media_type = media_type(text(content_type)?);
    let encoding = media_type.strip_prefix(EVENTS)?;
    Some(match encoding {
        "" | "+json" => read_json(&media_type, payload, notes),
        _ if media_type.starts_with(BATCH) => Err(format!(
            "the content type is {media_type}, a batch of events; send each event as a message of its own"
        )),
        _ => Err(format!("the content type is {media_type}, which is not supported; send {EVENTS}+json")),
    })
}

fn read_json<'r>(media_type: &str, payload: &'r Bytes, notes: &mut Vec<String>) -> Result<Event<'r>, String> {
    let bytes = payload.strip_prefix(b"\xef\xbb\xbf").unwrap_or(payload);
    let mut members: BTreeMap<String, &'r RawValue> = serde_json::from_slice(bytes).map_err(|error| {
        format!("the payload is not a JSON object, though its content type is {media_type}: {error}")
    })?;
    let value = |member: Option<&'r RawValue>| member.map(RawValue::get).filter(|value| *value != "null");
    let (data, base64) = (value(members.remove("data")), value(members.remove("data_base64")));
    let list = members.iter().filter_map(|(name, value)| member(name, value.get(), notes)).collect();
    let attributes = Attributes::of_members(list);
    let content_type = attributes.get("datacontenttype").map(String::from_utf8_lossy).unwrap_or_default();
    let mut content_type = content_type.into_owned();
    let is_empty = data.is_none() && base64.is_none();
    if content_type.is_empty() && !is_empty {
        NO_CONTENT.clone_into(&mut content_type);
    }
    if data.is_some() && base64.is_some() {
        notes.push("the event has both data and data_base64; data is ignored".to_owned());
    }
    // Copied, so that nothing of the record stays in memory that the message does not count.
    let payload = match (base64, data) {
        (Some(base64), _) => decoded(base64)?,
        (None, Some(data)) if is_json(&content_type) => Bytes::copy_from_slice(data.as_bytes()),
        (None, Some(data)) => match serde_json::from_str::<String>(data) {
            Ok(text) => text.into(),
            Err(_) => Bytes::copy_from_slice(data.as_bytes()),
        },
        (None, None) => Bytes::new(),
    };
    Ok(Event { attributes, payload, content_type })
}

/// An attribute. `None`: it is null, as one that is not there.
fn member<'r>(name: &str, value: &'r str, notes: &mut Vec<String>) -> Option<(Cow<'r, str>, Raw<'r>)> {
    if value == "null" {
        return None;
    }
    let name = name.to_ascii_lowercase();
    let value = match serde_json::from_str::<Cow<'r, str>>(value) {
        Ok(text) => Cow::Owned(text.into_owned().into_bytes()),
        Err(_) => {
            if value.starts_with(['"', '{', '[']) {
                notes.push(format!("{name:?} is not a string, number or boolean; kept as JSON text"));
            }
            Cow::Borrowed(value.as_bytes())
        }
    };
    Some((Cow::Owned(name), value))
}

fn decoded(base64: &str) -> Result<Bytes, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("data_base64 is not valid Base64: {error}");
    let text: String = serde_json::from_str(base64).map_err(|error| wrong(&error))?;
    STANDARD.decode(text.trim()).map(Bytes::from).map_err(|error| wrong(&error))
}

#[cfg(test)]
mod tests {
    use crate::backend::RawRecord;
    use crate::backend::cloudevents::{ADAPTED, AMQP, Binding, HTTP, KAFKA};
    use crate::clock::Timestamp;
    use crate::message::Message;
    use crate::name::Key;

    const STRUCTURED: &str = "application/cloudevents+json";

    /// Reads an event with these members more, by the content type of the protocol and by a header.
    fn each(more: &str, test: impl Fn(Result<Message, String>)) {
        for binding in [KAFKA, AMQP, HTTP] {
            for by_header in [true, false] {
                test(read_as(STRUCTURED, binding, by_header, more));
            }
        }
    }

    fn record<'r>(content_type: &'r str, binding: Binding, by_header: bool, more: &str) -> RawRecord<'r> {
        let body = format!(r#"{{"specversion":"1.0","id":"17","source":"/legacy","type":"x"{more}}}"#);
        let mut record = RawRecord::new(binding, body.into());
        if by_header {
            record.push(&b"Content-Type"[..], content_type.as_bytes());
            return record;
        }
        record.with_content_type(Some(content_type.as_bytes()))
    }

    fn read_as(content_type: &str, binding: Binding, by_header: bool, more: &str) -> Result<Message, String> {
        let read = record(content_type, binding, by_header, more).message(&"orders".parse().unwrap());
        read.map(|(message, _)| message).map_err(|undecodable| undecodable.reason)
    }

    fn one(more: &str) -> Message {
        read_as(STRUCTURED, KAFKA, true, more).unwrap()
    }

    #[test]
    fn an_event_in_structured_mode_is_read_on_every_transport() {
        let more = r#","time":"2023-11-14T22:13:20Z","subject":"line-1","partitionkey":"k","tenantid":"acme",
            "priority":7,"urgent":true,"gone":null,"data":{"b": 1.0,"a":12345678901234567890123}"#;
        each(more, |read| {
            let message = read.unwrap();
            assert_eq!(message.payload, r#"{"b": 1.0,"a":12345678901234567890123}"#, "as it was written");
            assert_eq!((&*message.event_type, &*message.content_type), ("x", "application/json"));
            assert_eq!((message.source(), &*message.event_id()), (Some("/legacy"), "17"));
            assert_eq!(
                (message.subject(), message.key.as_ref().map(Key::as_str)),
                (Some("line-1"), Some("k"))
            );
            assert_eq!(message.occurred_at, Timestamp::from_micros(1_700_000_000_000_000));
            let extensions: Vec<_> = message.extensions().collect();
            assert_eq!(extensions, [("priority", "7"), ("tenantid", "acme"), ("urgent", "true")]);
            assert_eq!(message.headers.get(ADAPTED), None);
        });
    }

    #[test]
    fn the_content_type_decides_whatever_its_case_and_parameters_and_whatever_stands_beside_it() {
        for content_type in [
            STRUCTURED,
            "application/cloudevents+json; charset=utf-8",
            "Application/CloudEvents+JSON;charset=UTF-8",
            "application/cloudevents",
        ] {
            let mut both = record(content_type, KAFKA, true, r#","data":1"#);
            for (name, value) in
                [("specversion", "1.0"), ("id", "18"), ("source", "/other"), ("type", "y"), ("tenantid", "a")]
            {
                both.push(format!("ce_{name}").into_bytes(), value.as_bytes());
            }
            both.push(&b"tenant"[..], &b"acme"[..]);
            let (message, _) = both.with_key(Some(b"k")).message(&"orders".parse().unwrap()).unwrap();
            assert_eq!(
                (&*message.event_type, &*message.event_id(), message.source()),
                ("x", "17", Some("/legacy"))
            );
            assert_eq!((message.extensions().count(), message.headers.get("tenant")), (0, Some("acme")));
            assert_eq!((message.key.as_ref().map(Key::as_str), &message.payload[..]), (Some("k"), &b"1"[..]));
        }
    }

    #[test]
    fn data_is_text_bytes_or_json_as_its_content_type_says() {
        for (more, content_type, payload) in [
            (r#","data":"two\nlines","datacontenttype":"text/plain""#, "text/plain", &b"two\nlines"[..]),
            (r#","data":"text""#, "application/json", br#""text""#),
            (r#","data":[1],"datacontenttype":"application/vnd.x+json""#, "application/vnd.x+json", b"[1]"),
            (r#","data":{"a":1},"datacontenttype":"text/xml""#, "text/xml", br#"{"a":1}"#),
            (r#","data_base64":"/wD+","datacontenttype":"image/png""#, "image/png", b"\xff\0\xfe"),
            (r#","data_base64":"e30=""#, "application/json", b"{}"),
            ("", "application/octet-stream", b""),
            (r#","data":null"#, "application/octet-stream", b""),
        ] {
            each(more, |read| {
                let message = read.unwrap();
                assert_eq!((&*message.content_type, &message.payload[..]), (content_type, payload), "{more}");
                assert_eq!(message.headers.get(ADAPTED), None, "{more}");
            });
        }
        let both = one(r#","data":1,"data_base64":"e30=""#);
        assert_eq!(both.payload, "{}");
        assert!(both.headers.get(ADAPTED).unwrap().contains("both data and data_base64"));
    }

    #[test]
    fn what_is_odd_and_not_needed_is_taken_as_far_as_it_goes() {
        let message =
            one(r#","time":1700000000123,"list":[1],"half":"\ud800","bad name\n":1,"schemaversion":"1.2.0""#);
        assert_eq!(message.occurred_at, Timestamp::from_micros(1_700_000_000_123_000));
        assert_eq!(
            (message.extension("list"), message.extension("half")),
            (Some("[1]"), Some(r#""\ud800""#))
        );
        let note = message.headers.get(ADAPTED).unwrap();
        assert!(
            ["list", "half", "is left out", "schemaversion is"].iter().all(|part| note.contains(part)),
            "{note}"
        );
    }

    #[test]
    fn what_is_none_says_why() {
        for (content_type, more, reason) in [
            (
                "application/cloudevents-batch+json",
                "",
                "a batch of events; send each event as a message of its own",
            ),
            ("application/cloudevents+avro", "", "which is not supported; send application/cloudevents+json"),
            (STRUCTURED, ",", "the payload is not a JSON object"),
            (STRUCTURED, r#","data_base64":"!""#, "data_base64 is not valid Base64"),
            (STRUCTURED, r#","data_base64":1"#, "data_base64 is not valid Base64"),
            (STRUCTURED, r#","id":"""#, "id is \"\""),
            (STRUCTURED, r#","type":null"#, "attribute type is missing"),
        ] {
            let error = read_as(content_type, AMQP, false, more).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    /// Deep JSON is as good as flat JSON.
    #[test]
    fn data_is_as_deep_as_it_is() {
        let deep = format!(r#","data":{}{}"#, "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(one(&deep).payload.len(), 20_000);
    }

    proptest::proptest! {
        #[test]
        fn nothing_makes_the_reader_panic(payload in "\\PC{0,60}|(\\{\"(data|data_base64|id|time|x)\":(\"[a-z]{0,4}\"|1|null|\\[\\])\\})") {
            let record = RawRecord::new(KAFKA, payload.into()).with_content_type(Some(STRUCTURED.as_bytes()));
            let _ = record.message(&"orders".parse().unwrap());
        }
    }
}
