//! Values of headers that other programs write: AMQP has a dozen types, a message has texts.

use std::borrow::Cow;

use lapin::types::{AMQPValue, DecimalValue};
use outbox_contract::Timestamp;
use outbox_contract::backend::Undecodable;
use serde_json::Value;

/// The value of the attribute `time`. A number is the timestamp of AMQP 1.0, in milliseconds, as
/// SDKs send it with clients that have no type for it.
pub(crate) fn time_of(value: &AMQPValue) -> Cow<'_, [u8]> {
    let millis = match value {
        AMQPValue::LongInt(millis) => i64::from(*millis),
        AMQPValue::LongUInt(millis) => i64::from(*millis),
        AMQPValue::LongLongInt(millis) => *millis,
        _ => return bytes_of(value),
    };
    // A finer unit has more digits, and is told by them.
    match millis.checked_mul(1_000).filter(|_| millis.unsigned_abs() < MAX_MILLIS) {
        Some(micros) => Timestamp::from_micros(micros).to_string().into_bytes().into(),
        None => millis.to_string().into_bytes().into(),
    }
}

/// The instant of a native timestamp: seconds since 1970, which AMQP 0-9-1 defines, or
/// milliseconds, which AMQP 1.0 does.
fn native(timestamp: u64) -> String {
    // The broker writes an instant before 1970 as the negative number that it is.
    let signed = timestamp.cast_signed();
    let unit = if signed.unsigned_abs() < MAX_SECONDS { 1_000_000 } else { 1_000 };
    let micros = signed.checked_mul(unit);
    micros.map_or_else(|| timestamp.to_string(), |micros| Timestamp::from_micros(micros).to_string())
}

/// The year 10000, in seconds and in milliseconds: more is of a finer unit.
const MAX_SECONDS: u64 = 253_402_300_800;
const MAX_MILLIS: u64 = 1_000 * MAX_SECONDS;

/// The value of a header: the bytes of a text or of bytes; lists and tables are JSON, and any other
/// value is written out.
pub(crate) fn bytes_of(value: &AMQPValue) -> Cow<'_, [u8]> {
    let text = match value {
        AMQPValue::LongString(text) => return text.as_bytes().into(),
        AMQPValue::ShortString(text) => return text.as_str().as_bytes().into(),
        AMQPValue::ByteArray(bytes) => return bytes.as_slice().into(),
        AMQPValue::Void => return Cow::Borrowed(b""),
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(value) => value.to_string(),
        AMQPValue::ShortShortUInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        AMQPValue::ShortUInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::LongUInt(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        AMQPValue::Timestamp(value) => native(*value),
        AMQPValue::Float(value) => value.to_string(),
        AMQPValue::Double(value) => value.to_string(),
        AMQPValue::DecimalValue(value) => decimal(*value),
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) => json_of(value).to_string(),
    };
    text.into_bytes().into()
}

/// The digits of a decimal, of which the last ones are behind the point.
fn decimal(value: DecimalValue) -> String {
    let behind = usize::from(value.scale);
    let mut digits = format!("{:0>width$}", value.value, width = behind + 1);
    if behind > 0 {
        digits.insert(digits.len() - behind, '.');
    }
    digits
}

/// A value in a list or a table, as JSON.
fn json_of(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::FieldArray(list) => list.as_slice().iter().map(json_of).collect(),
        AMQPValue::FieldTable(table) => {
            table.inner().iter().map(|(name, value)| (name.to_string(), json_of(value))).collect()
        }
        AMQPValue::Void => Value::Null,
        AMQPValue::Boolean(value) => (*value).into(),
        AMQPValue::ShortShortInt(value) => (*value).into(),
        AMQPValue::ShortShortUInt(value) => (*value).into(),
        AMQPValue::ShortInt(value) => (*value).into(),
        AMQPValue::ShortUInt(value) => (*value).into(),
        AMQPValue::LongInt(value) => (*value).into(),
        AMQPValue::LongUInt(value) => (*value).into(),
        AMQPValue::LongLongInt(value) => (*value).into(),
        AMQPValue::Float(value) => (*value).into(),
        AMQPValue::Double(value) => (*value).into(),
        text => Undecodable::text(&bytes_of(text)).into(),
    }
}
