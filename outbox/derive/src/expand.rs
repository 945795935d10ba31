//! Writes the implementation.
//!
//! The output does not depend on the scope of the derive: paths are absolute, the one local name is
//! the macro's own, and trait items are named through the trait.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Generics, Path, WherePredicate, parse_quote_spanned};

use crate::key::Key;
use crate::valid::{Checked, Event, Kind};

pub(crate) fn expand(event: &Event<'_>) -> TokenStream {
    let krate = &event.krate;
    let ident = &event.node.ident;
    let generics = with_key_bounds(event);
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, ty_generics, _) = event.node.generics.split_for_impl();

    let (types, event_type, key) = match &event.shape {
        Checked::Struct(kind) => (vec![entry(krate, kind)], nth_type(krate, 0), struct_key(krate, kind)),
        Checked::Enum(kinds) => {
            let types = kinds.iter().map(|(_, kind)| entry(krate, kind)).collect();
            let arms = kinds.iter().enumerate().map(|(at, (variant, _))| {
                let nth = nth_type(krate, at);
                quote!(Self::#variant { .. } => #nth,)
            });
            let keys = kinds.iter().map(|(variant, kind)| variant_key(krate, variant, kind));
            (types, quote!(match self { #(#arms)* }), quote!(match self { #(#keys)* }))
        }
    };
    quote! {
        #[automatically_derived]
        #[allow(deprecated, unused_qualifications)]
        impl #impl_generics #krate::__private::DomainEvent for #ident #ty_generics #where_clause {
            const TYPES: &'static [#krate::__private::EventType] = &[#(#types),*];

            fn event_type(&self) -> &'static #krate::__private::EventType {
                #event_type
            }

            fn key(&self) -> ::core::option::Option<::std::borrow::Cow<'_, ::core::primitive::str>> {
                #key
            }
        }
    }
}

fn entry(krate: &Path, kind: &Kind<'_>) -> TokenStream {
    let Kind { topic, name, version, .. } = kind;
    match topic {
        Some(topic) => quote!(#krate::__private::EventType::new(#topic, #name, #version)),
        None => quote!(#krate::__private::EventType::local(#name, #version)),
    }
}

fn nth_type(krate: &Path, at: usize) -> TokenStream {
    quote!(&<Self as #krate::__private::DomainEvent>::TYPES[#at])
}

fn struct_key(krate: &Path, kind: &Kind<'_>) -> TokenStream {
    let Some(key) = &kind.key else {
        return quote!(::core::option::Option::None);
    };
    let member = key.member;
    some_text(krate, key, &quote!(&self.#member))
}

fn variant_key(krate: &Path, variant: &Ident, kind: &Kind<'_>) -> TokenStream {
    let Some(key) = &kind.key else {
        return quote!(Self::#variant { .. } => ::core::option::Option::None,);
    };
    let member = key.member;
    // A constant of the user would be taken for a pattern whatever the hygiene: only an odd name
    // avoids this.
    let field = Ident::new("__outbox_key", Span::mixed_site());
    let text = some_text(krate, key, &field.to_token_stream());
    quote!(Self::#variant { #member: #field, .. } => #text,)
}

/// `field` is an expression of the type `&FieldType`.
fn some_text(krate: &Path, key: &Key<'_>, field: &TokenStream) -> TokenStream {
    let ty = key.ty;
    // If the type is not a key, spans decide where the compiler points: at the field's type, or at
    // the path to it.
    let text = if key.rest.is_empty() {
        quote!(<#ty as #krate::__private::EventKey>::event_key(#field))
    } else {
        let rest = &key.rest;
        let value = quote_spanned!(key.span=> &(#field) #(.#rest)*);
        let function = quote_spanned!(key.span=> #krate::__private::EventKey::event_key);
        quote!(#function(#value))
    };
    quote!(::core::option::Option::Some(#text))
}

/// Returns the type's own generics, with a key bound if the key's type depends on a type parameter.
fn with_key_bounds(event: &Event<'_>) -> Generics {
    let krate = &event.krate;
    let mut generics = event.node.generics.clone();
    let parameters: Vec<_> = event.node.generics.type_params().map(|parameter| &parameter.ident).collect();
    let kinds: Vec<_> = match &event.shape {
        Checked::Struct(kind) => vec![kind],
        Checked::Enum(kinds) => kinds.iter().map(|(_, kind)| kind).collect(),
    };
    let keys = kinds.into_iter().filter_map(|kind| kind.key.as_ref()).filter(|key| key.rest.is_empty());
    let bounds: Vec<WherePredicate> = keys
        .filter(|key| mentions(key.ty.to_token_stream(), &parameters))
        .map(|Key { ty, span, .. }| parse_quote_spanned!(*span=> #ty: #krate::__private::EventKey))
        .collect();
    if !bounds.is_empty() {
        generics.make_where_clause().predicates.extend(bounds);
    }
    generics
}

/// Returns true if the tokens contain any of these identifiers, at any depth.
fn mentions(tokens: TokenStream, idents: &[&Ident]) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => idents.contains(&&ident),
        TokenTree::Group(group) => mentions(group.stream(), idents),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}
