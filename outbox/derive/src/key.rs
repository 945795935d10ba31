//! Finds the key: the field by which an event is ordered, or the user's statement that it has none.

use std::fmt::Display;

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::{Error, Ident, Index, LitStr, Member, Result, Type};

use crate::ast::Field;
use crate::error::Errors;
use crate::valid::Owner;

/// Location of the key.
pub(crate) struct Key<'a> {
    /// The field.
    pub(crate) member: &'a Member,
    /// The field's type.
    pub(crate) ty: &'a Type,
    /// Path from there: the part after the first dot of `customer.id`.
    pub(crate) rest: Vec<Member>,
    /// Place of the user's declaration.
    pub(crate) span: Span,
}

/// Returns the key of a struct or variant; `None` if the user states that it has none.
///
/// An attribute on a variant or its fields takes precedence over one on the enum. A local event is
/// unordered by default.
pub(crate) fn of<'a>(owner: &Owner<'a>, local: bool) -> Result<Option<Key<'a>>> {
    let marked = marked(owner)?;
    agree(owner, marked)?;
    if let Some((field, span)) = marked {
        return direct(field, span).map(Some);
    }
    if let Some(path) = &owner.attrs.key_path {
        return follow(owner, path, path.span()).map(Some);
    }
    if owner.attrs.keyless.is_some() {
        return Ok(None);
    }
    match owner.container {
        Some(container) if container.keyless.is_some() => Ok(None),
        Some(container) if container.key_path.is_some() => {
            container.key_path.as_ref().map(|path| follow(owner, path, owner.ident.span())).transpose()
        }
        _ if local => Ok(None),
        _ => Err(missing(owner)),
    }
}

/// Returns the field that is marked `#[event(key)]`, and the place of the mark.
fn marked<'a>(owner: &Owner<'a>) -> Result<Option<(&'a Field<'a>, Span)>> {
    let mut marked = owner.fields.iter().filter_map(|field| Some((field, field.attrs.key_mark?)));
    let Some((first, span)) = marked.next() else {
        return Ok(None);
    };
    let mut errors = Errors::default();
    for (_, other) in marked {
        let (owned, first) = (owner.named(), shown(&first.member));
        errors
            .at(other, format_args!("{owned} has a key already, its field `{first}`; an event has one key"));
    }
    errors.finish(Some((first, span)))
}

/// Checks that declarations in several places do not contradict each other.
fn agree(owner: &Owner<'_>, marked: Option<(&Field<'_>, Span)>) -> Result<()> {
    let own = owner.attrs;
    let path = own.key_path.as_ref();
    if let (Some(path), Some((field, span))) = (path, marked) {
        let (field, path) = (shown(&field.member), path.value());
        return wrong(
            span,
            format_args!(
                "the field `{field}` is marked as the key, and `key = {path:?}` names one; remove one of them"
            ),
        );
    }
    if let (Some(keyless), Some(path)) = (own.keyless, path) {
        let path = path.value();
        return wrong(keyless, format_args!("`keyless` contradicts `key = {path:?}`; remove one of them"));
    }
    if let (Some(_), Some((field, span))) = (own.keyless, marked) {
        let (owned, field) = (owner.named(), shown(&field.member));
        return wrong(
            span,
            format_args!(
                "the field `{field}` is marked as the key, and {owned} is `keyless`; remove one of them"
            ),
        );
    }
    let said_here = marked.map(|(_, span)| span).or(path.map(LitStr::span));
    if let (Some(container), Some(span)) = (owner.container, said_here)
        && container.keyless.is_some()
    {
        let owned = owner.named();
        return wrong(
            span,
            format_args!(
                "{owned} has a key here, and its enum is `keyless`; move `keyless` to the variants that have none"
            ),
        );
    }
    Ok(())
}

fn missing(owner: &Owner<'_>) -> Error {
    let owned = owner.named();
    let message = if owner.fields.is_empty() {
        format!(
            "{owned} has no field that could be its key; give it one, \
             or say with `#[event(keyless)]` that it is ordered with nothing"
        )
    } else {
        format!(
            "{owned} has no key; put `#[event(key)]` on the field that it is ordered by, \
             or say with `#[event(keyless)]` that it is ordered with nothing"
        )
    };
    Error::new(owner.ident.span(), message)
}

/// Uses the field itself as the key.
fn direct<'a>(field: &'a Field<'a>, span: Span) -> Result<Key<'a>> {
    match never_a_key(field.ty) {
        Some(why) => Err(Error::new_spanned(field.ty, why)),
        None => Ok(Key { member: &field.member, ty: field.ty, rest: Vec::new(), span }),
    }
}

