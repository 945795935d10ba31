//! Options of an append: headers, attributes, and the time at which the message is due.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::message::{Message, MessageError, Outgoing};

/// Options of one message, for [`Outbox::append_with`](crate::Outbox::append_with).
///
/// ```
/// use std::time::Duration;
/// use outbox_contract::AppendOptions;
///
/// let two_weeks = Duration::from_secs(14 * 86_400);
/// let options = AppendOptions::new().header("tenant", "north").after(two_weeks);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppendOptions {
    headers: Vec<(String, String)>,
    subject: Option<String>,
    data_schema: Option<String>,
    extensions: Vec<(String, String)>,
    due_at: Option<Timestamp>,
    after: Option<Duration>,
}

impl AppendOptions {
    /// Creates options that change nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a header. Its name has up to 255 bytes, its value up to 8,192. The append rejects names
    /// that the wire format uses, such as `ce-…` and `content-type`.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the CloudEvents `subject`: what the event is about, within its source.
    #[must_use]
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Sets the CloudEvents `dataschema`: the URI of the payload's schema.
    #[must_use]
    pub fn data_schema(mut self, uri: impl Into<String>) -> Self {
        self.data_schema = Some(uri.into());
        self
    }

    /// Adds a CloudEvents extension attribute. Its name has 1 to 20 of `a` to `z` and `0` to `9`.
    /// The append rejects others, and names that a message has as fields, such as `partitionkey`.
    #[must_use]
    pub fn extension(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.extensions.push((name.into(), value.into()));
        self
    }

    /// Sends the message no earlier than this time. It joins its key when it is due, behind
    /// everything committed before that.
    ///
    /// *Units*: a relay compares it with the **database's** clock, at least every `maintain_every`
    /// (5 s), so the message may be sent that much later. A time in the past is due immediately. An
    /// instant that this machine computes is wrong by as much as its clock: for a delay use
    /// [`after`](Self::after).
    #[must_use]
    pub fn due_at(mut self, due_at: Timestamp) -> Self {
        self.due_at = Some(due_at);
        self
    }

    /// Sends the message no earlier than this long after its append. The **database** adds the
    /// delay to its own clock, so a wrong clock of this machine does not matter. Otherwise the same
    /// as [`due_at`](Self::due_at). The append rejects options with both.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.after = Some(delay);
        self
    }

    /// Applies the options to a message.
    ///
    /// # Errors
    ///
    /// Describes an invalid or reserved header or attribute, or two due times.
    pub fn apply(self, mut message: Message) -> Result<Outgoing, MessageError> {
        for (name, value) in self.headers {
            message = message.with_header(name, value)?;
        }
        if let Some(subject) = self.subject {
            message = message.with_subject(subject)?;
        }
        if let Some(uri) = self.data_schema {
            message = message.with_data_schema(uri)?;
        }
        for (name, value) in self.extensions {
            message = message.with_extension(name, value)?;
        }
        let outgoing = Outgoing::from(message);
        match (self.due_at, self.after) {
            (Some(due_at), Some(after)) => Err(MessageError::TwoDueTimes { due_at, after }),
            (Some(due_at), None) => Ok(outgoing.due_at(due_at)),
            (None, Some(delay)) => Ok(outgoing.after(delay)),
            (None, None) => Ok(outgoing),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::message::DueTime;

    use super::*;

    #[test]
    fn options_reach_the_message_and_a_reserved_header_is_refused() {
        let message = Message::new("orders", "order.placed").unwrap();
        let (due_at, options) = (Timestamp::from_micros(7), AppendOptions::new());
        let outgoing =
            options.clone().header("tenant", "north").due_at(due_at).apply(message.clone()).unwrap();
        assert_eq!(outgoing.message.headers.get("tenant"), Some("north"));
        assert_eq!(outgoing.due, Some(DueTime::At(due_at)));
        let hour = Duration::from_secs(3_600);
        let delayed = options.clone().after(hour);
        assert_eq!(delayed.clone().apply(message.clone()).unwrap().due, Some(DueTime::After(hour)));
        let both = delayed.due_at(due_at).apply(message.clone()).unwrap_err();
        assert!(both.to_string().contains("either due_at or after"), "{both}");
        assert_eq!(options.clone().apply(message.clone()).unwrap(), message.clone().into());
        let described =
            options.clone().subject("line-1").data_schema("/order/1").extension("tenantid", "acme");
        let described = described.apply(message.clone()).unwrap().message;
        assert_eq!((described.subject(), described.data_schema()), (Some("line-1"), Some("/order/1")));
        assert_eq!(described.extension("tenantid"), Some("acme"));
        assert!(options.clone().extension("partitionkey", "1").apply(message.clone()).is_err());
        let error = options.header("content-type", "text/plain").apply(message).unwrap_err();
        assert!(error.to_string().contains("content-type"), "{error}");
    }
}
