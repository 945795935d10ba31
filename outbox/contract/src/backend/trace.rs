//! Trace context: propagation of the trace of the span that appended a message.
//!
//! On the wire and in the store it is two headers, as defined by [W3C Trace
//! Context](https://www.w3.org/TR/trace-context/). Any program can carry and copy them. Writing and
//! reading them requires the feature `opentelemetry`; without it these functions do nothing and
//! cost nothing.

use crate::headers::Headers;

/// Header that names the trace and the appending span: `00-<32 digits>-<16 digits>-<2 digits>`.
pub const TRACEPARENT: &str = "traceparent";
/// Header with additions of tracing systems.
pub const TRACESTATE: &str = "tracestate";

/// Writes the context of the current span into headers that have none.
///
/// The context is that of `tracing`, if a layer of `tracing-opentelemetry` is installed; otherwise
/// OpenTelemetry's current context. Outside any span, or without the feature `opentelemetry`,
/// nothing is written. [`Outbox`](crate::Outbox) calls it for every event that it encodes.
#[cfg_attr(not(feature = "opentelemetry"), inline(always))]
pub fn inject(headers: &mut Headers) {
    #[cfg(feature = "opentelemetry")]
    otel::inject(headers);
    #[cfg(not(feature = "opentelemetry"))]
    let _ = headers;
}

#[cfg(feature = "opentelemetry")]
pub use otel::span_context;

#[cfg(feature = "opentelemetry")]
mod otel {
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    use super::{TRACEPARENT, TRACESTATE};
    use crate::headers::Headers;

    pub(super) fn inject(headers: &mut Headers) {
        if headers.get(TRACEPARENT).is_some() {
            return;
        }
        let of_tracing = tracing::Span::current().context();
        let context = of_tracing.span().span_context().clone();
        let context = if context.is_valid() {
            context
        } else {
            opentelemetry::Context::current().span().span_context().clone()
        };
        if !context.is_valid() {
            return;
        }
        let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags().to_u8());
        // An invalid header is omitted: a trace is no reason to reject an event.
        let written = headers.insert(TRACEPARENT, format!("00-{trace}-{span}-{flags:02x}"));
        let state = context.trace_state().header();
        if written.is_ok() && !state.is_empty() {
            let _ = headers.insert(TRACESTATE, state);
        }
    }

    /// Returns the span that appended a message, from its headers: the parent of the handler's
    /// span, and the link target of a relay's span.
    ///
    /// Returns `None` if the header is missing or does not conform to W3C Trace Context.
    #[must_use]
    pub fn span_context(headers: &Headers) -> Option<SpanContext> {
        let mut parts = headers.get(TRACEPARENT)?.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // Later versions share the first four parts and may add more; this version may not.
        let known = match version {
            "00" => parts.next().is_none(),
            other => is_hex(other, 2) && other != "ff",
        };
        if !known || !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
            return None;
        }
        let state = headers.get(TRACESTATE).and_then(|state| state.parse::<TraceState>().ok());
        let context = SpanContext::new(
            TraceId::from_hex(trace).ok()?,
            SpanId::from_hex(span).ok()?,
            TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED,
            true,
            state.unwrap_or_default(),
        );
        context.is_valid().then_some(context)
    }

    fn is_hex(text: &str, digits: usize) -> bool {
        text.len() == digits && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

        fn read(traceparent: &str) -> Option<SpanContext> {
            let mut headers = Headers::new();
            headers.insert(TRACEPARENT, traceparent).unwrap();
            span_context(&headers)
        }

        #[test]
        fn what_w3c_allows_is_read_and_the_rest_is_not() {
            let context = read(GOOD).unwrap();
            assert_eq!(context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
            assert_eq!(context.span_id().to_string(), "b7ad6b7169203331");
            assert!(context.is_sampled() && context.is_remote());
            assert!(!read(&GOOD.replace("-01", "-00")).unwrap().is_sampled());
            assert!(read(&GOOD.replace("00-", "01-")).is_some(), "a later version");
            assert!(
                read(&format!("{}-more", GOOD.replace("00-", "01-"))).is_some(),
                "a later version with more"
            );
            let wrong = [
                "",
                "00",
                "nonsense",
                &GOOD.to_uppercase(),
                &GOOD.replace("00-", "ff-"),
                &format!("{GOOD}-more"),
                &GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
                &GOOD.replace("b7ad6b7169203331", &"0".repeat(16)),
                &GOOD.replace("b7ad", "b7a"),
            ];
            for wrong in wrong {
                assert_eq!(read(wrong), None, "{wrong}");
            }
        }

        #[test]
        fn a_context_that_is_there_already_stays_and_none_is_made_up() {
            let mut headers = Headers::new();
            inject(&mut headers);
            assert!(headers.is_empty(), "there is no span");
            let remote = read(GOOD).unwrap();
            let _here = opentelemetry::Context::new().with_remote_span_context(remote).attach();
            inject(&mut headers);
            assert_eq!(headers.get(TRACEPARENT), Some(GOOD));
            headers.insert(TRACEPARENT, "mine").unwrap();
            inject(&mut headers);
            assert_eq!(headers.get(TRACEPARENT), Some("mine"));
        }

        proptest::proptest! {
            #[test]
            fn nothing_from_the_wire_makes_the_reader_panic(text in "[0-9a-f-]{0,70}|\\PC{0,70}") {
                let _ = read(&text);
            }
        }
    }
}
