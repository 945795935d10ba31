//! Validates the user's input, and reports each error on the exact token. The result can be
//! expanded without further checks.

use std::collections::HashMap;
use std::fmt::Display;

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::{DeriveInput, Ident, LitStr, Path};

use crate::ast::{Field, Input, Shape, Variant};
use crate::attr::Attrs;
use crate::error::Errors;
use crate::key::{self, Key};
use crate::rename::{self, Names};

/// Maximum size of a topic, in bytes. The contract's limit; a test compares the two.
const MAX_TOPIC_BYTES: usize = 249;
/// Maximum size of a wire type's name, in bytes. Likewise the contract's limit.
const MAX_TYPE_BYTES: usize = 255;

/// A valid event.
pub(crate) struct Event<'a> {
    pub(crate) node: &'a DeriveInput,
    pub(crate) krate: Path,
    pub(crate) shape: Checked<'a>,
}

pub(crate) enum Checked<'a> {
    Struct(Kind<'a>),
    Enum(Vec<(&'a Ident, Kind<'a>)>),
}

/// Wire form of one struct or variant.
pub(crate) struct Kind<'a> {
    /// `None`: the event is local.
    pub(crate) topic: Option<String>,
    pub(crate) name: String,
    pub(crate) version: u32,
    pub(crate) key: Option<Key<'a>>,
}

/// A struct or a variant: an item with a wire type of its own.
pub(crate) struct Owner<'a> {
    pub(crate) ident: &'a Ident,
    pub(crate) attrs: &'a Attrs,
    pub(crate) fields: &'a [Field<'a>],
    pub(crate) container: Option<&'a Attrs>,
}

impl Owner<'_> {
    /// `` `OrderPlaced` `` or `` variant `Placed` ``.
    pub(crate) fn named(&self) -> String {
        let what = if self.container.is_some() { "variant " } else { "" };
        format!("{what}`{}`", self.ident.unraw())
    }
}

pub(crate) fn check<'a>(input: &'a Input<'a>) -> syn::Result<Event<'a>> {
    let mut errors = Errors::default();
    let krate = input.attrs.krate.clone().unwrap_or_else(|| syn::parse_quote!(::outbox));
    let shape = match &input.shape {
        Shape::Struct(fields) => check_struct(input, fields, &mut errors).map(Checked::Struct),
        Shape::Enum(variants) => check_enum(input, variants, &mut errors).map(Checked::Enum),
    };
    let shape = errors.finish(shape)?;
    // Without a shape there is already an error; this one is a safeguard.
    let shape = shape.ok_or_else(|| syn::Error::new(input.node.ident.span(), "not an event"))?;
    Ok(Event { node: input.node, krate, shape })
}

fn check_struct<'a>(input: &'a Input<'a>, fields: &'a [Field<'a>], errors: &mut Errors) -> Option<Kind<'a>> {
    let ident = &input.node.ident;
    if !input.attrs.any {
        let suggested = rename::suggested(ident);
        let message = format!(
            "`{ident}` does not say what it is on the wire; \
             add `#[event(topic = \"…\", type = \"{suggested}\")]` to it and `#[event(key)]` to the field it is ordered by"
        );
        errors.on(ident, message);
        return None;
    }
    let owner = Owner { ident, attrs: &input.attrs, fields, container: None };
    let topic = match goes(&input.attrs, errors) {
        Some(goes) => goes.topic(),
        None => {
            let message = format!(
                "`{ident}` has no topic; add `topic = \"…\"` to its `#[event(...)]`: where consumers find it; \
                 or `local`, if no other process wants it"
            );
            errors.on(ident, message);
            None
        }
    };
    let local = matches!(topic, Some(None));
    let name = name_of(&owner, &input.names, None, local, errors).map(|(name, _)| name);
    let key = errors.note(key::of(&owner, local));
    Some(Kind { topic: topic?, name: name?, version: input.attrs.version.unwrap_or(1), key: key? })
}

fn check_enum<'a>(
    input: &'a Input<'a>,
    variants: &'a [Variant<'a>],
    errors: &mut Errors,
) -> Option<Vec<(&'a Ident, Kind<'a>)>> {
    let container = &input.attrs;
    if variants.is_empty() {
        errors.on(&input.node.ident, "an enum without variants can't be an event: it has no value to append");
    }
    if !container.any && variants.iter().all(|variant| !variant.attrs.any) {
        let ident = &input.node.ident;
        let message = format!(
            "`{ident}` does not say what it is on the wire; add `#[event(topic = \"…\")]` to it, \
             `#[event(type = \"…\")]` to each variant, and `#[event(key)]` to the field that each is ordered by"
        );
        errors.on(ident, message);
        return None;
    }
    if let (Some(keyless), Some(path)) = (container.keyless, &container.key_path) {
        errors.at(keyless, format!("`keyless` contradicts `key = {:?}`; remove one of them", path.value()));
    }
    let common = goes(container, errors);
    let without: Vec<_> = variants
        .iter()
        .filter(|variant| variant.attrs.topic.is_none() && variant.attrs.local.is_none())
        .collect();
    if let (None, Some(variant)) = (&common, without.first()) {
        let (ident, variant) = (&input.node.ident, variant.ident);
        let message = format!(
            "`{ident}` has no topic; add `#[event(topic = \"…\")]` to it, or to every variant \
             (`{variant}` has none of its own)"
        );
        errors.on(ident, message);
    }
    let mut taken: HashMap<String, &Ident> = HashMap::new();
    let kinds: Vec<_> = variants
        .iter()
        .map(|variant| {
            let owner = Owner {
                ident: variant.ident,
                attrs: &variant.attrs,
                fields: &variant.fields,
                container: Some(container),
            };
            let topic = goes(&variant.attrs, errors).or_else(|| common.clone()).and_then(Goes::topic);
            let local = matches!(topic, Some(None));
            let name = name_of(&owner, &variant.names, Some(&input.names), local, errors).map(|(name, span)| {
                match taken.get(&name) {
                    Some(first) => {
                        let message = format!(
                            "the type `{name}` is taken by variant `{first}`; in an enum every type needs a name of its own"
                        );
                        errors.at(span, message);
                    }
                    None => _ = taken.insert(name.clone(), variant.ident),
                }
                name
            });
            let key = errors.note(key::of(&owner, local));
            let version = variant.attrs.version.unwrap_or(1);
            Some((variant.ident, Kind { topic: topic?, name: name?, version, key: key? }))
        })
        .collect();
    kinds.into_iter().collect()
}

