//! Parser of `#[event(...)]`: known attributes, their allowed places, and the form of their values.
//!
//! After a mistake, parsing continues at the next comma: two mistakes are two errors in one build.

use proc_macro2::{Span, TokenTree};
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::{Attribute, Ident, LitInt, LitStr, Meta, Path, Token};

use crate::error::Errors;

/// Item that carries an `#[event(...)]`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Struct,
    Enum,
    Variant,
    Field,
}

impl Place {
    fn named(self) -> &'static str {
        match self {
            Self::Struct => "a struct",
            Self::Enum => "an enum",
            Self::Variant => "a variant",
            Self::Field => "a field",
        }
    }
}

/// Every attribute, and the places that allow it.
const KNOWN: [(&str, &[Place]); 7] = [
    ("topic", &[Place::Struct, Place::Enum, Place::Variant]),
    ("local", &[Place::Struct, Place::Enum, Place::Variant]),
    ("type", &[Place::Struct, Place::Variant]),
    ("version", &[Place::Struct, Place::Variant]),
    ("key", &[Place::Struct, Place::Enum, Place::Variant, Place::Field]),
    ("keyless", &[Place::Struct, Place::Enum, Place::Variant]),
    ("crate", &[Place::Struct, Place::Enum]),
];

/// The attributes of one struct, enum, variant or field.
#[derive(Default)]
pub(crate) struct Attrs {
    pub(crate) topic: Option<LitStr>,
    /// `local`: there is no topic.
    pub(crate) local: Option<Span>,
    pub(crate) wire_type: Option<LitStr>,
    pub(crate) version: Option<u32>,
    /// `key = "field"`, which names the field from outside.
    pub(crate) key_path: Option<LitStr>,
    /// `key`, on the field itself.
    pub(crate) key_mark: Option<Span>,
    pub(crate) keyless: Option<Span>,
    pub(crate) krate: Option<Path>,
    /// True if there is any `#[event]`.
    pub(crate) any: bool,
    seen: Vec<&'static str>,
}

impl Attrs {
    pub(crate) fn read(attrs: &[Attribute], place: Place, errors: &mut Errors) -> Self {
        let mut all = Self::default();
        for attr in attrs.iter().filter(|attr| attr.path().is_ident("event")) {
            all.any = true;
            if !matches!(attr.meta, Meta::List(_)) {
                errors.on(attr, "`event` takes its attributes in parentheses: `#[event(...)]`");
                continue;
            }
            if let Err(error) = attr.parse_args_with(|input: ParseStream<'_>| {
                all.read_list(input, place, errors);
                Ok(())
            }) {
                errors.push(error);
            }
        }
        all
    }

    /// Returns true if `crate` was written, valid or not.
    pub(crate) fn has_crate(&self) -> bool {
        self.seen.contains(&"crate")
    }

    fn read_list(&mut self, input: ParseStream<'_>, place: Place, errors: &mut Errors) {
        while !input.is_empty() {
            match self.read_one(input, place) {
                Ok(()) if input.is_empty() || input.peek(Token![,]) => {}
                Ok(()) => errors.push(input.error("expected a comma before the next attribute")),
                Err(error) => errors.push(error),
            }
            while !input.is_empty() && !input.peek(Token![,]) {
                // Can't fail on input that is not empty; if it did, the loop must end anyway.
                if input.parse::<TokenTree>().is_err() {
                    return;
                }
            }
            if input.parse::<Option<Token![,]>>().is_err() {
                return;
            }
        }
    }

    fn read_one(&mut self, input: ParseStream<'_>, place: Place) -> syn::Result<()> {
        if !input.peek(Ident::peek_any) {
            return Err(input.error("expected the name of an attribute, such as `topic`"));
        }
        let ident = input.call(Ident::parse_any)?;
        let Some((name, places)) = KNOWN.into_iter().find(|(name, _)| ident == *name) else {
            return Err(syn::Error::new(ident.span(), unknown(&ident.to_string(), place)));
        };
        if !places.contains(&place) {
            let message =
                format!("`{name}` can't stand on {}; it belongs on {}", place.named(), list_of(places));
            return Err(syn::Error::new(ident.span(), message));
        }
        if self.seen.contains(&name) {
            let message = format!("`{name}` occurs twice; remove one of them");
            return Err(syn::Error::new(ident.span(), message));
        }
        self.seen.push(name);
        match name {
            "topic" => self.topic = Some(text(&ident, input, "orders")?),
            "local" => {
                bare(&ident, input, "`local` takes no value: write `#[event(local)]`")?;
                self.local = Some(ident.span());
            }
            "type" => self.wire_type = Some(text(&ident, input, "order.placed")?),
            "version" => self.version = Some(version(&ident, input)?),
            "key" if place == Place::Field => {
                bare(&ident, input, "`key` on a field is that field: write `#[event(key)]`")?;
                self.key_mark = Some(ident.span());
            }
            "key" => self.key_path = Some(key_path(&ident, input, place)?),
            "keyless" => {
                bare(&ident, input, "`keyless` takes no value: write `#[event(keyless)]`")?;
                self.keyless = Some(ident.span());
            }
            _ => self.krate = Some(krate(&ident, input)?),
        }
        Ok(())
    }
}

