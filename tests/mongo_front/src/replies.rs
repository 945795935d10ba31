//! Conversion of the engine's answers to MongoDB's.

use bson::{Bson, Document, doc};

use crate::refusal::{Code, DUPLICATE_KEY, Refusal, WRITE_CONFLICT};

/// Converts an answer to a write: the codes of its errors are MongoDB's, and a conflict in a
/// transaction refuses the whole command.
pub(crate) fn of_write(
    mut answer: Document,
    namespace: &str,
    in_transaction: bool,
) -> Result<Document, Refusal> {
    let errors = answer.get_array_mut("writeErrors").ok();
    for error in errors.into_iter().flatten().filter_map(Bson::as_document_mut) {
        let code = Code::of_packed_state(error.get_i32("code").unwrap_or_default());
        let message = error.get_str("errmsg").unwrap_or_default().to_owned();
        if code == WRITE_CONFLICT && in_transaction {
            return Err(Refusal::transient(code, message));
        }
        error.insert("code", code.number);
        if code == DUPLICATE_KEY {
            error.insert("errmsg", duplicate(&message, namespace));
        }
    }
    Ok(answer)
}

/// Converts a refusal of a command, with MongoDB's text for a duplicate, which programs parse.
pub(crate) fn of_refusal(refusal: Refusal, namespace: &str, in_transaction: bool) -> Refusal {
    match refusal {
        Refusal::Error { code, message, labels } if code == DUPLICATE_KEY => {
            Refusal::Error { code, message: duplicate(&message, namespace), labels }
        }
        refusal if in_transaction => refusal.in_transaction(),
        refusal => refusal,
    }
}

/// The engine names the index in quotes, if at all.
fn duplicate(message: &str, namespace: &str) -> String {
    let index = message.split('\'').nth(1).unwrap_or("?");
    format!("E11000 duplicate key error collection: {namespace} index: {index} ({message})")
}

/// Adds to an answer to a write that its write concern is unavailable: one member can't confirm for
/// more.
pub(crate) fn check_concern(answer: &mut Document, command: &Document) {
    let wanted = command.get_document("writeConcern").ok().and_then(|concern| concern.get("w"));
    let members = match wanted {
        Some(Bson::Int32(members)) => i64::from(*members),
        Some(Bson::Int64(members)) => *members,
        _ => 1,
    };
    if members > 1 {
        answer.insert(
            "writeConcernError",
            doc! { "code": 100, "codeName": "UnsatisfiableWriteConcern", "errmsg": "Not enough data-bearing nodes" },
        );
    }
}

/// Returns true if an answer reports that a part of the command failed, which aborts a transaction.
pub(crate) fn failed(answer: &Document) -> bool {
    answer.contains_key("writeErrors")
}

/// An answer that reports only success.
pub(crate) fn ok() -> Document {
    doc! { "ok": 1.0 }
}
