//! Properties of a derived event: its types on the wire, and its key.

use std::borrow::Cow;

use outbox_contract::{DomainEvent as _, EventKey, EventType};
use outbox_derive::DomainEvent;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

const fn entry(topic: &'static str, name: &'static str, version: u32) -> EventType {
    EventType::new(topic, name, version)
}

fn key(event: &impl outbox_contract::DomainEvent) -> Option<String> {
    event.key().map(Cow::into_owned)
}

#[test]
fn a_struct_has_one_type_and_the_key_of_the_marked_field() {
    #[derive(Serialize, DomainEvent)]
    #[event(crate = outbox_contract, topic = "orders", type = "order.placed", version = 2)]
    struct OrderPlaced {
        #[event(key)]
        order_id: Uuid,
        total_cents: i64,
    }

    let event = OrderPlaced { order_id: Uuid::from_u128(7), total_cents: 4_200 };
    assert_eq!(OrderPlaced::TYPES, [entry("orders", "order.placed", 2)]);
    assert_eq!(event.event_type(), &OrderPlaced::TYPES[0]);
    assert_eq!(key(&event).unwrap(), "00000000-0000-0000-0000-000000000007");
}

#[test]
fn the_version_is_1_unless_said_and_attributes_may_be_spread() {
    #[derive(DomainEvent)]
    #[event(crate = "outbox_contract")]
    #[event(topic = "orders")]
    #[event(type = "order.closed", keyless)]
    struct OrderClosed;

    assert_eq!(OrderClosed.event_type(), &entry("orders", "order.closed", 1));
    assert_eq!(key(&OrderClosed), None);
}

