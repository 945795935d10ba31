//! Records of other producers, and the messages made of them.

use super::*;
use crate::backend::cloudevents::{AMQP, HTTP, KAFKA, identity};

const ATTRIBUTES: [(&str, &str); 4] =
    [("specversion", "1.0"), ("id", "17"), ("source", "/legacy"), ("type", "x")];
const EVERY: [Binding; 3] = [KAFKA, AMQP, HTTP];

fn topic() -> Topic {
    Topic::new("orders").unwrap()
}

/// An event of another producer, with these attributes more, or in place of what it has.
fn record<'r>(binding: Binding, attributes: &[(&str, &'r [u8])]) -> RawRecord<'r> {
    let mut record = RawRecord::new(binding, Bytes::from_static(b"{}"));
    let are_replaced = |name: &str| attributes.iter().any(|(other, _)| *other == name);
    let others = ATTRIBUTES.iter().filter(|(name, _)| !are_replaced(name));
    for (name, value) in
        others.map(|(name, value)| (*name, value.as_bytes())).chain(attributes.iter().copied())
    {
        record.push(format!("{}{name}", binding.prefix).into_bytes(), value);
    }
    record
}

fn read(record: RawRecord<'_>) -> Message {
    record.message(&topic()).unwrap().0
}

/// Names of the headers that are no attributes of the event.
fn own(message: &Message) -> Vec<&str> {
    message.headers.iter().map(|(name, _)| name).filter(|name| !name.starts_with("ce-")).collect()
}

/// A message of which this was noted, and nothing else.
fn noted(record: RawRecord<'_>, words: &str) -> Message {
    let message = read(record);
    let note = message.headers.get(ADAPTED).unwrap_or_default();
    assert!(note.contains(words), "{note:?} says {words:?}");
    assert!(message.validate().is_ok());
    message
}

#[test]
fn what_is_as_it_should_be_has_no_note() {
    for binding in EVERY {
        let mut plain = record(
            binding,
            &[("subject", "line-1".as_bytes()), ("sequence", b"first"), ("dataschema", b"/x")],
        );
        plain.push(&b"tenant"[..], &b"acme"[..]);
        plain.push(&b"empty"[..], &b""[..]);
        let message = read(plain);
        let of_the_event = [
            ("ce-dataschema", "/x"),
            ("ce-id", "17"),
            ("ce-sequence", "first"),
            ("ce-source", "/legacy"),
            ("ce-subject", "line-1"),
        ];
        let own = [("empty", ""), ("tenant", "acme")];
        assert!(message.headers.iter().eq(of_the_event.into_iter().chain(own)), "{:?}", message.headers);
        assert_eq!((&*message.content_type, message.schema_version), (UNKNOWN_CONTENT, 1));
    }
}

#[test]
fn a_header_that_can_not_be_kept_as_it_is_is_kept_as_far_as_it_goes() {
    let long = "é".repeat(5_000);
    for binding in EVERY {
        for (value, kept, words) in [
            (&b"two\nlines"[..], "two\\nlines", "control characters are escaped"),
            (b"\0\0\0\x07", "\\u{0}\\u{0}\\u{0}\\u{7}", "control characters are escaped"),
            (b"\xff\x07a", "\\xff\\x07a", "not UTF-8"),
            (long.as_bytes(), &long[..8_192], "cut from 10000 bytes to 8192"),
        ] {
            let mut record = record(binding, &[]);
            record.push(&b"x-secret"[..], value);
            record.push(&b"tenant"[..], &b"acme"[..]);
            let message = noted(record, words);
            assert_eq!(
                (message.headers.get("x-secret"), message.headers.get("tenant")),
                (Some(kept), Some("acme"))
            );
            let note = message.headers.get(ADAPTED).unwrap();
            assert!(note.contains("x-secret") && !note.contains(kept) && !note.contains("tenant"), "{note}");
        }
    }
}

#[test]
fn a_header_whose_name_can_be_none_is_left_out() {
    let long = "n".repeat(256);
    for name in [&b""[..], b"a\nb", b"\xff", long.as_bytes()] {
        let mut record = record(HTTP, &[]);
        record.push(name, &b"value"[..]);
        record.push(&b"tenant"[..], &b"acme"[..]);
        let message = noted(record, "is left out");
        assert_eq!(own(&message), [ADAPTED, "tenant"]);
    }
}

