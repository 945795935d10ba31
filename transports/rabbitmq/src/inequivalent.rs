//! Answer of RabbitMQ when a queue that is there differs from the one that is declared.
//!
//! It is the only way to learn a queue's arguments over AMQP: `inequivalent arg 'x-max-length' for
//! queue 'q' in vhost '/': received none but current is the value '10' of type 'signedint'`. The
//! first difference is named, no other.

use lapin::types::AMQPValue;

/// A difference between the queue that is there and the one that was declared.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Inequivalent {
    /// The argument, such as `x-max-length`; or a property, such as `durable`.
    pub(crate) argument: String,
    /// Value in the queue that is there, as text. None: it is not set.
    pub(crate) current: Option<String>,
    /// The same as a value to declare with, if it can be one.
    pub(crate) value: Option<AMQPValue>,
}

impl Inequivalent {
    /// Reads what the broker said. None: it is about something else.
    pub(crate) fn read(said: &str) -> Option<Self> {
        let (argument, rest) = said.split_once("inequivalent arg '")?.1.split_once('\'')?;
        let current = rest.split_once("but current is ")?.1;
        // Properties come without a type: `current is 'true'`. Arguments with one.
        let Some((text, kind)) =
            current.strip_prefix("the value '").and_then(|value| value.rsplit_once("' of type '"))
        else {
            let text = current.trim_matches('\'');
            let current = (text != "none").then(|| text.to_owned());
            return Some(Self { argument: argument.to_owned(), current, value: None });
        };
        let kind = kind.split('\'').next().unwrap_or_default();
        let value = match kind {
            "longstr" => Some(AMQPValue::LongString(text.into())),
            "bool" => text.parse().ok().map(AMQPValue::Boolean),
            "byte" | "short" | "signedint" | "long" | "unsignedbyte" | "unsignedshort" | "unsignedint" => {
                text.parse().ok().map(AMQPValue::LongLongInt)
            }
            _ => None,
        };
        Some(Self { argument: argument.to_owned(), current: Some(text.to_owned()), value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(current: &str) -> Inequivalent {
        let said = format!(
            "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'a'b' in vhost '/': received none but current is {current}"
        );
        Inequivalent::read(&said).unwrap()
    }

    #[test]
    fn a_difference_is_read_with_its_value() {
        let number = read("the value '10' of type 'signedint'");
        assert_eq!(number.argument, "x-max-length");
        assert_eq!((number.current.as_deref(), number.value), (Some("10"), Some(AMQPValue::LongLongInt(10))));
        let text = read("the value 'it's' of type 'longstr'");
        assert_eq!(text.value, Some(AMQPValue::LongString("it's".into())));
        assert_eq!(read("none").current, None);
        assert_eq!(read("'true'").current.as_deref(), Some("true"));
        assert_eq!(read("the value '[]' of type 'array'").value, None);
    }

    #[test]
    fn anything_else_is_no_difference() {
        assert_eq!(Inequivalent::read("NOT_FOUND - no queue 'q'"), None);
        assert_eq!(Inequivalent::read("inequivalent arg 'x"), None);
    }
}
