#![doc = include_str!("../README.md")]

mod ast;
mod attr;
mod error;
mod expand;
mod fallback;
mod key;
mod rename;
mod valid;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `DomainEvent` for a struct or an enum. The [crate documentation](crate) describes the
/// attributes.
#[proc_macro_derive(DomainEvent, attributes(event))]
pub fn derive_domain_event(input: TokenStream) -> TokenStream {
    derive(&parse_macro_input!(input as DeriveInput)).into()
}

fn derive(node: &DeriveInput) -> proc_macro2::TokenStream {
    match ast::Input::parse(node).and_then(|input| valid::check(&input).map(|event| expand::expand(&event))) {
        Ok(implementation) => implementation,
        Err(error) => fallback::expand(node, &error),
    }
}
