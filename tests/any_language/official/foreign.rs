//! Events that an SDK sends: allowed, and rare. And what a handler should find of each.

use outbox_contract::Timestamp;
use serde_json::{Map, Value, json};

use super::sdk::{Events, Sdk};

/// The way of an event to an inbox.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) sdk: Sdk,
    /// Name of the SDK's binding.
    pub(super) binding: &'static str,
    pub(super) is_structured: bool,
}

impl Way {
    pub(super) fn mode(self) -> &'static str {
        if self.is_structured { "structured" } else { "binary" }
    }

    /// Returns the events: attributes, and data of one kind.
    pub(super) fn events(self) -> Vec<Value> {
        let json = || json!({"json": {"n": 1}});
        let rare = |attributes: Value| (attributes, json());
        let typed = |content_type: &str, data: Value| (json!({"datacontenttype": content_type}), data);
        let all = [
            typed(
                "application/json",
                json!({"json": {"total": 1.5, "text": "Zoë 😀", "list": [null, true]}}),
            ),
            rare(json!({})),
            (json!({}), Value::Null),
            typed("application/json", Value::Null),
            typed("text/plain; charset=utf-8", json!({"text": "two\nlines"})),
            typed("text/plain", json!({"text": "0123456789".repeat(60_000)})),
            typed("application/octet-stream", json!({"hex": "00017f80fe9fff"})),
            typed("application/vnd.example+json", json!({"json": {"a": {"b": []}}})),
            rare(json!({"subject": "s".repeat(300)})),
            rare(json!({"subject": "строка/1"})),
            rare(json!({"dataschema": "https://example.com/schema#1"})),
            rare(json!({"partitionkey": "order-1", "subject": "line-1"})),
            rare(json!({"tenantid": "Ünïcode 😀", "empty1": "x"})),
            rare(json!({"number": 42, "isurgent": true})),
            rare(json!({"lines": "two\nlines"})),
            rare(json!({"long": "x".repeat(10_000)})),
            rare(json!({"schemaversion": "1.2.0"})),
            rare(json!({"sequence": "first"})),
            rare(json!({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})),
            rare(json!({"time": "1970-01-01T00:00:01Z"})),
            rare(json!({"time": "1969-12-31T23:59:59Z"})),
            rare(json!({"time": "2023-11-15T03:43:20+05:30"})),
            rare(json!({"time": "9999-12-30T00:00:00Z"})),
            rare(json!({"source": "urn:example:Zoë", "type": "Zoë.placed"})),
        ];
        let all = all.into_iter().enumerate();
        all.map(|(number, (attributes, data))| {
            let mut event = json!({
                "id": format!("{}/{}/{number} é", self.binding, self.mode()),
                "source": "/official",
                "type": "order.placed",
                "time": "2023-11-14T22:13:20.123Z",
            });
            event.as_object_mut().unwrap().extend(attributes.as_object().unwrap().clone());
            match data {
                Value::Null => json!({"attributes": event}),
                data => json!({"attributes": event, "data": data}),
            }
        })
        .collect()
    }

    /// Returns what a handler should find of these events.
    pub(super) fn expected(self, events: &[Value]) -> Events {
        let all = events.iter().map(|event| self.expected_of(event));
        all.map(|event| (event["id"].as_str().unwrap().to_owned(), event)).collect()
    }

    /// Returns true if the SDK or the broker refuses such an event.
    pub(super) fn refuses(self, event: &Value) -> bool {
        let has_odd_source = !event["source"].as_str().unwrap().is_ascii();
        match self.sdk {
            Sdk::JavaScript => has_odd_source,
            // RabbitMQ wants a body in AMQP 1.0.
            Sdk::Go => self.is_amqp() && event["data"].is_null(),
            _ => false,
        }
    }

    /// Returns true if attributes are values of AMQP 1.0.
    fn is_amqp(self) -> bool {
        self.binding == "amqp" && !self.is_structured
    }

    /// Returns the data as it should be found.
    fn data(self, given: Option<&Value>, content_type: Option<&str>) -> Option<Value> {
        // The SDK writes it as a text.
        let is_text =
            self.sdk == Sdk::Go && self.is_structured && content_type.is_some_and(|it| it.ends_with("+json"));
        given.map(|data| if is_text { json!({"json": data["json"].to_string()}) } else { data.clone() })
    }

    fn expected_of(self, event: &Value) -> Value {
        let (attributes, data) = (&event["attributes"], event.get("data"));
        let text = |name: &str| attributes.get(name).and_then(Value::as_str);
        let key = text("partitionkey").or(text("subject")).filter(|key| key.len() <= 255);
        let mut time = Timestamp::parse(text("time").unwrap()).unwrap().as_micros();
        if self.sdk == Sdk::Go && self.is_amqp() {
            // The broker makes whole seconds of a native timestamp; and its client counts in
            // nanoseconds, which end in the year 2262.
            time = time.wrapping_mul(1_000) / 1_000_000_000 * 1_000_000;
        }
        let extensions = attributes.as_object().unwrap().iter().filter(|(name, _)| !is_field(name));
        let extensions: Map<String, Value> =
            extensions.map(|(name, value)| (name.clone(), self.text_of(value).into())).collect();
        json!({
            "id": text("id"),
            "source": text("source"),
            "type": text("type"),
            "time": time,
            "content_type": self.content_type(text("datacontenttype"), data),
            "subject": text("subject"),
            "dataschema": text("dataschema"),
            "extensions": extensions,
            "key": key,
            "traceparent": text("traceparent"),
            "data": self.data(data, text("datacontenttype")),
        })
    }

    fn content_type(self, given: Option<&str>, data: Option<&Value>) -> String {
        let of_nothing = match (self.is_structured, self.sdk) {
            (true, _) if data.is_some() => "application/json",
            // The default of its binding of HTTP.
            (false, Sdk::JavaScript) if self.binding != "kafka" => "application/json; charset=utf-8",
            _ => "application/octet-stream",
        };
        given.unwrap_or(of_nothing).to_owned()
    }

    /// Returns the value of an extension, which is escaped and cut to the maximum of a header.
    fn text_of(self, value: &Value) -> String {
        match value {
            Value::String(text) => text.replace('\n', "\\n").chars().take(8_192).collect(),
            // Python's own spelling.
            Value::Bool(true) if self.sdk == Sdk::Python && !self.is_structured && !self.is_amqp() => {
                "True".to_owned()
            }
            value => value.to_string(),
        }
    }
}

/// Returns true if a message has a field for it, or a meaning that is not a text's.
fn is_field(name: &str) -> bool {
    let fields = ["id", "source", "type", "time", "datacontenttype", "dataschema", "subject", "partitionkey"];
    fields.contains(&name) || ["schemaversion", "sequence"].contains(&name)
}
