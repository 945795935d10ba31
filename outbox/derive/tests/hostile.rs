//! The derive's output compiles wherever it may stand, and draws no warning there.
//!
//! The default path of the crate is tried here too: `outbox` is another name for the contract in
//! this file.

#![deny(warnings, unused_qualifications)]
#![deny(clippy::pedantic, clippy::allow_attributes, clippy::indexing_slicing, clippy::pattern_type_mismatch)]

extern crate outbox_contract as outbox;

/// Nothing is in scope, and what the output needs goes by other names here.
mod without_a_prelude {
    #![no_implicit_prelude]
    #![expect(
        dead_code,
        non_camel_case_types,
        non_upper_case_globals,
        reason = "names that could be in the way"
    )]

    struct Option;
    struct Some;
    struct None;
    struct Cow;
    struct EventType;
    struct DomainEvent;
    struct str;
    struct u32;
    struct usize;
    mod core {}
    mod std {}
    mod outbox {}
    const field: ::core::primitive::u8 = 1;

    #[derive(::outbox_derive::DomainEvent)]
    #[event(topic = "t", type = "struct")]
    pub(crate) struct Struct {
        #[event(key)]
        pub(crate) key: ::core::primitive::u8,
    }

    impl Struct {
        const TYPES: () = ();
        fn event_type() {}
        fn key() {}
        fn event_key() {}
    }

    #[derive(::outbox_derive::DomainEvent)]
    #[event(topic = "t", key = "field")]
    pub(crate) enum Enum<'field, T, const TYPES: ::core::primitive::usize> {
        #[event(type = "a")]
        Types { field: T, this: &'field [T; TYPES] },
        #[event(type = "b")]
        None { field: ::std::string::String },
        #[event(type = "c", key = "0")]
        Some(::core::primitive::i8, ::core::primitive::i8),
        #[event(type = "d", keyless)]
        Cow,
    }
}

/// Each of these would draw a warning if the output did not allow it.
mod without_a_warning {
    use std::convert::Infallible;

    #[derive(outbox_derive::DomainEvent)]
    #[event(topic = "t")]
    #[expect(dead_code, reason = "only what the derive makes of it is of interest")]
    pub(crate) enum Old {
        #[deprecated]
        #[event(type = "a")]
        Was(#[event(key)] String),
        #[event(type = "b", keyless)]
        Never(Infallible),
    }

    #[derive(outbox_derive::DomainEvent)]
    #[event(topic = "t", type = "t")]
    #[deprecated]
    #[expect(unused_qualifications, dead_code, reason = "said once, for the type that is written so")]
    pub(crate) struct Qualified {
        #[deprecated]
        #[event(key)]
        key: std::string::String,
    }

    #[expect(deprecated, reason = "the warning is for who uses it, and the derive does not")]
    pub(crate) fn old() -> Old {
        Old::Was(String::from("key"))
    }
}

/// A macro that makes events passes the key's type in a group.
macro_rules! event {
    ($name:ident, $field:ident: $ty:ty, $topic:literal, $version:literal) => {
        #[derive(outbox_derive::DomainEvent)]
        #[event(topic = $topic, type = "made", version = $version)]
        struct $name {
            #[event(key)]
            $field: $ty,
        }
    };
}

event!(Made, number: u64, "made", 4);

#[test]
fn the_output_means_the_same_everywhere() {
    use outbox_contract::DomainEvent;
    use without_a_prelude::{Enum, Struct};

    fn key<E: DomainEvent>(event: &E) -> Option<String> {
        event.key().map(String::from)
    }

    assert_eq!(key(&Struct { key: 7 }).unwrap(), "7");
    assert_eq!(key(&Enum::Types { field: "f", this: &["this"] }).unwrap(), "f");
    let none: Enum<'_, u8, 0> = Enum::None { field: "n".to_owned() };
    assert_eq!(key(&none).unwrap(), "n");
    assert_eq!(key(&Enum::<'_, u8, 0>::Some(1, 2)).unwrap(), "1");
    assert_eq!(key(&Enum::<'_, u8, 0>::Cow), None);
    assert_eq!(DomainEvent::event_type(&Enum::<'_, u8, 0>::Cow).name, "d");
    assert_eq!(key(&without_a_warning::old()).unwrap(), "key");
    let made = Made { number: 1 };
    assert_eq!(
        (key(&made).unwrap(), made.event_type().topic, made.event_type().version),
        ("1".into(), Some("made"), 4)
    );
}
