//! The product and the version that a broker names in its greeting. Pure.

use std::fmt;

use lapin::types::{AMQPValue, FieldTable};

/// First version whose quorum queues can stop after a switch between priorities.
const FIRST_THAT_STOPS: (u32, u32) = (4, 3);

/// A broker, as it names itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Broker {
    product: String,
    version: String,
}

impl Broker {
    /// Reads the properties of a greeting.
    pub(crate) fn new(properties: &FieldTable) -> Self {
        let text = |name: &str| match properties.inner().get(name) {
            Some(AMQPValue::LongString(text)) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
            _ => String::new(),
        };
        Self { product: text("product"), version: text("version") }
    }

    /// Returns false if consumer priorities can stop a queue of this broker.
    ///
    /// While a queue is about to move to a higher priority, RabbitMQ 4.3 returns the last
    /// unacknowledged message of a consumer that is gone, and then puts that consumer among those
    /// that wait. It may be activated later, and nothing that it is sent is ever acknowledged. This
    /// takes no crash: a channel that is closed with a prefetched message has the same effect.
    pub(crate) fn moves_queues_safely(&self) -> bool {
        if self.product != "RabbitMQ" {
            return true;
        }
        let mut numbers = self.version.split('.').map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < FIRST_THAT_STOPS,
            _ => false,
        }
    }
}

impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.product, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broker(product: &str, version: &str) -> Broker {
        let mut properties = FieldTable::default();
        properties.insert("product".into(), AMQPValue::LongString(product.into()));
        properties.insert("version".into(), AMQPValue::LongString(version.into()));
        Broker::new(&properties)
    }

    #[test]
    fn queues_move_safely_before_4_3() {
        for version in ["3.13.7", "4.0.5", "4.1.0", "4.2.11"] {
            assert!(broker("RabbitMQ", version).moves_queues_safely(), "{version}");
        }
        for version in ["4.3.0", "4.3.6", "4.3.0-beta.1", "4.10.0", "5.0.0", "4", "", "main"] {
            assert!(!broker("RabbitMQ", version).moves_queues_safely(), "{version}");
        }
        assert!(broker("LavinMQ", "2.4.0").moves_queues_safely());
        assert_eq!(broker("RabbitMQ", "4.3.6").to_string(), "RabbitMQ 4.3.6");
    }

    #[test]
    fn a_greeting_without_names_is_of_no_known_broker() {
        assert_eq!(Broker::new(&FieldTable::default()), Broker::default());
        assert!(Broker::default().moves_queues_safely());
    }
}
