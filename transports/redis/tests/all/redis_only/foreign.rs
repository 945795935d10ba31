//! Entries of other programs: read as far as it goes, and noted where it is not as it was sent.

use outbox_contract::backend::ADAPTED;
use outbox_contract::{Key, Message};
use outbox_servers::{OrSkip as _, Redis};

use crate::redis_only::support::{acknowledge, at, next_deliveries, subscribe};

/// Adds an event for each of these lists of fields, as a script writes them, and receives them as
/// messages.
async fn received(all: &[&str]) -> Option<Vec<Message>> {
    let server = Redis::newest().shared().or_skip()?;
    let prefix = server.fresh_prefix();
    let transport = at(&server.url(), &prefix).units(1).build().unwrap();
    let reader = subscribe(&transport, "reader").await;
    for (at, more) in all.iter().enumerate() {
        let add = format!(
            "return redis.call('XADD', KEYS[1], '*', 'ce-specversion', '1.0', 'ce-id', '{at}', 'ce-source', '/legacy', 'ce-type', 'x', \
             'data', '{{}}', {more})"
        );
        server.cli(&["EVAL", &add, "1", &format!("{prefix}:{{orders:0}}")]);
    }
    let mut messages = Vec::new();
    while messages.len() < all.len() {
        let came = next_deliveries(&*reader).await;
        acknowledge(&*reader, &came).await;
        messages.extend(came.into_iter().map(|came| came.message.unwrap()));
    }
    Some(messages)
}

#[tokio::test]
async fn what_another_program_writes_is_read_as_far_as_it_goes() {
    let fields = "'bytes', '\\255\\7', 'lines', 'two\\nlines', 'long', string.rep('x', 10000), '', 'nameless', 'odd\\233name', 'not UTF-8', \
                  'content-type', '', 'ce-schemaversion', '1.2.0', 'ce-subject', string.rep('s', 300), 'tenant', 'acme'";
    let Some(messages) = received(&[fields]).await else { return };
    let [message] = &messages[..] else { panic!("{messages:?}") };
    let header = |name| message.headers.get(name).unwrap();
    assert_eq!((header("bytes"), header("lines"), header("tenant")), ("\\xff\\x07", "two\\nlines", "acme"));
    let own = message.headers.iter().filter(|(name, _)| !name.starts_with("ce-"));
    assert_eq!((header("long").len(), own.count()), (8_192, 5));
    assert_eq!((message.schema_version, &*message.content_type), (1, "application/octet-stream"));
    assert_eq!(message.key, Some(Key::of_bytes(&[b's'; 300])));
    let note = header(ADAPTED);
    for words in ["bytes", "lines", "long", "\"\" is left out", "odd\\\\xe9name", "1.2.0"] {
        assert!(note.contains(words), "{words}: {note}");
    }
}

#[tokio::test]
async fn a_key_is_whatever_bytes_it_is() {
    let keys = ["'\\0\\0\\0\\7'", "'\\255'", "'a\\nb'", "'7'"];
    let keys = keys.map(|key| format!("'ce-partitionkey', {key}, 'ce-subject', 'line-1'"));
    let Some(messages) = received(&keys.each_ref().map(String::as_str)).await else { return };
    let keys: Vec<String> = messages.into_iter().map(|message| message.key.unwrap().to_string()).collect();
    assert_eq!(keys, ["0x00000007", "0xff", "0x610a62", "7"]);
}
