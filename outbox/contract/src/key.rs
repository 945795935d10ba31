//! The key of an event: types that can be keys, and the trait for types of your own.
//!
//! A key is text on the wire. A type can be a key if every value of it has one spelling, the same
//! in every process and in every version of the program. For this reason floating-point numbers
//! (`0.0` and `-0.0` are equal and print differently), lists and `Option` are not keys. An event
//! always has its key, or it never has one.

use std::borrow::Cow;
use std::num::{
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroI64, NonZeroI128, NonZeroIsize, NonZeroU8, NonZeroU16,
    NonZeroU32, NonZeroU64, NonZeroU128, NonZeroUsize,
};
use std::rc::Rc;
use std::sync::Arc;

use uuid::Uuid;

use crate::id::MessageId;
use crate::name::Key;

/// A type whose values can be the key of an event: a field marked `#[event(key)]`.
///
/// Strings, integers and [`Uuid`]s are keys, and so is a reference or smart pointer to one. To make
/// your own type a key, implement its text form. Two values that mean the same must have the same
/// text, because messages are ordered by the text.
///
/// ```
/// use std::borrow::Cow;
/// # extern crate outbox_contract as outbox;
/// use outbox::EventKey;
///
/// struct OrderId(u64);
///
/// impl EventKey for OrderId {
///     fn event_key(&self) -> Cow<'_, str> { self.0.event_key() }
/// }
///
/// assert_eq!(OrderId(7).event_key(), "7");
/// ```
///
/// The append rejects text that is not a valid key (empty, more than 255 bytes, a control
/// character): see [`Key`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be the key of an event",
    label = "not a key",
    note = "a key is a string, an integer or a `Uuid`, or a reference to one",
    note = "make a type of your own a key: `impl EventKey for {Self} {{ fn event_key(&self) -> Cow<'_, str> {{ … }} }}`"
)]
pub trait EventKey {
    /// Returns the key as text. Never fails, and always returns the same text for the same value.
    fn event_key(&self) -> Cow<'_, str>;
}

macro_rules! is_text {
    ($($text:ty)*) => {$(
        impl EventKey for $text {
            fn event_key(&self) -> Cow<'_, str> {
                Cow::Borrowed(self)
            }
        }
    )*};
}

macro_rules! is_printed {
    ($($printed:ty)*) => {$(
        impl EventKey for $printed {
            fn event_key(&self) -> Cow<'_, str> {
                Cow::Owned(self.to_string())
            }
        }
    )*};
}

macro_rules! is_pointer {
    ($($pointer:ty)*) => {$(
        impl<T: EventKey + ?Sized> EventKey for $pointer {
            fn event_key(&self) -> Cow<'_, str> {
                (**self).event_key()
            }
        }
    )*};
}

is_text! { str String Cow<'_, str> }
is_printed! { i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize }
is_printed! {
    NonZeroI8 NonZeroI16 NonZeroI32 NonZeroI64 NonZeroI128 NonZeroIsize
    NonZeroU8 NonZeroU16 NonZeroU32 NonZeroU64 NonZeroU128 NonZeroUsize
}
is_printed! { Uuid MessageId }
is_pointer! { &T &mut T Box<T> Rc<T> Arc<T> }

impl EventKey for Key {
    fn event_key(&self) -> Cow<'_, str> {
        Cow::Borrowed(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_key_reads_as_its_value_does() {
        let uuid = Uuid::from_u128(0x0190_b6a0_0000_7000_8000_0000_0000_0001);
        let keys: [(&dyn EventKey, &str); 12] = [
            (&"a", "a"),
            (&String::from("b"), "b"),
            (&Cow::Borrowed("c"), "c"),
            (&Box::<str>::from("d"), "d"),
            (&Arc::<str>::from("e"), "e"),
            (&i64::MIN, "-9223372036854775808"),
            (&u128::MAX, "340282366920938463463374607431768211455"),
            (&NonZeroU64::MIN, "1"),
            (&uuid, "0190b6a0-0000-7000-8000-000000000001"),
            (&MessageId::from_uuid(uuid), "0190b6a0-0000-7000-8000-000000000001"),
            (&Arc::new(Box::new(7_u8)), "7"),
            (&Key::new("f").unwrap(), "f"),
        ];
        for (key, text) in keys {
            assert_eq!(key.event_key(), text);
        }
    }

    #[test]
    fn a_text_is_lent_and_not_copied() {
        assert!(matches!(Arc::<str>::from("e").event_key(), Cow::Borrowed("e")));
        assert!(matches!(Cow::<str>::Owned("c".to_owned()).event_key(), Cow::Borrowed("c")));
    }
}