fn unknown(name: &str, place: Place) -> String {
    let here = KNOWN.iter().filter(|(_, places)| places.contains(&place)).map(|(name, _)| *name);
    match closest(name, KNOWN.map(|(name, _)| name)) {
        Some(known) => format!("unknown attribute `{name}`; did you mean `{known}`?"),
        None => {
            let here = here.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            format!("unknown attribute `{name}`; {} takes {here}", place.named())
        }
    }
}

/// Returns the word that the user probably meant: at most a third of it differs.
fn closest<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    words
        .into_iter()
        .map(|known| (strsim::osa_distance(word, known), known))
        .filter(|(distance, known)| *distance <= known.len().div_ceil(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// `a struct, an enum or a variant`.
fn list_of(places: &[Place]) -> String {
    let names: Vec<_> = places.iter().map(|place| place.named()).collect();
    match &names[..] {
        [others @ .., first, last] => {
            let others: String = others.iter().map(|name| format!("{name}, ")).collect();
            format!("{others}{first} or {last}")
        }
        names => names.concat(),
    }
}

/// `name = "text"`.
fn text(name: &Ident, input: ParseStream<'_>, example: &str) -> syn::Result<LitStr> {
    let wanted = format!("`{name}` takes a string: `{name} = \"{example}\"`");
    value(name, input, &wanted)?;
    input.parse::<LitStr>().map_err(|error| syn::Error::new(error.span(), wanted))
}

/// `key = "field"` on an item with fields.
fn key_path(name: &Ident, input: ParseStream<'_>, place: Place) -> syn::Result<LitStr> {
    let wanted = format!(
        "`key` on {} names a field: `key = \"order_id\"`; a bare `#[event(key)]` goes on the field itself",
        place.named()
    );
    value(name, input, &wanted)?;
    input.parse::<LitStr>().map_err(|error| syn::Error::new(error.span(), wanted))
}

/// `version = 2`.
fn version(name: &Ident, input: ParseStream<'_>) -> syn::Result<u32> {
    let wanted = "`version` takes a whole number from 1 to 4294967295: `version = 1`";
    value(name, input, wanted)?;
    let number = input.parse::<LitInt>().map_err(|error| syn::Error::new(error.span(), wanted))?;
    match number.base10_parse::<u32>() {
        Ok(0) => Err(syn::Error::new(number.span(), "the version is 0; versions count from 1")),
        Ok(version) if number.suffix().is_empty() => Ok(version),
        _ => Err(syn::Error::new(number.span(), wanted)),
    }
}

/// `crate = some::path` or `crate = "some::path"`.
fn krate(name: &Ident, input: ParseStream<'_>) -> syn::Result<Path> {
    let wanted = "`crate` takes the path of the crate: `crate = some::path`";
    value(name, input, wanted)?;
    let wrong = |error: syn::Error| syn::Error::new(error.span(), wanted);
    if input.peek(LitStr) {
        return input.parse::<LitStr>()?.parse_with(Path::parse_mod_style).map_err(wrong);
    }
    input.call(Path::parse_mod_style).map_err(wrong)
}

/// The `=` before a value.
fn value(name: &Ident, input: ParseStream<'_>, wanted: &str) -> syn::Result<()> {
    input.parse::<Token![=]>().map(|_| ()).map_err(|_| syn::Error::new(name.span(), wanted))
}

/// An attribute without a value.
fn bare(name: &Ident, input: ParseStream<'_>, wanted: &str) -> syn::Result<()> {
    if input.is_empty() || input.peek(Token![,]) {
        return Ok(());
    }
    Err(syn::Error::new(name.span(), wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_understood_and_another_word_is_not() {
        for (slip, meant) in [("tpic", "topic"), ("typ", "type"), ("tyep", "type"), ("keyles", "keyless")] {
            assert_eq!(closest(slip, KNOWN.map(|(name, _)| name)), Some(meant), "{slip}");
        }
        for other in ["name", "partition", "x"] {
            assert_eq!(closest(other, KNOWN.map(|(name, _)| name)), None, "{other}");
        }
    }

    #[test]
    fn reading_goes_on_behind_a_mistake() {
        let input: syn::DeriveInput = syn::parse_quote! {
            #[event(tpic = ["a", "b"], type = 3 + 4, version = 2, , crate = a::b)]
            struct Event;
        };
        let mut errors = Errors::default();
        let attrs = Attrs::read(&input.attrs, Place::Struct, &mut errors);
        assert_eq!(attrs.version, Some(2));
        assert!(attrs.krate.is_some());
        let said: Vec<_> =
            errors.finish(()).unwrap_err().into_iter().map(|error| error.to_string()).collect();
        assert_eq!(
            said,
            [
                "unknown attribute `tpic`; did you mean `topic`?",
                "`type` takes a string: `type = \"order.placed\"`",
                "expected the name of an attribute, such as `topic`",
            ]
        );
    }
}
