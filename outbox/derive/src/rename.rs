//! serde's names: `#[serde(rename)]`, `rename_all` and `rename_all_fields`, as far as
//! *serialization* goes.
//!
//! Nothing is reported here. serde's own derive reports what serde does not understand; attributes
//! unrelated to names are skipped.

use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, ExprLit, Ident, Lit, LitStr, Meta, Token};

/// Names from serde's attributes on one item.
#[derive(Default)]
pub(crate) struct Names {
    /// The item's own name.
    pub(crate) rename: Option<LitStr>,
    /// Rule for the content: the fields of a struct or variant, the variants of an enum.
    pub(crate) rename_all: Option<Case>,
    /// Rule for the fields of an enum's variants.
    pub(crate) rename_all_fields: Option<Case>,
}

impl Names {
    pub(crate) fn read(attrs: &[Attribute]) -> Self {
        let mut names = Self::default();
        for attr in attrs.iter().filter(|attr| attr.path().is_ident("serde")) {
            let Ok(list) = attr.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated) else {
                continue;
            };
            for meta in &list {
                let case = || written(meta).and_then(|rule| Case::named(&rule.value()));
                if meta.path().is_ident("rename") {
                    names.rename = written(meta).or(names.rename);
                } else if meta.path().is_ident("rename_all") {
                    names.rename_all = case().or(names.rename_all);
                } else if meta.path().is_ident("rename_all_fields") {
                    names.rename_all_fields = case().or(names.rename_all_fields);
                }
            }
        }
        names
    }
}

/// Returns the serialized name: of `= "name"`, or of `(serialize = "name", deserialize = "other")`.
fn written(meta: &Meta) -> Option<LitStr> {
    match meta {
        Meta::NameValue(pair) => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(name), .. }) => Some(name.clone()),
            _ => None,
        },
        Meta::List(list) => {
            let pairs = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
            pairs.iter().find(|pair| pair.path().is_ident("serialize")).and_then(written)
        }
        Meta::Path(_) => None,
    }
}

/// One of serde's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Lower,
    Upper,
    Pascal,
    Camel,
    Snake,
    ScreamingSnake,
    Kebab,
    ScreamingKebab,
}

impl Case {
    fn named(rule: &str) -> Option<Self> {
        Some(match rule {
            "lowercase" => Self::Lower,
            "UPPERCASE" => Self::Upper,
            "PascalCase" => Self::Pascal,
            "camelCase" => Self::Camel,
            "snake_case" => Self::Snake,
            "SCREAMING_SNAKE_CASE" => Self::ScreamingSnake,
            "kebab-case" => Self::Kebab,
            "SCREAMING-KEBAB-CASE" => Self::ScreamingKebab,
            _ => return None,
        })
    }

    /// Applies the rule to a variant, which is written in PascalCase.
    pub(crate) fn of_variant(self, variant: &Ident) -> String {
        let name = variant.unraw().to_string();
        match self {
            Self::Pascal => name,
            Self::Lower => name.to_ascii_lowercase(),
            Self::Upper => name.to_ascii_uppercase(),
            Self::Camel => first(&name, |letter| letter.to_ascii_lowercase()),
            Self::Snake => words(&name, '_'),
            Self::ScreamingSnake => words(&name, '_').to_ascii_uppercase(),
            Self::Kebab => words(&name, '_').replace('_', "-"),
            Self::ScreamingKebab => words(&name, '_').replace('_', "-").to_ascii_uppercase(),
        }
    }

    /// Applies the rule to a field, which is written in snake_case.
    pub(crate) fn of_field(self, field: &Ident) -> String {
        let name = field.unraw().to_string();
        match self {
            Self::Lower | Self::Snake => name,
            Self::Upper | Self::ScreamingSnake => name.to_ascii_uppercase(),
            Self::Pascal => joined(&name),
            Self::Camel => first(&joined(&name), |letter| letter.to_ascii_lowercase()),
            Self::Kebab => name.replace('_', "-"),
            Self::ScreamingKebab => name.to_ascii_uppercase().replace('_', "-"),
        }
    }
}

/// Suggests a wire name for an event of this Rust name: `OrderPlaced` as `order.placed`. For advice
/// only.
pub(crate) fn suggested(name: &Ident) -> String {
    words(&name.unraw().to_string(), '.')
}

/// `OrderPlaced` as `order_placed`.
fn words(name: &str, between: char) -> String {
    let mut words = String::with_capacity(name.len() + 4);
    for (at, letter) in name.char_indices() {
        if at > 0 && letter.is_uppercase() {
            words.push(between);
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}

/// `order_id` as `OrderId`.
fn joined(name: &str) -> String {
    name.split('_').map(|word| first(word, |letter| letter.to_ascii_uppercase())).collect()
}

fn first(word: &str, change: impl Fn(char) -> char) -> String {
    let mut letters = word.chars();
    letters.next().map(change).into_iter().chain(letters).collect()
}