#[test]
fn the_container_may_name_the_key_by_its_rust_name_or_by_serdes_or_by_a_path() {
    #[derive(Serialize)]
    struct Customer {
        r#type: Option<u8>,
        ids: (u32, String),
    }

    #[derive(Serialize, DomainEvent)]
    #[event(crate = outbox_contract, topic = "t", type = "rust", key = "order_id")]
    #[serde(rename_all = "camelCase")]
    struct ByRustName {
        order_id: u32,
    }

    #[derive(Serialize, DomainEvent)]
    #[event(crate = outbox_contract, topic = "t", type = "rule", key = "orderId")]
    #[serde(rename_all = "camelCase")]
    struct ByRule {
        order_id: u32,
    }

    #[derive(Serialize, DomainEvent)]
    #[event(crate = outbox_contract, topic = "t", type = "rename", key = "order.id")]
    struct ByRename {
        #[serde(rename(serialize = "order.id", deserialize = "x"))]
        number: u32,
    }

    #[derive(Serialize, DomainEvent)]
    #[event(crate = outbox_contract, topic = "t", type = "path", key = "customer.ids.1")]
    struct ByPath {
        customer: Box<Customer>,
    }

    #[derive(Serialize, DomainEvent)]
    #[event(crate = outbox_contract, topic = "t", type = "raw", key = "type")]
    struct ByRawName {
        r#type: String,
    }

    assert_eq!(key(&ByRustName { order_id: 1 }).unwrap(), "1");
    assert_eq!(key(&ByRule { order_id: 2 }).unwrap(), "2");
    assert_eq!(key(&ByRename { number: 3 }).unwrap(), "3");
    let customer = Box::new(Customer { r#type: None, ids: (1, "c-1".to_owned()) });
    assert_eq!(key(&ByPath { customer }).unwrap(), "c-1");
    assert_eq!(key(&ByRawName { r#type: "x".to_owned() }).unwrap(), "x");
}

#[test]
fn every_variant_of_an_enum_has_its_own_type_and_key() {
    #[derive(DomainEvent)]
    #[event(crate = outbox_contract, topic = "orders")]
    #[expect(dead_code, reason = "what is not the key is only carried")]
    enum OrderEvent {
        #[event(type = "order.placed", version = 3)]
        Placed {
            #[event(key)]
            order_id: u64,
            total: i64,
        },
        #[event(type = "order.noted")]
        Noted(String, #[event(key)] Cow<'static, str>),
        #[event(topic = "audit", type = "orders.purged", keyless)]
        Purged,
    }

    let types = [
        entry("orders", "order.placed", 3),
        entry("orders", "order.noted", 1),
        entry("audit", "orders.purged", 1),
    ];
    assert_eq!(OrderEvent::TYPES, types);
    let events = [
        (OrderEvent::Placed { order_id: 7, total: 1 }, Some("7")),
        (OrderEvent::Noted("text".to_owned(), "order-7".into()), Some("order-7")),
        (OrderEvent::Purged, None),
    ];
    for ((event, expected), expected_type) in events.iter().zip(&types) {
        assert_eq!(event.event_type(), expected_type);
        assert_eq!(key(event).as_deref(), *expected);
    }
}

#[test]
fn an_enum_may_name_one_key_for_all_and_a_variant_may_differ() {
    struct Placed {
        order_id: u64,
    }

    #[derive(DomainEvent)]
    #[event(crate = outbox_contract, topic = "orders", key = "0.order_id")]
    enum OrderEvent {
        #[event(type = "order.placed")]
        Placed(Placed),
        #[event(type = "order.moved")]
        Moved {
            #[event(key)]
            to: String,
        },
        #[event(type = "order.merged", key = "into")]
        Merged { into: u8 },
        #[event(type = "order.purged", keyless)]
        Purged,
    }

    assert_eq!(key(&OrderEvent::Placed(Placed { order_id: 7 })).unwrap(), "7");
    assert_eq!(key(&OrderEvent::Moved { to: "a".to_owned() }).unwrap(), "a");
    assert_eq!(key(&OrderEvent::Merged { into: 3 }).unwrap(), "3");
    assert_eq!(key(&OrderEvent::Purged), None);
}

#[test]
fn enums_whose_variants_are_called_otherwise_read_each_other_by_serdes_names() {
    #[derive(Debug, PartialEq, Serialize, Deserialize, DomainEvent)]
    #[event(crate = outbox_contract, topic = "orders", key = "order_id")]
    enum Shop {
        #[serde(rename = "order.placed")]
        Placed { order_id: u64 },
        #[event(type = "order.paid")]
        Paid { order_id: u64 },
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize, DomainEvent)]
    #[event(crate = outbox_contract, topic = "orders", key = "order_id")]
    enum Billing {
        #[serde(rename = "order.placed")]
        WasPlaced { order_id: u64 },
        #[event(type = "order.paid")]
        WasPaid { order_id: u64 },
    }

    assert_eq!(Shop::TYPES, Billing::TYPES);
    let payload = serde_json::to_string(&Shop::Placed { order_id: 7 }).unwrap();
    let read: Billing = serde_json::from_str(&payload).unwrap();
    assert_eq!(read, Billing::WasPlaced { order_id: 7 });
    let payload = serde_json::to_string(&read).unwrap();
    assert_eq!(serde_json::from_str::<Shop>(&payload).unwrap(), Shop::Placed { order_id: 7 });

    // `type` names the event, and the variant stays in the payload.
    let payload = serde_json::to_string(&Shop::Paid { order_id: 7 }).unwrap();
    assert_eq!(payload, r#"{"Paid":{"order_id":7}}"#);
    serde_json::from_str::<Billing>(&payload).unwrap_err();
}

#[test]
fn an_enum_may_be_keyless_as_a_whole_and_have_no_topic_of_its_own() {
    #[derive(DomainEvent)]
    #[event(crate = outbox_contract, keyless)]
    enum Signal {
        #[event(topic = "a", type = "on")]
        On,
        #[event(topic = "b", type = "off")]
        Off(#[expect(dead_code, reason = "what is not the key is only carried")] u8),
    }

    assert_eq!(Signal::TYPES, [entry("a", "on", 1), entry("b", "off", 1)]);
    assert_eq!((key(&Signal::On), key(&Signal::Off(1))), (None, None));
}

#[test]
fn serde_may_give_the_wire_name() {
    #[derive(Serialize, DomainEvent)]
    #[event(crate = outbox_contract, topic = "t", keyless)]
    #[serde(rename(serialize = "order.placed", deserialize = "other"))]
    struct Placed;

    #[derive(Serialize, DomainEvent)]
    #[event(crate = outbox_contract, topic = "t", keyless)]
    #[serde(tag = "kind", rename_all = "snake_case", rename_all_fields = "camelCase")]
    enum Event {
        OrderPlaced,
        #[serde(rename = "order.moved")]
        OrderMoved,
        #[event(type = "order.closed")]
        #[serde(rename = "closed", alias = "done")]
        Closed,
    }

    let names: Vec<_> = Placed::TYPES.iter().chain(Event::TYPES).map(|entry| entry.name).collect();
    assert_eq!(names, ["order.placed", "order_placed", "order.moved", "order.closed"]);
    assert_eq!(Event::OrderMoved.event_type().name, "order.moved");
    let _ = (Event::OrderPlaced, Event::Closed, Placed);
}

#[test]
fn names_by_rule_are_those_that_serde_writes() {
    macro_rules! agrees {
        ($($rule:literal)*) => {$({
            #[derive(Serialize, DomainEvent)]
            #[event(crate = outbox_contract, topic = "t", keyless)]
            #[serde(rename_all = $rule)]
            enum Event { OrderPlaced, HTTPError, Über2Go, Ok_Then, r#Type }

            for event in [Event::OrderPlaced, Event::HTTPError, Event::Über2Go, Event::Ok_Then, Event::r#Type] {
                assert_eq!(serde_json::to_value(&event).unwrap(), event.event_type().name, $rule);
            }
        })*};
    }
    #[expect(non_camel_case_types, reason = "the rules are tried on odd names")]
    {
        agrees! {
            "lowercase" "UPPERCASE" "PascalCase" "snake_case" "SCREAMING_SNAKE_CASE" "kebab-case"
            "SCREAMING-KEBAB-CASE"
        }
    }

    // Apart, because serde itself fails on a first letter that is not ASCII under this rule.
    #[derive(Serialize, DomainEvent)]
    #[event(crate = outbox_contract, topic = "t", keyless)]
    #[serde(rename_all = "camelCase")]
    enum Camel {
        OrderPlaced,
    }
    assert_eq!(serde_json::to_value(Camel::OrderPlaced).unwrap(), Camel::OrderPlaced.event_type().name);
}

#[test]
fn fields_by_rule_are_those_that_serde_writes() {
    macro_rules! agrees {
        ($($rule:literal $name:literal)*) => {$({
            #[derive(Serialize, DomainEvent)]
            #[event(crate = outbox_contract, topic = "t", type = "t", key = $name)]
            #[serde(rename_all = $rule)]
            struct InStruct { order_line_id: u8 }

            #[derive(Serialize, DomainEvent)]
            #[event(crate = outbox_contract, topic = "t", key = $name)]
            #[serde(untagged, rename_all_fields = $rule)]
            enum InEnum {
                #[event(type = "t")]
                Variant { order_line_id: u8 },
            }

            let (one, other) = (InStruct { order_line_id: 7 }, InEnum::Variant { order_line_id: 7 });
            assert_eq!(serde_json::to_value(&one).unwrap()[$name], 7, $rule);
            assert_eq!(serde_json::to_value(&other).unwrap()[$name], 7, $rule);
            assert_eq!((key(&one).unwrap(), key(&other).unwrap()), ("7".into(), "7".into()));
        })*};
    }
    agrees! {
        "lowercase" "order_line_id"
        "UPPERCASE" "ORDER_LINE_ID"
        "PascalCase" "OrderLineId"
        "camelCase" "orderLineId"
        "snake_case" "order_line_id"
        "SCREAMING_SNAKE_CASE" "ORDER_LINE_ID"
        "kebab-case" "order-line-id"
        "SCREAMING-KEBAB-CASE" "ORDER-LINE-ID"
    }
}

#[test]
fn generics_lifetimes_and_bounds_are_kept() {
    #[derive(Serialize, DomainEvent)]
    #[event(crate = outbox_contract, topic = "t", type = "changed")]
    #[serde(bound = "T: Serialize, K: Serialize")]
    struct Changed<'a, K, T: ?Sized = str, const N: usize = 1>
    where
        T: ToOwned,
    {
        #[event(key)]
        id: &'a K,
        value: Cow<'a, T>,
    }

    #[derive(DomainEvent)]
    #[event(crate = outbox_contract, topic = "t", key = "id")]
    enum Either<K> {
        #[event(type = "left")]
        Left { id: Box<K> },
        #[event(type = "right")]
        Right { id: K },
    }

    let changed: Changed<'_, u64> = Changed { id: &7, value: Cow::Borrowed("x") };
    assert_eq!(key(&changed).unwrap(), "7");
    assert_eq!(key(&Either::Left { id: Box::new(1) }).unwrap(), "1");
    assert_eq!(key(&Either::Right { id: "r" }).unwrap(), "r");
}

#[test]
fn a_type_of_the_users_own_can_be_a_key() {
    struct OrderId(u64);

    impl EventKey for OrderId {
        fn event_key(&self) -> Cow<'_, str> {
            format!("order-{}", self.0).into()
        }
    }

    #[derive(DomainEvent)]
    #[event(crate = outbox_contract, topic = "t", type = "t")]
    struct Event(#[event(key)] OrderId);

    assert_eq!(key(&Event(OrderId(7))).unwrap(), "order-7");
}

#[test]
fn a_local_event_has_no_topic_and_needs_neither_name_nor_key() {
    #[derive(DomainEvent)]
    #[event(crate = outbox_contract, local)]
    struct StockRanLow {
        #[allow(dead_code, reason = "an event has fields")]
        item: u64,
    }

    #[derive(DomainEvent)]
    #[event(crate = outbox_contract, topic = "stock", key = "item")]
    enum StockEvent {
        #[event(type = "stock.counted")]
        Counted { item: u64 },
        #[event(local)]
        WasLooked { item: u64 },
    }

    #[derive(DomainEvent)]
    #[event(crate = outbox_contract, local)]
    enum Mostly {
        Inside,
        #[event(topic = "stock", type = "stock.moved", keyless)]
        Outside,
    }

    assert_eq!(StockRanLow::TYPES, [EventType::local("stock.ran.low", 1)]);
    assert_eq!(key(&StockRanLow { item: 7 }), None);
    let types: Vec<_> = StockEvent::TYPES.iter().map(|kind| (kind.name, kind.is_local())).collect();
    assert_eq!(types, [("stock.counted", false), ("was.looked", true)]);
    assert_eq!(key(&StockEvent::Counted { item: 7 }).unwrap(), "7");
    assert_eq!(key(&StockEvent::WasLooked { item: 7 }).unwrap(), "7");
    assert!(Mostly::Inside.event_type().is_local() && !Mostly::Outside.event_type().is_local());
}
