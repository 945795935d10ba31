//! Compile errors of the derive for every mistake, word for word: they are part of the product.
//!
//! Exact on the compiler that the project is built with. Only `not_a_key.rs` shows the compiler's
//! own words; the others are ours alone. After a change on purpose, write them anew with
//! `TRYBUILD=overwrite` and read the difference.

#[test]
fn every_mistake_is_explained_on_the_spot() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