/// As the protocol's own property, and as a header.
#[test]
fn a_content_type_that_is_none_is_unknown() {
    let long = "t".repeat(256);
    for wrong in [&b"a\nb"[..], b"\xff", long.as_bytes()] {
        let mut header = record(KAFKA, &[]);
        header.push(&b"Content-Type"[..], wrong);
        for record in [header, record(AMQP, &[]).with_content_type(Some(wrong))] {
            assert_eq!(&*noted(record, "content-type is").content_type, UNKNOWN_CONTENT);
        }
    }
    let mut both = record(AMQP, &[]);
    both.push(&b"content-type"[..], &b"text/plain"[..]);
    assert_eq!(&*read(both.clone()).content_type, "text/plain");
    let empty = read(both.clone().with_content_type(Some(b"")));
    assert_eq!((&*empty.content_type, own(&empty).len()), (UNKNOWN_CONTENT, 0));
    assert_eq!(&*read(both.with_content_type(Some(b"text/html"))).content_type, "text/html");
}

#[test]
fn attributes_that_an_event_can_do_without_are_ignored_where_they_are_wrong() {
    for wrong in [&b"1.2.0"[..], b"0", b"-1", b"", b"4294967296", b"\xff"] {
        let message = noted(record(KAFKA, &[("schemaversion", wrong)]), "ce_schemaversion is");
        assert_eq!(message.schema_version, 1);
    }
    let late = b"0000-01-01T00:00:00+23:00";
    for wrong in [&b"yesterday"[..], b"", b"\xff", late] {
        let message = noted(record(HTTP, &[("time", wrong)]), "ce-time is");
        assert_eq!(message.occurred_at, Timestamp::default());
    }
    let long = "t".repeat(250);
    for wrong in [&b""[..], b"a\nb", b"\xff", long.as_bytes()] {
        let message = noted(record(AMQP, &[("topic", wrong)]), "cloudEvents:topic is");
        assert_eq!(message.topic, topic());
    }
    let message = noted(record(KAFKA, &[("schemaversion", b"1.2.0"), ("time", b"now")]), "ce_time is");
    assert!(message.headers.get(ADAPTED).unwrap().contains("; ce_schemaversion is \"1.2.0\""));
}

