//! The user's type as the derive macro sees it: variants, fields, and their attributes.

use syn::punctuated::Punctuated;
use syn::{Data, DeriveInput, Fields, Ident, Member, Token, Type};

use crate::attr::{Attrs, Place};
use crate::error::Errors;
use crate::rename::{Case, Names};

pub(crate) struct Input<'a> {
    pub(crate) node: &'a DeriveInput,
    pub(crate) attrs: Attrs,
    pub(crate) names: Names,
    pub(crate) shape: Shape<'a>,
}

pub(crate) enum Shape<'a> {
    Struct(Vec<Field<'a>>),
    Enum(Vec<Variant<'a>>),
}

pub(crate) struct Variant<'a> {
    pub(crate) ident: &'a Ident,
    pub(crate) attrs: Attrs,
    pub(crate) names: Names,
    pub(crate) fields: Vec<Field<'a>>,
}

pub(crate) struct Field<'a> {
    pub(crate) member: Member,
    pub(crate) ty: &'a Type,
    pub(crate) attrs: Attrs,
    /// Name that serde writes, if it differs from the Rust name.
    pub(crate) wire_name: Option<String>,
}

impl<'a> Input<'a> {
    pub(crate) fn parse(node: &'a DeriveInput) -> syn::Result<Self> {
        let mut errors = Errors::default();
        let names = Names::read(&node.attrs);
        let (attrs, shape) = match &node.data {
            Data::Struct(data) => (
                Attrs::read(&node.attrs, Place::Struct, &mut errors),
                Shape::Struct(fields(&data.fields, names.rename_all, &mut errors)),
            ),
            Data::Enum(data) => (
                Attrs::read(&node.attrs, Place::Enum, &mut errors),
                Shape::Enum(variants(&data.variants, &names, &mut errors)),
            ),
            Data::Union(data) => {
                let message = "a union can't be an event: serde can't write one; use a struct or an enum";
                return Err(syn::Error::new_spanned(data.union_token, message));
            }
        };
        errors.finish(Self { node, attrs, names, shape })
    }
}

fn variants<'a>(
    variants: &'a Punctuated<syn::Variant, Token![,]>,
    container: &Names,
    errors: &mut Errors,
) -> Vec<Variant<'a>> {
    variants
        .iter()
        .map(|variant| {
            let names = Names::read(&variant.attrs);
            let attrs = Attrs::read(&variant.attrs, Place::Variant, errors);
            let rule = names.rename_all.or(container.rename_all_fields);
            Variant { ident: &variant.ident, attrs, fields: fields(&variant.fields, rule, errors), names }
        })
        .collect()
}

fn fields<'a>(fields: &'a Fields, rule: Option<Case>, errors: &mut Errors) -> Vec<Field<'a>> {
    fields
        .iter()
        .zip(fields.members())
        .map(|(field, member)| {
            let attrs = Attrs::read(&field.attrs, Place::Field, errors);
            let renamed = Names::read(&field.attrs).rename.map(|name| name.value());
            let wire_name =
                renamed.or_else(|| field.ident.as_ref().and_then(|ident| Some(rule?.of_field(ident))));
            Field { member, ty: &field.ty, attrs, wire_name }
        })
        .collect()
}
