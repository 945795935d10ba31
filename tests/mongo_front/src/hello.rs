//! The handshake: kind and capabilities of this server.

use bson::{Document, doc};

use crate::options::Options;
use crate::scram;
use crate::sessions;
use crate::wire;

/// Returns true if a command is a handshake, under its new name or its old ones.
pub(crate) fn is_hello(command: &str) -> bool {
    matches!(command, "hello" | "isMaster" | "ismaster")
}

/// Returns the answer to a handshake: the primary and only member of replica set `rs0`, or a
/// standalone server.
pub(crate) fn answer(options: &Options, port: u16, asked: &Document) -> Document {
    let me = format!("127.0.0.1:{port}");
    let longest_document = i32::try_from(wire::LONGEST_DOCUMENT).unwrap_or(i32::MAX);
    let longest = i32::try_from(wire::LONGEST).unwrap_or(i32::MAX);
    let session = i32::try_from(sessions::LIFETIME.as_secs() / 60).unwrap_or(30);
    let mut answer = doc! {
        "helloOk": true,
        "ismaster": true,
        "isWritablePrimary": true,
        "readOnly": false,
        "maxBsonObjectSize": longest_document,
        "maxMessageSizeBytes": longest,
        "maxWriteBatchSize": 100_000,
        "minWireVersion": 0,
        "maxWireVersion": options.wire_version,
        "logicalSessionTimeoutMinutes": session,
        "ok": 1.0,
    };
    if !options.standalone {
        answer.extend(doc! {
            "setName": "rs0", "setVersion": 1, "hosts": [&me], "primary": &me, "me": &me, "secondary": false,
        });
    }
    if asked.contains_key("saslSupportedMechs") {
        answer.insert("saslSupportedMechs", vec![scram::MECHANISM]);
    }
    answer
}

/// Returns the answer to `buildInfo`.
pub(crate) fn build_info(options: &Options) -> Document {
    let parts: Vec<i32> =
        options.version.split('.').filter_map(|part| part.parse().ok()).chain([0]).collect();
    doc! { "version": &options.version, "versionArray": parts, "maxBsonObjectSize": 16_777_216, "ok": 1.0 }
}
