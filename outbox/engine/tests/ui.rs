//! Handlers that can't be one: the compiler's words lead to the right signature.
//!
//! Exact on the compiler that the project is built with. After a change on purpose, write them anew
//! with `TRYBUILD=overwrite` and read the difference.

#[test]
fn every_wrong_signature_is_explained_with_the_right_one() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
