//! Output after an error: the errors, and an implementation that does nothing.
//!
//! Without the implementation, every place that appends the event would fail to compile too, and
//! hide the one error that the user can fix.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, Error, Path};

use crate::attr::{Attrs, Place};
use crate::error::Errors;

pub(crate) fn expand(node: &DeriveInput, error: &Error) -> TokenStream {
    let errors = error.to_compile_error();
    // Its mistakes are already among the errors.
    let attrs = Attrs::read(&node.attrs, Place::Struct, &mut Errors::default());
    let krate: Path = match attrs.krate {
        Some(krate) => krate,
        // An invalid path: implementing a guessed crate's trait would add one more error.
        None if attrs.has_crate() => return errors,
        None => syn::parse_quote!(::outbox),
    };
    let ident = &node.ident;
    let (impl_generics, ty_generics, where_clause) = node.generics.split_for_impl();
    quote! {
        #errors

        #[automatically_derived]
        #[allow(deprecated, unused_qualifications)]
        impl #impl_generics #krate::__private::DomainEvent for #ident #ty_generics #where_clause {
            const TYPES: &'static [#krate::__private::EventType] = &[];

            fn event_type(&self) -> &'static #krate::__private::EventType {
                ::core::unreachable!()
            }

            fn key(&self) -> ::core::option::Option<::std::borrow::Cow<'_, ::core::primitive::str>> {
                ::core::unreachable!()
            }
        }
    }
}