/// Follows `key = "customer.id"`: first a field's Rust name or serde's name, then only Rust names,
/// because the macro knows nothing about other types.
fn follow<'a>(owner: &Owner<'a>, path: &LitStr, blame: Span) -> Result<Key<'a>> {
    let written = path.value();
    // serde's name may contain a dot, so the whole text is tried before its parts.
    if let Some(field) = find(owner, &written, blame)? {
        return direct(field, path.span());
    }
    let (head, tail) = written.split_once('.').unwrap_or((&written, ""));
    let rest: Option<Vec<_>> = tail.split('.').map(|part| member(part, path.span())).collect();
    match (find(owner, head, blame)?, rest) {
        (Some(field), Some(rest)) => Ok(Key { member: &field.member, ty: field.ty, rest, span: path.span() }),
        (None, _) if !head.is_empty() => Err(Error::new(blame, no_field(owner, head))),
        _ => wrong(
            path.span(),
            format_args!("the key {written:?} is not a path to a field, such as `customer.id`"),
        ),
    }
}

/// Returns the field of this name, in Rust or by serde.
fn find<'a>(owner: &Owner<'a>, name: &str, blame: Span) -> Result<Option<&'a Field<'a>>> {
    let mut found = owner
        .fields
        .iter()
        .filter(|field| shown(&field.member) == name || field.wire_name.as_deref() == Some(name));
    match (found.next(), found.next()) {
        (Some(first), Some(second)) => {
            let (owned, first, second) = (owner.named(), shown(&first.member), shown(&second.member));
            wrong(
                blame,
                format_args!(
                    "`{name}` in {owned} can be the field `{first}` or `{second}`, by its Rust name or by serde's; \
                     put `#[event(key)]` on the one that is meant"
                ),
            )
        }
        (found, _) => Ok(found),
    }
}

fn no_field(owner: &Owner<'_>, name: &str) -> String {
    let owned = owner.named();
    let fields: Vec<_> = owner.fields.iter().map(|field| format!("`{}`", shown(&field.member))).collect();
    let fields = match &fields[..] {
        [] => "it has no fields".to_owned(),
        [field] => format!("its field is {field}"),
        fields => format!("its fields are {}", fields.join(", ")),
    };
    if owner.attrs.key_path.is_some() {
        return format!("{owned} has no field `{name}` that could be its key; {fields}");
    }
    format!(
        "{owned} has no field `{name}`, which its enum names as the key; {fields}; \
         say here which is the key, or with `#[event(keyless)]` that there is none"
    )
}

/// Returns the reason why a type can't be a key, if its spelling shows that. Other types are left
/// to the trait `EventKey`, which has its own error message.
fn never_a_key(ty: &Type) -> Option<&'static str> {
    let path = match ty {
        Type::Reference(reference) => return never_a_key(&reference.elem),
        Type::Group(group) => return never_a_key(&group.elem),
        Type::Paren(paren) => return never_a_key(&paren.elem),
        Type::Path(path) if path.qself.is_none() => &path.path,
        _ => return None,
    };
    let segments: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    let names: Vec<_> = segments.iter().map(String::as_str).collect();
    let name = match &names[..] {
        [name] | ["std" | "core" | "alloc", _, name] => *name,
        _ => return None,
    };
    match name {
        "Option" => Some(
            "an `Option` can't be a key: a key is always there, or the event is `#[event(keyless)]`; \
             make an event with and one without it two types, or the field not optional",
        ),
        "f32" | "f64" => Some(
            "a floating-point number can't be a key: equal ones can read differently (`0.0`, `-0.0`); \
             use an integer or a string",
        ),
        "Vec" => Some(
            "a list can't be a key; use a string, an integer or a `Uuid`, \
             or a type of your own that implements `EventKey`",
        ),
        _ => None,
    }
}

/// Returns a field's Rust name in readable form.
fn shown(member: &Member) -> String {
    match member {
        Member::Named(ident) => ident.unraw().to_string(),
        Member::Unnamed(index) => index.index.to_string(),
    }
}

/// Parses a part of a dotted path.
fn member(part: &str, span: Span) -> Option<Member> {
    if let Ok(index) = part.parse() {
        return Some(Member::Unnamed(Index { index, span }));
    }
    if part.contains(char::is_whitespace) {
        return None;
    }
    let mut ident: Ident = syn::parse_str(part).or_else(|_| syn::parse_str(&format!("r#{part}"))).ok()?;
    ident.set_span(span);
    Some(Member::Named(ident))
}

fn wrong<T>(span: Span, message: impl Display) -> Result<T> {
    Err(Error::new(span, message))
}
