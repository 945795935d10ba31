//! Position of an entry in a stream.

use std::fmt;
use std::str::FromStr;

/// The id of an entry: a time in milliseconds, and a number within that millisecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StreamId {
    millis: u64,
    number: u64,
}

impl StreamId {
    /// Before every entry.
    pub(crate) const START: Self = Self { millis: 0, number: 0 };
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.millis, self.number)
    }
}

impl FromStr for StreamId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (millis, number) = text.split_once('-').unwrap_or((text, "0"));
        Ok(Self { millis: millis.parse()?, number: number.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_in_the_order_of_the_stream() {
        let read = |text: &str| text.parse::<StreamId>().unwrap();
        assert!(read("9-5") < read("10-0"));
        assert!(read("10-9") < read("10-10"));
        assert_eq!(read("0-0"), StreamId::START);
        assert_eq!(read("1700000000000-3").to_string(), "1700000000000-3");
        assert!("7-x".parse::<StreamId>().is_err());
    }
}
