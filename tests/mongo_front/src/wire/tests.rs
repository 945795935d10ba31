use bson::doc;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn header(length: i32, kind: i32) -> [u8; HEADER] {
    let bytes: Vec<u8> = [length, 7, 0, kind].into_iter().flat_map(i32::to_le_bytes).collect();
    bytes.try_into().unwrap()
}

fn decode(kind: i32, body: &[u8]) -> Result<Request, Malformed> {
    let length = i32::try_from(body.len() + HEADER).unwrap();
    Request::decode(Header::decode(header(length, kind)).unwrap(), body)
}

fn section(document: &Document) -> Vec<u8> {
    [vec![0], document.to_vec().unwrap()].concat()
}

fn list_of(name: &str, documents: &[Document]) -> Vec<u8> {
    let mut inner = [name.as_bytes(), &[0]].concat();
    for document in documents {
        inner.extend(document.to_vec().unwrap());
    }
    let length = i32::try_from(inner.len() + 4).unwrap();
    [vec![1], length.to_le_bytes().to_vec(), inner].concat()
}

fn message(flags: u32, sections: &[Vec<u8>]) -> Vec<u8> {
    [flags.to_le_bytes().to_vec(), sections.concat()].concat()
}

#[test]
fn lengths_and_kinds_that_nobody_sends_are_refused() {
    for length in [i32::MIN, -1, 0, 15, 48_000_001, i32::MAX] {
        assert_eq!(Header::decode(header(length, OP_MSG)), Err(Malformed::Length(length)));
    }
    assert_eq!(Header::decode(header(16, OP_MSG)).unwrap().length, 0);
    assert_eq!(
        Header::decode(header(16, 2012)),
        Err(Malformed::Kind(2012)),
        "compressed, which is not offered"
    );
}

#[test]
fn a_command_comes_in_one_body_and_lists() {
    let body = doc! { "insert": "a", "$db": "d" };
    let documents = [doc! { "_id": 1 }, doc! { "_id": 2 }];
    let bytes = message(0, &[list_of("documents", &documents), section(&body)]);
    let request = decode(OP_MSG, &bytes).unwrap();
    let expected = doc! { "insert": "a", "$db": "d", "documents": documents.to_vec() };
    assert_eq!(request, Request { command: expected, legacy: false, answered: true });

    let checked = [message(CHECKSUM_PRESENT, &[section(&body)]), vec![1, 2, 3, 4]].concat();
    assert_eq!(decode(OP_MSG, &checked).unwrap().command, body);
    assert!(!decode(OP_MSG, &message(MORE_TO_COME, &[section(&body)])).unwrap().answered);
}

#[test]
fn messages_that_break_the_rules_are_refused() {
    let body = section(&doc! { "ping": 1 });
    let wrong = [
        (message(0, &[]), Malformed::Bodies(0)),
        (message(0, &[body.clone(), body.clone()]), Malformed::Bodies(1)),
        (message(1 << 5, std::slice::from_ref(&body)), Malformed::Flags(1 << 5)),
        (message(0, &[vec![2]]), Malformed::Section(2)),
        (message(0, &[body.clone(), list_of("ping", &[])]), Malformed::Twice),
        (message(0, &[body.clone(), list_of("x", &[]), list_of("x", &[])]), Malformed::Twice),
        (message(0, &[vec![0, 3, 0, 0, 0]]), Malformed::Short),
        (message(0, &[vec![1, 255, 255, 255, 255]]), Malformed::Short),
        (message(0, &[vec![0, 5, 0, 0, 0, 9]]), Malformed::Document),
        (message(CHECKSUM_PRESENT, &[]), Malformed::Short),
        (vec![0, 0], Malformed::Short),
    ];
    for (bytes, why) in wrong {
        assert_eq!(decode(OP_MSG, &bytes), Err(why), "{bytes:?}");
    }
}

#[test]
fn documents_that_nest_too_deep_are_refused_before_they_are_read() {
    let nested = |depth: usize| {
        // An element `a` of kind 3 (document) around an empty document, repeated.
        let mut bytes = vec![5, 0, 0, 0, 0];
        for _ in 1..depth {
            let length = i32::try_from(bytes.len() + 8).unwrap();
            bytes = [&length.to_le_bytes()[..], &[3, b'a', 0], &bytes, &[0]].concat();
        }
        bytes
    };
    assert!(parse(&nested(DEEPEST)).is_ok());
    assert_eq!(parse(&nested(DEEPEST + 1)), Err(Malformed::Deep));
    assert_eq!(parse(&nested(20_000)), Err(Malformed::Deep));
}

#[test]
fn answers_are_written_in_the_form_of_the_question() {
    let answer = doc! { "ok": 1.0 };
    let bytes = encode(7, false, &answer).unwrap();
    assert_eq!(bytes[..16], [38, 0, 0, 0, 7, 0, 0, 0, 7, 0, 0, 0, 0xdd, 7, 0, 0]);
    assert_eq!(decode(OP_MSG, &bytes[HEADER..]).unwrap().command, answer);
    let old = encode(7, true, &answer).unwrap();
    assert_eq!(old[12..16], 1_i32.to_le_bytes());
    assert_eq!(parse(&old[36..]).unwrap(), answer);
    let query = [&[0; 4][..], b"admin.$cmd\0", &[0; 8], &doc! { "isMaster": 1 }.to_vec().unwrap()].concat();
    let request = decode(OP_QUERY, &query).unwrap();
    assert_eq!(request, Request { command: doc! { "isMaster": 1 }, legacy: true, answered: true });
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_fall(bytes in vec(any::<u8>(), 0..200), query: bool) {
        let _ = decode(if query { OP_QUERY } else { OP_MSG }, &bytes);
    }

    #[test]
    fn no_change_of_a_right_message_makes_the_reader_fall(at in 0_usize..200, byte: u8, cut in 0_usize..200) {
        let body = doc! { "insert": "a", "deep": { "er": [{ "x": 1.5 }, "y"] }, "$db": "d" };
        let mut bytes = message(0, &[section(&body), list_of("documents", &[doc! { "_id": 1 }])]);
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = decode(OP_MSG, &bytes);
        let cut = cut % bytes.len();
        let _ = decode(OP_MSG, &bytes[..cut]);
        let _ = Header::decode(bytes[..HEADER].try_into().unwrap());
    }
}