#[test]
fn what_an_event_needs_has_to_be_there_and_to_be_right() {
    let long = "t".repeat(256);
    for (name, wrong) in [
        ("specversion", &b"0.3"[..]),
        ("specversion", b"\xff"),
        ("id", b""),
        ("id", b"\xff"),
        ("source", b"\xff"),
        ("type", b""),
        ("type", b"a\nb"),
        ("type", b"\xff"),
        ("type", long.as_bytes()),
    ] {
        let mut record = record(KAFKA, &[(name, wrong), ("partitionkey", b"\0\x07")]);
        record.push(&b"bytes"[..], &b"\xff"[..]);
        record.note("a header was left out");
        let error = record.message(&topic()).unwrap_err();
        assert!(error.reason.contains(name), "{name}: {}", error.reason);
        assert_eq!((&error.payload[..], error.key.as_deref()), (&b"{}"[..], Some(&b"\0\x07"[..])));
        let kept =
            |name: &str| error.headers.iter().find(|(other, _)| other == name).map(|(_, value)| &**value);
        assert_eq!((kept("bytes"), kept(ADAPTED)), (Some("\\xff"), Some("a header was left out")));
    }
    let missing =
        |payload| RawRecord::new(KAFKA, Bytes::from_static(payload)).message(&topic()).unwrap_err().reason;
    let all = "the CloudEvents attributes ce_specversion, ce_id, ce_source and ce_type are missing";
    assert!(missing(b"{}").starts_with(all) && missing(b"{}").contains("map_records"), "{}", missing(b"{}"));
    let structured = missing(br#" {"specversion":"1.0","id":"1","source":"/s","type":"x"}"#);
    assert!(structured.contains("application/cloudevents+json"), "{structured}");
    let mut missing = RawRecord::new(KAFKA, Bytes::from_static(b"{}"));
    missing.push(&b"ce_id"[..], &b"1"[..]);
    let error = missing.message(&topic()).unwrap_err();
    assert_eq!(error.reason, "the CloudEvents attribute ce_specversion is missing");
    assert_eq!((&error.payload[..], error.headers.len(), error.key), (&b"{}"[..], 1, None));
}

/// Only the reader itself says what it has changed.
#[test]
fn a_note_of_another_program_is_none() {
    let mut record = record(HTTP, &[]);
    record.push(ADAPTED.as_bytes(), &b"nothing"[..]);
    assert!(own(&read(record)).is_empty());
}

/// The broker's ordering key takes precedence over attributes of the event.
#[test]
fn the_key_of_the_protocol_goes_before_the_subject_and_behind_the_partition_key() {
    let key = |named: &[(&str, &'static [u8])], key: Option<&'static [u8]>| {
        read(record(KAFKA, named).with_key(key)).key.map(|key| key.to_string())
    };
    let both = [("subject", &b"line-1"[..]), ("partitionkey", &b"order-1"[..])];
    assert_eq!(key(&both, Some(b"k")).as_deref(), Some("order-1"));
    assert_eq!(key(&both[..1], Some(b"k")).as_deref(), Some("k"));
    assert_eq!(key(&both[..1], Some(&[0, 7])).as_deref(), Some("0x0007"));
    assert_eq!(key(&both[..1], None).as_deref(), Some("line-1"));
    assert_eq!(key(&[("partitionkey", b"")], Some(b"k")).as_deref(), Some("k"));
    assert_eq!(key(&[], None), None);
    let mut numbered =
        [("subject", &b"line-1"[..]), ("sequence", b"42"), ("id", b"0190a1b2-0000-7000-8000-000000000001")];
    assert_eq!(key(&numbered, None).as_deref(), Some("line-1"), "others number their events too");
    numbered[1].1 = b"00000000000000000042";
    assert_eq!(key(&numbered, None), None, "an outbox has a key of its own");
}

/// Equal bytes are equal keys, on every protocol and whatever they are.
#[test]
fn a_key_is_whatever_bytes_it_is() {
    let long = [b'x'; 300];
    for binding in EVERY {
        for name in ["partitionkey", "subject"] {
            let key = |bytes: &[u8]| read(record(binding, &[(name, bytes)])).key.unwrap();
            for bytes in [&b"order-1"[..], b"\0\0\0\x07", b"\xff\xfe", b"a\nb", &long] {
                assert_eq!(key(bytes), Key::of_bytes(bytes), "{name}");
            }
        }
    }
}

#[test]
fn a_foreign_event_keeps_its_identity() {
    let id = |id: &[u8]| read(record(KAFKA, &[("id", id)])).id;
    assert_eq!(id(b"17"), id(b"17"));
    assert_ne!(id(b"17"), id(b"18"));
}

/// Among other producers an event is known by source *and* id: the second of two sources is no
/// repeat of the first.
#[test]
fn the_same_id_of_two_producers_is_two_events() {
    let uuid = "0190a1b2-0000-7000-8000-000000000001";
    let id = |source: &str, more: &[(&str, &'static [u8])]| {
        let mut all = vec![("id", uuid.as_bytes()), ("source", source.as_bytes())];
        all.extend(more);
        read(record(KAFKA, &all)).id
    };
    assert_ne!(id("/one", &[]), id("/other", &[]));
    assert_eq!(id("/one", &[]), id("/one", &[]), "a repeat is one");
    assert_eq!(id("/shop", &[("sequence", b"7")]).to_string(), uuid, "ours has one id everywhere");
    let identity = |source| identity(source, id(source, &[("sequence", b"7")]));
    assert_ne!(identity("/one"), identity("/other"), "and not the same identity");
    assert_eq!(identity("/one"), id("/one", &[]), "numbered or not");
}

/// Every official SDK has its own: `ce_` on Kafka, `ce-` and `cloudEvents_` on RabbitMQ,
/// `cloudEvents:` of AMQP 1.0, and a bridge from HTTP passes on what HTTP made of it.
#[test]
fn an_attribute_is_read_under_every_prefix_and_that_of_the_protocol_goes_first() {
    for binding in EVERY {
        for prefix in ["ce_", "ce-", "cloudEvents:", "cloudEvents_", "Ce-", "CE_", "cloudevents:"] {
            let mut record = RawRecord::new(binding, Bytes::from_static(b"{}"));
            for (name, value) in ATTRIBUTES.into_iter().chain([("partitionkey", "k"), ("tenantid", "acme")]) {
                record.push(format!("{prefix}{name}").into_bytes(), value.as_bytes());
            }
            let message = read(record);
            assert_eq!((&*message.event_type, &*message.event_id()), ("x", "17"), "{prefix}");
            assert_eq!(message.key.as_ref().map(Key::as_str), Some("k"));
            assert_eq!((message.extension("tenantid"), own(&message).len()), (Some("acme"), 0));
        }
        for other in ["ce_", "ce-", "cloudEvents:", "cloudEvents_"] {
            let mut before = RawRecord::new(binding, Bytes::new());
            before.push(format!("{other}type").into_bytes(), &b"other"[..]);
            let mut both = record(binding, &[]);
            before.headers.append(&mut both.headers);
            let expected = if other == binding.prefix { "other" } else { "x" };
            assert_eq!(&*read(before).event_type, expected, "{other}");
        }
    }
}

#[test]
fn a_time_is_text_or_a_number_of_any_unit() {
    let time = |text: &str| read(record(AMQP, &[("time", text.to_owned().leak().as_bytes())])).occurred_at;
    let expected = Timestamp::from_micros(1_700_000_000_123_000);
    for text in [
        "2023-11-14T22:13:20.123Z",
        "2023-11-15T03:43:20.123000+05:30",
        "1700000000123",
        "1700000000123000",
        "1700000000123000000",
    ] {
        assert_eq!(time(text), expected, "{text}");
    }
    assert_eq!(time("1700000000"), Timestamp::from_micros(1_700_000_000_000_000));
    assert_eq!(time("-1700000000123"), Timestamp::from_micros(-1_700_000_000_123_000));
    for wrong in ["99999999999999999999", "1e9", "1.5", "-"] {
        let message = noted(record(AMQP, &[("time", wrong.as_bytes())]), "cloudEvents:time is");
        assert_eq!(message.occurred_at, Timestamp::default(), "{wrong}");
    }
}

#[test]
fn who_handles_an_event_finds_all_of_its_attributes() {
    for binding in EVERY {
        let long = "é".repeat(5_000);
        let message = read(record(
            binding,
            &[
                ("subject", b"line-1"),
                ("dataschema", b"https://example.com/order"),
                ("tenantid", b"acme"),
                ("expirytime", b"2030-01-01T00:00:00Z"),
                ("empty", b""),
                ("long", long.as_bytes()),
                ("binary", b"\xff\n"),
            ],
        ));
        assert_eq!((message.source(), &*message.event_id()), (Some("/legacy"), "17"));
        assert_eq!(message.subject(), Some("line-1"));
        assert_eq!(message.data_schema(), Some("https://example.com/order"));
        let extensions: Vec<_> = message.extensions().collect();
        assert_eq!(extensions[..2], [("binary", "\\xff\\n"), ("expirytime", "2030-01-01T00:00:00Z")]);
        assert_eq!((extensions[2], extensions[3]), (("long", &long[..8_192]), ("tenantid", "acme")));
        assert_eq!(extensions.len(), 4, "an empty attribute is none");
        let note = message.headers.get(ADAPTED).unwrap();
        assert!(
            note.contains("ce-long") && note.contains("ce-binary") && !note.contains("tenantid"),
            "{note}"
        );
    }
}

#[test]
fn a_trace_is_that_of_the_header_else_that_of_the_attribute() {
    let attribute = ("traceparent", &b"00-1-1-00"[..]);
    let state = ("tracestate", &b"a=b"[..]);
    let message = read(record(KAFKA, &[attribute, state]));
    assert_eq!(
        (message.headers.get("traceparent"), message.headers.get("tracestate")),
        (Some("00-1-1-00"), Some("a=b"))
    );
    assert_eq!(message.extension("traceparent"), Some("00-1-1-00"));
    let mut both = record(KAFKA, &[attribute, state]);
    both.push(&b"traceparent"[..], &b"00-2-2-00"[..]);
    let message = read(both);
    assert_eq!(
        (message.headers.get("traceparent"), message.headers.get("tracestate")),
        (Some("00-2-2-00"), None)
    );
}

#[test]
fn what_has_no_payload_is_not_what_has_an_empty_one() {
    for is_null in [true, false] {
        let mut record = record(KAFKA, &[]);
        record.payload = Bytes::new();
        assert_eq!(read(record.with_null(is_null)).is_tombstone(), is_null);
    }
    assert!(RawRecord::new(KAFKA, Bytes::new()).with_null(true).undecodable("no").is_null);
    let mut attribute = record(HTTP, &[("tombstone", b"true")]);
    assert!(!read(attribute.clone()).is_tombstone(), "it has a payload");
    attribute.payload = Bytes::new();
    assert!(read(attribute).is_tombstone());
}

#[test]
fn a_record_that_is_none_keeps_its_content_type() {
    let content_type = |record: RawRecord<'_>| {
        let headers = record.undecodable("no").headers;
        headers.into_iter().filter(|(name, _)| name.eq_ignore_ascii_case(CONTENT_TYPE)).collect::<Vec<_>>()
    };
    let plain = RawRecord::new(AMQP, Bytes::new()).with_content_type(Some(b"text/plain"));
    assert_eq!(content_type(plain.clone()), [(CONTENT_TYPE.to_owned(), "text/plain".to_owned())]);
    let mut both = plain;
    both.push(&b"Content-Type"[..], &b"text/html"[..]);
    assert_eq!(content_type(both).len(), 1);
}

proptest::proptest! {
    /// With all that an event needs, nothing else makes it none.
    #[test]
    fn nothing_from_the_wire_makes_the_reader_panic_or_lose_an_event(
        pairs in proptest::collection::vec(("(ce_)?[a-z]{0,12}", proptest::collection::vec(0_u8.., 0..20)), 0..12),
        is_event: bool,
    ) {
        let mut record = if is_event { record(KAFKA, &[]) } else { RawRecord::new(KAFKA, Bytes::new()) };
        for (name, value) in &pairs {
            record.push(name.as_bytes(), &value[..]);
        }
        match record.message(&topic()) {
            Ok((message, _)) => assert!(message.validate().is_ok()),
            Err(undecodable) => assert!(!is_event, "{undecodable}"),
        }
    }
}