/// Destination of an event.
#[derive(Clone)]
enum Goes {
    To(String),
    /// No destination: it is local.
    Nowhere,
    /// The declared destination is invalid, and that is among the errors.
    Astray,
}

impl Goes {
    /// Returns the topic, or that there is none. `None`: it is not known.
    fn topic(self) -> Option<Option<String>> {
        match self {
            Self::To(topic) => Some(Some(topic)),
            Self::Nowhere => Some(None),
            Self::Astray => None,
        }
    }
}

/// Returns the destination, if it is declared here.
fn goes(attrs: &Attrs, errors: &mut Errors) -> Option<Goes> {
    match (&attrs.topic, attrs.local) {
        (Some(topic), Some(local)) => {
            let topic = topic.value();
            errors.at(local, format!("`local` contradicts `topic = {topic:?}`; remove one of them"));
            Some(Goes::Astray)
        }
        (Some(topic), None) => {
            Some(checked("topic", topic, MAX_TOPIC_BYTES, errors).map_or(Goes::Astray, Goes::To))
        }
        (None, Some(_)) => Some(Goes::Nowhere),
        (None, None) => None,
    }
}

/// Returns the wire name and the place of its declaration: `type`, serde's `rename`, or its
/// `rename_all` on the enum. A local event never goes on the wire, so it needs none and uses its
/// Rust name.
fn name_of(
    owner: &Owner<'_>,
    own: &Names,
    container: Option<&Names>,
    local: bool,
    errors: &mut Errors,
) -> Option<(String, Span)> {
    if let Some(name) = owner.attrs.wire_type.as_ref().or(own.rename.as_ref()) {
        return Some((checked("type", name, MAX_TYPE_BYTES, errors)?, name.span()));
    }
    if let Some(rule) = container.and_then(|container| container.rename_all) {
        let name = LitStr::new(&rule.of_variant(owner.ident), owner.ident.span());
        return Some((checked("type", &name, MAX_TYPE_BYTES, errors)?, name.span()));
    }
    let (owned, suggested) = (owner.named(), rename::suggested(owner.ident));
    if local {
        return Some((suggested, owner.ident.span()));
    }
    // A variant's name also appears in the payload, unless serde renames it: so the message names
    // serde first there. It does not insist on it, because codecs and tagging are the user's
    // choice.
    let message = match container {
        None => format!(
            "{owned} has no name on the wire; add `#[event(type = \"{suggested}\")]` (or `#[serde(rename = \"…\")]`): \
             a Rust name is never the type of an event, so that it can change"
        ),
        Some(_) => format!(
            "{owned} has no name on the wire; add `#[serde(rename = \"{suggested}\")]`, which names it in the payload as well \
             (`#[event(type = \"…\")]` does not): a Rust name is never the type of an event, so that it can change"
        ),
    };
    errors.on(owner.ident, message);
    None
}

/// Checks a text for tables and headers, by the contract's rules and with its messages.
fn checked(what: &str, text: &LitStr, most: usize, errors: &mut Errors) -> Option<String> {
    let value = text.value();
    let mut wrong = |problem: &dyn Display| errors.at(text.span(), problem);
    if value.is_empty() {
        wrong(&format_args!("the {what} is empty; give it at least one character"));
    } else if value.len() > most {
        let bytes = value.len();
        wrong(&format_args!("the {what} has {bytes} bytes; shorten it to {most} bytes or fewer"));
    } else if let Some(found) = value.chars().find(|letter| letter.is_control()) {
        let code = u32::from(found);
        wrong(&format_args!("the {what} {value:?} has the control character U+{code:04X}; remove it"));
    } else {
        return Some(value);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_those_of_the_contract() {
        assert_eq!(MAX_TOPIC_BYTES, outbox_contract::Topic::MAX_BYTES);
        assert_eq!(MAX_TYPE_BYTES, outbox_contract::Message::MAX_TYPE_BYTES);
    }

    #[test]
    fn a_text_at_the_limit_is_taken_and_one_byte_more_is_not() {
        let ok = |bytes: usize| {
            let text = LitStr::new(&"é".repeat(bytes)[..bytes & !1], Span::call_site());
            checked("topic", &text, 248, &mut Errors::default()).is_some()
        };
        assert!(ok(248) && !ok(250));
    }
}
