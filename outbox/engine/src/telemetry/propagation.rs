//! Spans that continue a message's trace.
//!
//! The headers of a message hold the span that appended it. The relay adds a link to it and no
//! parent, because its own span covers many messages of many traces. A consumer's span is therefore
//! a child of the span that appended, whatever lies between.

use std::sync::Arc;

use outbox_contract::backend::Stored;
use outbox_contract::{Message, Route};
use tracing::Span;

/// Creates the span of a relay that publishes these messages, linked to the spans that appended
/// them.
pub(crate) fn publish_span(route: &Route, messages: &[Arc<Stored>]) -> Span {
    let span = tracing::debug_span!(
        "publish",
        otel.kind = "producer",
        messaging.operation.name = "publish",
        messaging.batch.message_count = messages.len(),
        %route,
    );
    #[cfg(feature = "opentelemetry")]
    {
        use tracing_opentelemetry::OpenTelemetrySpanExt;
        if !span.is_disabled() {
            let appended = messages
                .iter()
                .filter_map(|stored| outbox_contract::backend::trace::span_context(&stored.message.headers));
            appended.for_each(|context| span.add_link(context));
        }
    }
    span
}

/// Creates a span for handling a message. With the feature `opentelemetry`, it is a child of the
/// span that appended the message, possibly in another process.
///
/// An inbox creates one for each message. A subscriber without an inbox does so itself:
///
/// ```
/// # mod outbox { pub use outbox_contract::*; pub use outbox_engine::*; pub mod telemetry { pub use outbox_contract::*; pub use outbox_engine::*; } }
/// use outbox::{Message, Topic};
/// use outbox::telemetry::consume_span;
///
/// # fn handle(_: &Message) {}
/// let message = Message::new("orders", "order.placed")?;
/// consume_span(&message).in_scope(|| handle(&message));
/// // A future: `handling.instrument(consume_span(&message)).await`.
/// # Ok::<(), outbox::NameError>(())
/// ```
#[must_use]
pub fn consume_span(message: &Message) -> Span {
    let span = tracing::info_span!(
        "consume",
        otel.kind = "consumer",
        messaging.operation.name = "process",
        messaging.destination.name = %message.topic,
        messaging.message.id = %message.id,
        event_type = %message.event_type,
    );
    #[cfg(feature = "opentelemetry")]
    {
        use opentelemetry::trace::TraceContextExt;
        use tracing_opentelemetry::OpenTelemetrySpanExt;
        if !span.is_disabled()
            && let Some(appended) = outbox_contract::backend::trace::span_context(&message.headers)
        {
            // Refused if no OpenTelemetry layer listens: then there is no trace to continue.
            let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(appended));
        }
    }
    span
}
